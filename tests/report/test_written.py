"""What is written: one file, or terms beside it and a server of them; pages of stored runs."""

from __future__ import annotations

import http.client
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

from gnn_repair.cli import app
from gnn_repair.errors import InputError, ResourceError
from gnn_repair.reporting import gather, report, report_results, writing
from gnn_repair.reporting.payload import PageServer, needs_server
from gnn_repair.reporting.writing import SCRIPTS
from gnn_repair.results.protocol import PAPER, override
from gnn_repair.results.store import Store
from gnn_repair.study import run_study
from gnn_repair.study.case import rerun, stack_of
from tests.helpers.report.browser import served
from tests.helpers.report.pages import arrays_of, payload_of
from tests.helpers.report.report_worlds import Moved, make_exposure
from tools import lint_page

# One file, harmless inside a script block; or none at all.

NASTY = ["</script><script>alert(1)</script>", "<!-- & -->", "@@PAYLOAD@@", "line\u2028end"]


def test_the_page_is_one_file_with_nothing_outside(tmp_path):
    exposure, y = make_exposure()
    title = "<img src=x onerror=alert(1)>@@STYLE@@"
    path = report(exposure, y, tmp_path / "r.html", class_names=NASTY, title=title)
    page = path.read_text(encoding="utf-8")
    assert payload_of(path)["run"]["classes"] == NASTY
    assert payload_of(path)["title"] == title
    assert "<title>&lt;img src=x onerror=alert(1)&gt;@@STYLE@@</title>" in page
    assert page.count("<script") == page.count("</script>") == 2
    outside = re.findall(r"https?://[^\"'\s)]+", page)
    assert set(outside) == {"http://www.w3.org/2000/svg"} and "connect-src" not in page
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    sampled = replace(exposure, n_id=torch.arange(100, 140))  # nodes of a larger graph
    assert payload_of(report(sampled, y, path))["run"]["names"][:2] == ["100", "101"]


def bad(value: float) -> torch.Tensor:
    logits = torch.rand(40, 4)
    logits[3, 1] = value
    return logits


@pytest.mark.parametrize(
    ("named", "options"),
    [
        *((repr(n), {"repairs": {n: Moved()}}) for n in ("frozen", "oracle", "what-if", "unit")),
        (r"'mine' at node 3 hold nan", {"repairs": {"mine": bad(float("nan"))}}),
        (r"'mine' at node 3 hold -inf", {"repairs": {"mine": bad(float("-inf"))}}),
        (r"mine reach 1\.0e\+38", {"repairs": {"mine": bad(1e38)}}),
        ("give True, False or None", {"single_file": 3}),
        ("labels", {"outputs": "labels", "y": torch.ones(40, 4, dtype=torch.bool)}),
        (r"beside\['x'\] has other labels", {"beside": "turned"}),
        (r"beside\['x'\] is 3", {"beside": {"x": 3}}),
        ("give a mapping", {"beside": [3]}),
        ("split", {"split": -1}),
        ("title", {"title": 3}),
    ],
)
def test_what_cannot_be_shown_is_refused_and_leaves_no_file(tmp_path, named, options):
    exposure, y = make_exposure()
    told = {"exposure": exposure, "y": y, "path": tmp_path / "r.html", **options}
    told["exposure"] = replace(exposure, outputs=told.pop("outputs", "classes"))
    if told.get("beside") == "turned":
        evidence = gather(exposure, y)
        told["beside"] = {"x": replace(evidence, labels=(evidence.labels + 1) % 4)}
    with pytest.raises(InputError, match=named):
        report(**told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "meant"), [("titel", "title"), ("node", "nodes")])
def test_a_mistyped_option_is_named(tmp_path, name, meant):
    with pytest.raises(TypeError, match=rf"report\(\) got .* '{name}'; did you mean '{meant}'"):
        report(*make_exposure(), tmp_path / "r.html", **{name: 3})


def test_results_without_accuracies_are_refused(tmp_path):
    columns = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
    for lacking in (columns[:3], columns):
        with pytest.raises(InputError, match="results"):
            report_results(pd.DataFrame(columns=lacking), tmp_path / "r.html")


# Large pages: terms in files beside the page, served to this machine alone.


