"""What a report collects, against independent computations, and what its page holds of it."""

from __future__ import annotations

import http.client
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from typer.testing import CliRunner

import gnn_repair as gr
from gnn_repair.cli import app
from gnn_repair.errors import InputError, ResourceError
from gnn_repair.methods import METHODS
from gnn_repair.oracle import reach, solve
from gnn_repair.oracle.metrics import summarise
from gnn_repair.oracle.problems import FAILED
from gnn_repair.repair.baselines import KeptPrediction
from gnn_repair.repair.folds import FittedCrossFit
from gnn_repair.reporting import gather, report
from gnn_repair.reporting.evidence import best_on
from gnn_repair.reporting.payload import PageServer, needs_server, parts_folder
from tests.helpers.report.browser import missing
from tests.helpers.report.pages import decoded, payload_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# What a report collects, against independent computations.


def best_margin(exposure, member: int, node: int, c: int) -> float:
    """γ of one node by a general LP solver."""
    groups = exposure.num_groups
    ends = exposure.segments[node * groups : (node + 1) * groups + 1].tolist()
    rows = exposure.rows[ends[0] : ends[-1]].long()
    table = exposure.contributions[member, rows].numpy()
    beta = exposure.fixed_logits[member, node].numpy()
    rivals = [r for r in range(exposure.num_classes) if r != c]
    bounds = [(None, None)] + [(0, None)] * len(rows)
    upper = [[1.0, *(table[:, r] - table[:, c])] for r in rivals]
    equal, mass = [], []
    for low, high in pairwise(ends):
        if high > low:
            row = np.zeros(1 + len(rows))
            row[1 + low - ends[0] : 1 + high - ends[0]] = 1
            equal.append(row)
            mass.append(float(exposure.coefficients[member, low:high].sum()))
    cost = [-1.0] + [0.0] * len(rows)
    found = linprog(cost, upper, [beta[c] - beta[r] for r in rivals], equal, mass, bounds=bounds)
    return -found.fun


@pytest.mark.parametrize("groups", [1, 3])
def test_margins_and_witnesses_are_those_of_an_independent_solver(groups):
    exposure, y = make_exposure(groups=groups, members=2)
    evidence = gather(exposure, y, member=1)
    expected = [best_margin(exposure, 1, int(v), int(y[v])) for v in evidence.nodes]
    np.testing.assert_allclose(evidence.margin, expected, atol=1e-8)
    for i, node in enumerate(evidence.nodes):
        terms = slice(evidence.starts[i], evidence.starts[i + 1])
        table = evidence.contributions[evidence.rows[terms]]
        logits = evidence.fixed_logits[i] + evidence.witness[terms] @ table
        own = logits[y[node]]
        assert own - np.delete(logits, y[node]).max() == pytest.approx(expected[i], abs=1e-8)


def test_answers_that_are_known_are_used_for_these_nodes_and_for_no_others():
    exposure, y = make_exposure(groups=2)
    nodes = torch.arange(5, 25)
    found = reach(exposure, y, nodes)
    turned = summarise(exposure, solve(exposure, "all", nodes.flip(0)), y)
    own = gather(exposure, y, nodes, all_classes=True)
    for shown, told in ((nodes, found), (torch.arange(5, 15), found), (nodes, turned)):
        given = gather(exposure, y, shown, all_classes=True, answers=(told, told.changes))
        assert (given.classes.figures is told) == (shown is nodes and told is found)
        rows = [own.nodes.tolist().index(node) for node in given.nodes]
        for name in ("margin", "rival_weights"):
            np.testing.assert_allclose(getattr(given, name), getattr(own, name)[rows], atol=1e-9)
        for name in ("reachable", "share", "chance"):
            expected = getattr(own.classes, name)[rows]
            np.testing.assert_allclose(getattr(given.classes, name), expected, atol=1e-9)


def test_a_node_without_an_answer_has_no_margin_and_no_rivals(monkeypatch):
    exposure, y = make_exposure()
    solution = solve(exposure, y)
    failed = solution.status.copy()
    failed[3] = FAILED
    lost = replace(solution, status=failed)
    monkeypatch.setattr("gnn_repair.reporting.evidence.solve", lambda *_: lost)
    evidence = gather(exposure, y)
    (unsolved,) = np.flatnonzero(np.isnan(evidence.margin))
    assert evidence.nodes[unsolved] == 3 and not evidence.rival_weights[unsolved].any()
    assert evidence.reach.nodes == 39


# The smallest change and the other classes: what a page holds of them, and the words it uses.

needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


