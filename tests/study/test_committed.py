"""The committed results: what the documentation prints of them, and how earlier versions kept them.

The tables in docs/results/reproduction.md are the command's output on the committed file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnn_repair.published import published
from gnn_repair.results.protocol import digest_of
from gnn_repair.results.records import chosen_methods
from gnn_repair.results.rendering import RENDERERS, facts
from gnn_repair.results.store import Packed, current_methods
from gnn_repair.study import INDEPENDENT, PAPER, Store, make_tables

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results" / "independent.jsonl"
PAPERS = ROOT / "results" / "paper.jsonl"
PAGE = ROOT / "docs/results/reproduction.md"
LEGACY = "f5ac0ef9f0b2"

pytestmark = pytest.mark.skipif(not COMMITTED.exists(), reason="not in a checkout")


@pytest.fixture(scope="module")
def held():
    return Packed(COMMITTED)


@pytest.fixture(scope="module")
def printed(held):
    return RENDERERS["markdown"](make_tables(held.records(INDEPENDENT.digest)))


def test_all_of_it_is_there_and_current(held):
    records = list(held.records(INDEPENDENT.digest))
    assert held.digests() == [INDEPENDENT.digest]
    assert len(records) == 640
    assert len({(r.dataset, r.backbone) for r in records}) == 64
    for record in records:
        assert set(current_methods(record, INDEPENDENT)) == set(chosen_methods())


def test_the_documentation_prints_the_paper_s_tables():
    tables = make_tables(Packed(PAPERS).records(PAPER.digest))
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index("## Exact-mass oracle") :] == RENDERERS["markdown"](tables)


IDENTIFIED = [(b, d) for b in ("sgc", "mixhop", "h2gcn") for d in ("cora", "citeseer")]
IDENTIFIED += [(b, d) for b in ("mixhop", "h2gcn") for d in ("chameleon", "actor")]
SHEETS = {
    "Frozen": ("frozen", 1),
    "True-class reach (%)": ("true_class_reach", 1),
    "Error reach (%)": ("error_reach", 1),
    "Active support": ("support", 2),
}


def test_forty_figures_of_frozen_models_are_the_published_ones_to_the_last_digit():
    held = list(Packed(PAPERS).records(PAPER.digest))
    assert len(held) == 480
    found = {(f["sheet"], f["row"], f["column"]): f["value"] for f in facts(make_tables(held))}
    for sheet, (table, digits) in SHEETS.items():
        for backbone, dataset in IDENTIFIED:
            expected = published()["tables"][table]["cells"][backbone][dataset]
            gap = abs(found[sheet, backbone, dataset] - expected)
            assert gap <= 0.5 * 10**-digits + 1e-9, (sheet, backbone, dataset)


def test_kept_as_earlier_versions_kept_it_it_is_the_same(held, printed, tmp_path):
    """One file a run below a folder that is named after the whole tree of settings."""
    tree = held.settings(INDEPENDENT.digest)
    del tree["data"], tree["backbones"]["self_loops"], tree["backbones"]["zero_stream_biases"]
    assert digest_of(tree) == LEGACY
    folder = tmp_path / "store" / LEGACY
    folder.mkdir(parents=True)
    (folder / "protocol.json").write_text(json.dumps(tree, indent=1))
    for record in held.records(INDEPENDENT.digest):
        place = folder / record.dataset / record.backbone / f"split-{record.split}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({**record.as_json(), "protocol": LEGACY}, indent=1))
    old = Store(tmp_path / "store")
    assert list(old.records(INDEPENDENT.digest)) == list(held.records(INDEPENDENT.digest))
    assert RENDERERS["markdown"](make_tables(old.records(INDEPENDENT.digest))) == printed