def test_terms_lie_beside_large_pages_alone_and_are_those_of_the_page(tmp_path, monkeypatch):
    path, folder = tmp_path / "r.html", tmp_path / "r.parts"
    for seed, (size, single) in enumerate(
        [(10**9, False), (1000, None), (1000, None), (10**9, None), (1000, False), (1000, True)]
    ):
        parts = single is False or (single is None and size == 1000)
        monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", size)
        (tmp_path / "mine.txt").write_text("")
        report(*make_exposure(seed=seed), path, repairs={"mine": Moved()}, single_file=single)
        assert needs_server(path) is folder.exists() is parts
        held = payload_of(path)
        assert ("parts" in held) is parts and ("rows" in held["arrays"]) is not parts
        assert ("connect-src 'self'" in path.read_text(encoding="utf-8")) is parts
        told = {item.name for item in folder.iterdir()} if parts else set()
        assert {name.split("-")[0] for name in told} == (
            {held["parts"]["digest"]} if parts else set()
        )
        assert {item.name for item in tmp_path.iterdir()} - {"r.parts"} == {"r.html", "mine.txt"}
    report(*make_exposure(), path, single_file=False)
    (folder / "mine.txt").write_text("")
    report(*make_exposure(), path)
    assert [item.name for item in folder.iterdir()] == ["mine.txt"]
    exposure, y = make_exposure()
    names = ("contributions", "fixed_logits", "frozen_logits")  # terms with the same weights
    twice = replace(exposure, **{name: 2 * getattr(exposure, name) for name in names})
    pages = [payload_of(report(e, y, path, single_file=False)) for e in (exposure, twice)]
    assert pages[0]["parts"]["digest"] != pages[1]["parts"]["digest"]