def run_of(path) -> dict:
    return payload_of(path)["run"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    exposure, y = make_exposure(groups=2, nodes=60)
    path = tmp_path_factory.mktemp("changes") / "r.html"
    report(exposure, y, path, repairs={"reweighting": Tilted(), "set_translation": Moved()})
    return exposure, y, gather(exposure, y, all_classes=True), path


def test_every_class_is_asked_and_the_smallest_change_is_admissible_and_wins(world):
    exposure, y, evidence, _ = world
    found, wrong = evidence.classes, ~evidence.right
    solved = gr.solve(exposure, "all")
    reachable = (solved.margin > 1e-7).reshape(-1, 4)[evidence.nodes]
    np.testing.assert_array_equal(found.reachable, reachable)
    for i, node in enumerate(evidence.nodes.tolist()):
        true, predicted = int(evidence.true_class[i]), int(evidence.predictions[node])
        others = [c for c in range(4) if c not in (true, predicted)]
        assert found.chance[i] == found.possible[i] == pytest.approx(reachable[i, others].mean())
        if not wrong[i]:
            continue
        for c in set(range(4)) - {predicted}:
            (one,) = gr.nearest_reweighting(exposure, torch.full_like(y, c), torch.tensor([node]))
            expected = one.share if reachable[i, c] else np.inf
            assert found.share[i, c] == pytest.approx(expected)
        terms = slice(evidence.starts[i], evidence.starts[i + 1])
        lam, alpha = found.nearest[terms], evidence.coefficients[terms]
        if not evidence.reachable[i]:
            np.testing.assert_array_equal(lam, alpha)
            continue
        ends = evidence.segments[2 * i : 2 * i + 3] - evidence.starts[i]
        for low, high in pairwise(ends):
            assert lam[low:high].sum() == pytest.approx(alpha[low:high].sum())
        assert lam.min() >= -1e-12
        assert np.abs(lam - alpha).sum() / 2 / alpha.sum() == pytest.approx(found.share[i, true])
        logits = evidence.fixed_logits[i] + lam @ evidence.contributions[evidence.rows[terms]]
        assert logits[true] > np.delete(logits, true).max()
    assert np.isnan(found.share[evidence.right]).all()


def test_answers_that_are_known_are_not_asked_for_again(world, tmp_path, monkeypatch):
    exposure, y, *_ = world
    found = gr.diagnose(exposure, y=y)
    monkeypatch.setattr("gnn_repair.reporting.evidence.reach", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr("gnn_repair.reporting.evidence.least_changes", lambda *_: pytest.fail("x"))
    assert run_of(found.report(tmp_path / "r.html"))["chance_summary"] is not None


def test_of_too_many_errors_a_sample_is_asked(world, monkeypatch):
    exposure, y, whole, _ = world
    monkeypatch.setattr("gnn_repair.reporting.evidence.MOST_CHANGES", 12)
    some = gather(exposure, y, all_classes=True).classes
    asked = ~np.isnan(some.share).all(1)
    assert 2 <= asked.sum() < (~whole.right).sum()
    np.testing.assert_array_equal(some.share[asked], whole.classes.share[asked])
    np.testing.assert_array_equal(some.chance, whole.classes.chance)


def told(browser, node: int) -> tuple[str, str, list[str]]:
    browser.show(f"#node={node}")
    chips = browser.run(
        "return [...document.querySelectorAll('.chip')].map(chip => chip.textContent)"
    )
    panel = browser.text("#certificate").replace("−", "-")
    return browser.text("#certificate .headline"), panel, chips


@needs_browser
def test_a_what_if_keeps_the_plane_in_sight_and_the_table_follows(browser, world):
    *_, path = world
    browser.open(path, "#node=2")  # terms from everybody
    before = browser.text("#terms [data-row=total]")
    browser.run("document.getElementById('terms-panel').scrollIntoView()")
    assert not browser.run("return document.querySelector('#plane.floating')")
    browser.choose("#terms input[type=range]", "0.9")
    browser.until("document.querySelector('#plane.floating') !== null")
    assert browser.run("return document.getElementById('weighting').value") == "what_if"
    total = browser.text("#terms [data-row=total]")
    assert total != before
    inside = browser.run(
        "const box = document.getElementById('plane').getBoundingClientRect();"
        "return box.bottom <= innerHeight && box.right <= innerWidth && box.width > 200"
    )
    assert inside
    browser.run("window.scrollTo(0, 0)")
    browser.until("document.querySelector('#plane.floating') === null")
    assert browser.messages() == []


class Folded:
    """A repair of two members that judges itself."""

    nested = torch.tensor([0.0, 1.0])

    def logits(self, exposure):
        return exposure.frozen_logits[:, exposure.recipients]


def test_the_best_repair_is_chosen_on_validation_nodes(tmp_path):
    exposure, y = make_exposure()
    frozen = exposure.frozen_logits[0].float()
    val, test = torch.arange(20), torch.arange(20, 40)
    right = 9.0 * torch.nn.functional.one_hot(y, 4)
    there, here = frozen.clone(), frozen.clone()
    there[val], here[test] = right[val], right[test]
    repairs = {"there": there, "here": here, "same": 2 * frozen}
    options = {"nodes": test, "repairs": repairs}
    best = run_of(report(exposure, y, tmp_path / "a.html", val=val, **options))["best"]
    assert best == {"key": "there", "nodes": 20}
    poor = {"nodes": test, "repairs": {"same": 2 * frozen}}
    assert run_of(report(exposure, y, tmp_path / "b.html", val=val, **poor))["best"]["key"] is None
    assert run_of(report(exposure, y, tmp_path / "c.html", **options))["best"] is None
    pair, y = make_exposure(members=2)
    for member, key in ((0, None), (1, "folded")):  # each member by its own held-out nodes
        told = {"member": member, "repairs": {"folded": Folded()}}
        page = report(pair, y, tmp_path / "d.html", nodes=test, val=val, **told)
        assert run_of(page)["best"]["key"] == key


@needs_browser
def test_what_changes_no_prediction_is_in_no_chart_of_predictions(browser, tmp_path):
    exposure, y = make_exposure()
    repairs = {"cooler": 0.5 * exposure.frozen_logits[0], "set_translation": Moved()}
    browser.open(report(exposure, y, tmp_path / "r.html", repairs=repairs))
    browser.unfold()
    for title in ("What each repair did", "Accuracy"):
        drawn = browser.text(f".chart[aria-label='{title}'] svg")
        assert "Set translation" in drawn and "cooler" not in drawn
    assert "cooler changes no prediction" in browser.text("#charts")


# Large pages: terms in files beside the page, served to this machine alone.

REPAIRS = {"reweighting": Tilted(), "set_translation": Moved()}


@pytest.fixture(scope="module")
def world_parts(tmp_path_factory):
    exposure, y = make_exposure(groups=2, nodes=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnn_repair.reporting.payload.PART_BYTES", 900)
        path = tmp_path_factory.mktemp("parts") / "big page.html"
        report(exposure, y, path, repairs=REPAIRS, single_file=False)
    whole = report(exposure, y, path.with_name("whole.html"), repairs=REPAIRS)
    return path, whole, gather(exposure, y, repairs=REPAIRS)


@contextmanager
def served(path):
    with PageServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_parts_together_are_the_whole(world_parts):
    path, whole, evidence = world_parts
    split, one = payload_of(path), payload_of(whole)
    assert "parts" not in one and not needs_server(whole)
    assert needs_server(path)
    edges, digest = split["parts"]["edges"], split["parts"]["digest"]
    assert edges[0] == 0 and edges[-1] == len(evidence.nodes) and len(edges) > 4
    folder = parts_folder(path)
    names = [f"{digest}-{k}.json" for k in range(len(edges) - 1)]
    pieces = [json.loads((folder / name).read_text()) for name in names]
    for name in ("rows", "coefficients", "repair_0_coefficients"):
        assert name not in split["arrays"]
        joined = np.concatenate([decoded(piece[name]) for piece in pieces])
        np.testing.assert_array_equal(joined, decoded(one["arrays"][name]))
    table = json.loads((folder / f"{digest}-table.json").read_text())
    assert table["contributions"] == one["arrays"]["contributions"]
    starts = evidence.starts
    for k, piece in enumerate(pieces):
        assert len(decoded(piece["rows"])) == starts[edges[k + 1]] - starts[edges[k]]
    assert "connect-src 'self'" in path.read_text() and "connect-src" not in whole.read_text()


def test_size_decides_and_old_parts_go(tmp_path, monkeypatch):
    exposure, y = make_exposure()
    path, folder = tmp_path / "r.html", tmp_path / "r.parts"
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 1000)
    report(exposure, y, path, single_file=None)
    first = {file.name for file in folder.iterdir()}
    assert len(first) == 2
    (folder / "mine.txt").write_text("not a part")
    other, labels = make_exposure(seed=9)
    report(other, labels, path, single_file=None)
    second = {file.name for file in folder.iterdir()}
    assert "mine.txt" in second and not first & second and len(second) == 3
    (folder / "mine.txt").unlink()
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 10**9)
    report(exposure, y, path, single_file=None)
    assert not folder.exists()
    monkeypatch.setattr("gnn_repair.reporting.writing.SINGLE_BYTES", 1000)
    report(exposure, y, path)
    assert not folder.exists()
    with pytest.raises(InputError, match="give True, False or None"):
        report(exposure, y, path, single_file=3)


def ask(server, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_knows_the_page_and_its_parts_only(world_parts, tmp_path):
    path, _, _ = world_parts
    (path.parent / "secret.json").write_text("{}")
    (parts_folder(path) / "secret.json").write_text("{}")
    name = f"{payload_of(path)['parts']['digest']}-0.json"
    with served(path) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server, "/") == (200, path.read_bytes())
        assert ask(server, "/big%20page.html")[0] == 200
        assert ask(server, f"/big%20page.parts/{name}")[0] == 200
        for other in (
            "/secret.json", "/big%20page.parts/secret.json", "/whole.html", "/../whole.html",
            f"/big%20page.parts/../{name}", f"/big%20page.parts/%2e%2e/{name}", "//etc/passwd",
            f"/big%20page.parts/{'0' * 12}-0.json",
        ):  # fmt: skip
            assert ask(server, other)[0] == 404, other
        assert ask(server, "/", "evil.example:80")[0] == 404
    with pytest.raises(InputError, match="is no file; name a page"):
        PageServer(tmp_path / "nothing.html")


@needs_browser
def test_a_browser_reads_parts_on_demand(browser, world_parts):
    path, whole, evidence = world_parts
    read = (
        "return [document.querySelector('#certificate').textContent,"
        " document.querySelector('#terms').textContent,"
        " document.querySelector('#plane .hull').getAttribute('points')]"
    )
    expected = {}
    for i in (0, 20, 59):
        browser.open(whole, f"#node={evidence.nodes[i]}")
        expected[i] = browser.run(read)
    with served(path) as server:
        browser.resize(1360)
        browser.driver.get("about:blank")
        browser.requests()
        for i in (0, 20, 59, 0):
            browser.driver.get(f"{server.address}#node={evidence.nodes[i]}")
            browser.until(
                "document.querySelector('#node-head h2')?.textContent === arguments[0]",
                f"Node {evidence.nodes[i]}",
            )
            assert browser.run(read) == expected[i]
        asked = [url for url in browser.requests() if "parts" in url]
        assert all(url.startswith(server.address) for url in asked)
        assert 4 <= len(asked) < 10  # the table once, then one part a range
        assert browser.messages() == []
    browser.open(path, f"#node={evidence.nodes[0]}")  # as a file
    browser.until("document.getElementById('notice-text').textContent.includes('gnn-repair view')")
    browser.messages()


def test_view_opens_a_page_or_writes_that_of_a_store(world_parts, tmp_path, monkeypatch):
    path, whole, _ = world_parts
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    run = CliRunner().invoke(app, ["view", str(whole)])
    assert run.exit_code == 0 and opened == [whole.resolve().as_uri()]
    run = CliRunner().invoke(app, ["view", str(whole), "--no-browser"])
    assert run.output.strip() == whole.resolve().as_uri() and len(opened) == 1
    served_at = []
    monkeypatch.setattr(PageServer, "serve_forever", lambda self: served_at.append(self.address))
    run = CliRunner().invoke(app, ["view", str(path)])
    assert run.exit_code == 0 and opened[1] == served_at[0]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", served_at[0])
    with pytest.raises(InputError, match="is no file"):
        CliRunner().invoke(app, ["view", str(tmp_path / "x.html")], catch_exceptions=False)


def test_what_learned_from_validation_labels_is_not_chosen_by_them():
    exposure, y = make_exposure()
    perfect, val = 9.0 * torch.nn.functional.one_hot(y, 4).double(), torch.arange(20)
    for name, method in METHODS.items():
        for written in (name, name.replace("_", "-")):
            found = best_on({written: perfect}, exposure, y, val, 0)
            assert found == (name if method.by_default else None)
    for kind in (KeptPrediction, FittedCrossFit):  # whatever its user calls it
        assert best_on({"mine": object.__new__(kind)}, exposure, y, val, 0) is None


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


def test_a_member_of_a_stack_is_gathered_as_it_would_be_alone():
    """Its own column of the mask, its own answers of every kind of repair."""
    exposure, y = make_exposure(members=3, groups=2)
    mask = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    kinds = {"reweighting": Tilted(), "set_translation": Moved(), "mine": torch.rand(40, 4)}
    for member in range(3):
        found = gather(exposure, y, mask, member=member, repairs=kinds)
        alone = gather(exposure.member(member), y, mask[:, member], repairs=kinds)
        for name in ("nodes", "frozen_logits", "margin", "witness", "degree"):
            np.testing.assert_allclose(getattr(found, name), getattr(alone, name), err_msg=name)
        for one, other in zip(found.corrections, alone.corrections, strict=True):
            np.testing.assert_allclose(one.logits, other.logits, err_msg=one.name)
