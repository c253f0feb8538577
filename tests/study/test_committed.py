"""The committed results: what the documentation prints of them, and how earlier versions kept them.

The tables in docs/REPRODUCTION.md are the command's output on the committed file, to the letter.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnn_repair.study import INDEPENDENT, Store, make_tables
from gnn_repair.study.identity import current_methods
from gnn_repair.study.methods import METHODS
from gnn_repair.study.packed import Packed
from gnn_repair.study.protocol import digest_of
from gnn_repair.study.rendering import RENDERERS

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results" / "independent.jsonl"
PAGE = ROOT / "docs" / "REPRODUCTION.md"
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
    assert len({(r["dataset"], r["backbone"]) for r in records}) == 64
    for record in records:
        assert set(current_methods(record, INDEPENDENT)) == {"oracle", *METHODS}


def test_the_documentation_prints_these_tables(printed):
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index("## Exact-mass oracle") :] == printed


def test_kept_as_earlier_versions_kept_it_it_is_the_same(held, printed, tmp_path):
    """One file a run below a folder that is named after the whole tree of settings."""
    tree = held.settings(INDEPENDENT.digest)
    del tree["data"], tree["backbones"]["self_loops"], tree["backbones"]["zero_stream_biases"]
    assert digest_of(tree) == LEGACY
    folder = tmp_path / "store" / LEGACY
    folder.mkdir(parents=True)
    (folder / "protocol.json").write_text(json.dumps(tree, indent=1))
    for record in held.records(INDEPENDENT.digest):
        place = folder / record["dataset"] / record["backbone"] / f"split-{record['split']}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({**record, "protocol": LEGACY}, indent=1))
    old = Store(tmp_path / "store")
    assert list(old.records(INDEPENDENT.digest)) == list(held.records(INDEPENDENT.digest))
    assert RENDERERS["markdown"](make_tables(old.records(INDEPENDENT.digest))) == printed
