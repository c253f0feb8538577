"""Tables as they are printed: LaTeX, the documentation's pages, and the paper's own figures."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gnn_repair.catalog import DATASETS, missing_files
from gnn_repair.methods import NOTHING
from gnn_repair.published import published_numbers
from gnn_repair.results.averages import Figure, Sheet, Table
from gnn_repair.results.records import check_methods
from gnn_repair.results.rendering import as_markdown, facts, latex
from gnn_repair.results.store import PackedResults, current_methods, pack
from gnn_repair.study import PAPER, PROTOCOLS, RENDERERS, Store, make_tables, run_study
from tests.helpers.study.planted_records import make_record, stored
from tools.beyond import LINE, TABLES, gathered, written

# Names and words of one's own in LaTeX and Markdown.


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("100% of A_b & #1", r"100\% of A\_b \& \#1"),
        ("A\nb|<c>", r"A b\textbar{}\textless{}c\textgreater{}"),
        ("\\}{~^$", r"\textbackslash{}\}\{\textasciitilde{}\textasciicircum{}\$"),
        ("Inside D_v, α = Âᵖ", r"Inside $\mathcal{D}_v$, $\alpha$ = $\hat{A}$$^{p}$"),
        ("−1 ± 2–3 × λ…", r"$-$1 $\pm$ 2--3 $\times$ $\lambda$\ldots{}"),
    ],
)
def test_every_name_is_printed_as_it_is(name, code):
    """In a table whose title, columns, rows and cells have it."""
    rows = {name: (Figure(1.5, best=True), name), "average": (Figure(-2.0, 3.0, tolerance=1), "")}
    planted = [Table("planted", name, (Sheet(name, "case", (name, "words"), rows, name),))]
    text = latex(planted)
    assert text.isascii() and text.count(code) == 6
    assert rf"{code} & \textbf{{1.5}} & {code} \\" in text
    assert r"Average & $-$2.0 (3.0)$^{!}$ &" in text
    lines = [line for line in as_markdown(planted).splitlines() if line[:1] == "|"]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines if "\n" not in name} <= {4}


# The tables beyond the paper, from planted numbers; the page that prints them.

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "results" / "ladder.jsonl", ROOT / "docs/results/beyond.md"


@pytest.mark.skipif(not RECORDS.exists(), reason="the records are not in this checkout")
def test_the_page_prints_the_committed_records():
    text = PAGE.read_text(encoding="utf-8")
    assert written(text) == text


def test_what_no_split_confirms_is_no_advice():
    held = {"out-of-fold frozen": 0.7, "out-of-fold messages": 0.8}
    alone = make_record("cora", "gcn", 0, methods={"evidence_ladder": held})
    (fact,) = (f for f in facts(make_tables([alone], TABLES)) if f["column"] == "advice")
    assert fact["text"] == NOTHING
    assert make_tables([make_record("cora", "gcn", 0, methods={})], TABLES)[1].sheets == ()


def test_files_are_gathered_and_each_method_of_a_run_is_taken_once(tmp_path):
    """Of several files the first one that has it."""

    def written_file(name, *held):
        records = (make_record("cora", "gcn", k, methods=own) for k, own in enumerate(held))
        stored(tmp_path / name, *records)
        pack(tmp_path / name, tmp_path / f"{name}.jsonl")

    first, other, control = {"test": 0.82}, {"test": 0.9}, {"test": 0.83, "test single": 0.8}
    both = {"evidence_ladder": other, "retrained_backbone": control}
    written_file("ladder", {"evidence_ladder": first})
    written_file("retrained", both, both)
    found = [(r.split, r.methods) for r in gathered(tmp_path)]
    later = {"retrained_backbone": control}
    assert found == [(0, {"evidence_ladder": first}), (0, later), (1, both)]
    page = written(f"# A page\n\n{LINE}old tables", tmp_path)
    assert page.startswith(f"# A page\n\n{LINE}## The ladder beside its controls")
    assert "covers 1 of the paper's" in page


# The committed results, and what the documentation prints of them.

COMMITTED = {"paper": 480, "independent": 640}
PAGE_COMMITTED = ROOT / "docs/results/reproduction.md"
in_a_checkout = pytest.mark.skipif(not RECORDS.exists(), reason="not in a checkout")


@pytest.fixture(scope="module")
def committed():
    return {
        name: list(PackedResults(ROOT / f"results/{name}.jsonl").records(PROTOCOLS[name].digest))
        for name in COMMITTED
    }


@in_a_checkout
def test_all_of_it_is_there_and_current(committed):
    for name, count in COMMITTED.items():
        records = committed[name]
        assert len(records) == count
        assert len({(r.dataset, r.backbone) for r in records}) == count // 10
        for record in records:
            assert set(current_methods(record, PROTOCOLS[name])) >= set(check_methods())


@in_a_checkout
def test_the_documentation_prints_the_paper_s_tables(committed):
    text = PAGE_COMMITTED.read_text(encoding="utf-8")
    printed = RENDERERS["markdown"](make_tables(committed["paper"]))
    assert text[text.index("## Exact-mass oracle") :] == printed


IDENTIFIED = [(b, d) for b in ("sgc", "mixhop", "h2gcn") for d in ("cora", "citeseer")]
IDENTIFIED += [(b, d) for b in ("mixhop", "h2gcn") for d in ("chameleon", "actor")]
SHEETS = {
    "Frozen": ("frozen", 1),
    "True-class reach (%)": ("true_class_reach", 1),
    "Error reach (%)": ("error_reach", 1),
    "Active support": ("support", 2),
}


@in_a_checkout
def test_how_many_figures_of_frozen_models_are_the_published_ones_to_the_last_digit(committed):
    """All forty with the identified choices, few with the independent ones."""
    for name, count in (("paper", 40), ("independent", 5)):
        tables = make_tables(committed[name], ["repair-accuracy", "exposure-oracle"])
        found = {(f["sheet"], f["row"], f["column"]): f["value"] for f in facts(tables)}
        alike = [
            (sheet, backbone, dataset)
            for sheet, (table, digits) in SHEETS.items()
            for backbone, dataset in IDENTIFIED
            if abs(
                found[sheet, backbone, dataset]
                - published_numbers()["tables"][table]["cells"][backbone][dataset]
            )
            <= 0.5 * 10**-digits + 1e-9
        ]
        assert len(alike) == count, alike


# The paper's own figures, on the real data, for backbones whose training leaves little to chance.

TOLERANCES = {"Frozen": 0.6, "True-class reach (%)": 0.6, "Error reach (%)": 2.5}


@pytest.mark.parametrize(
    ("dataset", "backbone"), [("cora", "sgc"), ("chameleon", "sgc"), ("chameleon", "mixhop")]
)
def test_published_figures_come_out(dataset, backbone, tmp_path):
    root = os.environ.get("GNN_REPAIR_DATA")
    if not root or missing_files(DATASETS[dataset], Path(root)):
        pytest.skip(f"the raw files of {dataset} are not below GNN_REPAIR_DATA")
    if not os.environ.get("GNN_REPAIR_LONG"):
        pytest.skip("trains for half a minute; GNN_REPAIR_LONG=1 runs it")
    outcome = run_study(
        [dataset], [backbone], store=tmp_path, methods=["oracle"], device="cpu", root=root
    )
    assert outcome.stored == 10
    tables = make_tables(Store(tmp_path).records(PAPER.digest))
    found = {
        fact["sheet"]: fact
        for fact in facts(tables)
        if (fact["row"], fact["column"]) == (backbone, dataset)
    }
    for sheet, tolerance in TOLERANCES.items():
        assert abs(found[sheet]["difference"]) < tolerance, found[sheet]
    support = published_numbers()["tables"]["support"]["cells"][backbone][dataset]
    assert found["Active support"]["value"] == pytest.approx(support, abs=0.05)