def test_a_page_that_cannot_be_written_leaves_the_old_one_whole(tmp_path, monkeypatch):
    path = tmp_path / "r.html"

    def files():
        return {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    report(*make_exposure(), path, single_file=False)
    before = files()
    assert len(before) > 2

    def full(content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gnn_repair.reporting.writing.build_page", full)
    with pytest.raises(ResourceError, match="No space left"):
        report(*make_exposure(seed=9), path, single_file=False)
    assert before.items() <= files().items()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with parts beside it, and a whole one."""
    path = tmp_path_factory.mktemp("parts") / "big page.html"
    report(*make_exposure(groups=2), path, single_file=False)
    return path, report(*make_exposure(groups=2), path.with_name("whole.html"))


def ask(server, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_knows_the_page_and_its_parts_only(pages, tmp_path):
    path, _ = pages
    folder = path.with_suffix(".parts")
    name = f"{payload_of(path)['parts']['digest']}-0.json"
    for place in (path.parent, folder):
        (place / "secret.json").write_text("{}")
    with served(path) as server:
        assert server.server_address[0] == "127.0.0.1"
        for fine in ("/", "/big%20page.html"):
            assert ask(server, fine) == (200, path.read_bytes())
        assert ask(server, f"/big%20page.parts/{name}") == (200, (folder / name).read_bytes())
        for other in (
            "/secret.json", "/big%20page.parts/secret.json", "/whole.html", "/../whole.html",
            f"/big%20page.parts/../{name}", f"/big%20page.parts/%2e%2e/{name}", "//etc/passwd",
            f"/big%20page.parts/{'0' * 12}-0.json", f"/{name}",
        ):  # fmt: skip
            assert ask(server, other)[0] == 404, other
        assert ask(server, "/", "evil.example:80")[0] == 404
    with pytest.raises(InputError, match=r"nothing\.html"):
        PageServer(tmp_path / "nothing.html")


def test_view_opens_a_page_and_serves_what_has_parts(pages, tmp_path, monkeypatch):
    path, whole = pages
    opened, served_at = [], []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(PageServer, "serve_forever", lambda self: served_at.append(self.address))
    address = whole.resolve().as_uri()
    assert CliRunner().invoke(app, ["view", str(whole)]).exit_code == 0 and opened == [address]
    run = CliRunner().invoke(app, ["view", str(whole), "--no-browser"])
    assert run.output.strip() == address and len(opened) == 1 and not served_at
    assert CliRunner().invoke(app, ["view", str(path)]).exit_code == 0
    assert opened[1:] == served_at and re.fullmatch(r"http://127\.0\.0\.1:\d+/", served_at[0])
    with pytest.raises(InputError, match=r"x\.html"):
        CliRunner().invoke(app, ["view", str(tmp_path / "x.html")], catch_exceptions=False)


# One model per page: what is shown is the stored run, number by number, or the page says so.

SETTINGS = """
backbones.hidden=8 backbones.short.epochs=8 repairs.hidden=8
repairs.reweighting.epochs=3 repairs.reweighting.learning_rate=0.05
repairs.set_translation.epochs=3 repairs.set_translation.learning_rate=0.05
"""
SMALL = override(PAPER, SETTINGS.split())
METHODS = ["oracle", "reweighting", "set_translation"]
SPLITS = (0, 1, 3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("study") / "store"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    options = {"store": root, "methods": METHODS, "protocol": SMALL, "device": "cpu"}
    assert run_study(["builtin"], ["gcn"], SPLITS, **options).stored == 3
    yield Store(root)
    torch.set_num_threads(before)


def test_a_named_case_is_run_again_in_its_stack_and_shows_the_stored_numbers(runs, tmp_path):
    page, figures = tmp_path / "r.html", tmp_path / "figures"
    options = {
        "store": runs.root, "out": page, "figures": figures, "dataset": "builtin", "compare": 3,
        "split": 1, "methods": "reweighting,set_translation", "device": "cpu",
    }  # fmt: skip
    words = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    run = CliRunner().invoke(app, ["report", *words])
    assert run.exit_code == 0, run.output
    assert len(list(figures.glob("*.svg"))) == 7
    content, arrays = payload_of(page), arrays_of(page)
    again, records = rerun_of(runs, 1), [*runs.records(SMALL.digest)]
    stored = runs.get(SMALL.digest, again.case.runs[1])
    assert content["run"]["best"]["nodes"] == again.mask("val").sum() != again.mask("test").sum()
    assert "Split 1, trained with splits 0, 1, 3; the stored run" in content["subtitle"]
    assert "--dataset builtin --backbone gcn --split 1" in content["made"]["command"]
    assert content["made"]["protocol"] == SMALL.digest
    assert content["run"]["split"] == 1 and content["run"]["selection"] == "test nodes"
    (other,) = content["beside"]
    assert other["title"] == "split 3" and other["run"]["split"] == 3
    nodes = arrays["nodes"]
    labels = arrays["labels"][nodes]
    right = arrays["predictions"][nodes] == labels
    assert right.mean() == stored.frozen["test"]
    kinds = [(item["key"], item["kind"]) for item in content["run"]["repairs"]]
    assert kinds == [("reweighting", "coefficients"), ("set_translation", "shift")]
    for j, name in enumerate(METHODS[1:]):
        share = (arrays[f"repair_{j}_predictions"] == labels).mean()
        assert share == stored.methods[name]["test"], name
    reached, oracle = arrays["margins"] > content["run"]["thresholds"]["reachable"], stored.oracle
    assert reached.mean() == oracle["test"]["true_class_reach"]
    assert reached[~right].mean() == oracle["test"]["error_reach"]
    assert arrays["support"][reached].mean() == pytest.approx(oracle["test"]["support"], rel=1e-12)
    # The overview's cells are those of all records.
    case = content["study"]["cases"][content["study"]["shown"]]
    cells = {method["key"]: method["values"] for method in case["methods"]}
    assert cells.pop("frozen") == [100 * record.frozen["test"] for record in records]
    assert cells == {n: [100 * r.methods[n]["test"] for r in records] for n in METHODS[1:]}
    reach = [100 * record.oracle["test"]["error_reach"] for record in records]
    assert case["reach"]["error_reach"] == reach


def rerun_of(source, split):
    return rerun("builtin", "gcn", split, source=source, protocol=SMALL, methods=[], device="cpu")


def test_a_run_says_whether_it_is_the_stored_one(runs, tmp_path):
    copy = Store(tmp_path / "store")
    copy.begin(SMALL)
    for record in runs.records(SMALL.digest):
        record.frozen["test"] = 0.125
        copy.put(record)
    for source, split, splits, said in (
        (runs, 1, SPLITS, r"trained with splits 0, 1, 3; the stored run, .* same accuracies"),
        (copy, 0, SPLITS, r"frozen model is right about .*\(stored 12\.5 %\): .* of this model"),
        (runs, 2, (2,), "split 2, trained alone; made for this page"),
    ):
        run = rerun_of(source, split)
        assert run.case.splits == splits
        assert re.search(said, run.provenance())
    (first, *_) = runs.records(SMALL.digest)
    for changed, stack in (({}, SPLITS), ({"members": 2}, (0,)), ({"members": 1}, (0,))):
        assert stack_of(runs, replace(first, stack=[], **changed)) == stack


def test_a_run_beside_says_what_its_own_split_makes_of_each_node(monkeypatch):
    kinds = {0: [0, 1, 2, 3, 3, 3], 1: [3, 3, 0, 1, 2, 0]}

    def run(split):
        held = torch.tensor(kinds[split])
        places = {"train": 0, "val": 1, "test": 3}
        return SimpleNamespace(data=Data(y=held), split=split, mask=lambda n: held == places[n])

    seen = SimpleNamespace(nodes=np.array([5, 3, 4]))
    monkeypatch.setattr(writing, "evidence_of", lambda run, other: seen)
    for page, other in ((0, 1), (1, 0)):
        found = writing.gather_beside(run(page), run(other))
        assert found.parts.tolist() == [kinds[other][node] for node in seen.nodes]
        assert found.split == other


# The page's scripts are checked as one, and the check notices what is wrong.


def test_every_script_is_part_of_the_page_and_none_has_a_long_line():
    files = {path.name: path.read_text(encoding="utf-8") for path in lint_page.PAGE.glob("*.js")}
    assert set(files) == set(SCRIPTS)
    assert [name for name, text in files.items() if lint_page.long_lines(text)] == []
    assert lint_page.long_lines("a" * 100 + "\n" + "γ" * 101) == [2]


@pytest.mark.parametrize("fault", ["", "console.log(nothingOfThisName);"])
def test_the_linter_passes_the_page_and_notices_a_fault(monkeypatch, fault, capfd):
    whole = lint_page.joined_scripts()
    monkeypatch.setattr(lint_page, "joined_scripts", lambda: f"{whole}\n{fault}\n")
    assert lint_page.joined_is_sound() == (fault == "")
