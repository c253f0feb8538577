"""The campaign against the store: a short sample, and faults planted for it to find."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from gnn_repair.study import PAPER, Run, Store
from tests.campaigns.store_kills import _check, campaign, make_record


def test_a_few_kills_lose_nothing():
    """`make campaign ARGS="--only store --minutes 10"` kills some three thousand."""
    said: list[str] = []
    found = campaign(seed=5, seconds=3.0, on_progress=said.append)
    assert found.name == "store"
    assert found.faults == ()
    assert found.tried == found.details["kills"] >= 1
    assert found.details["written"] >= 1


@pytest.fixture
def root(tmp_path):
    store = Store(tmp_path)
    store.begin(PAPER)
    for split in range(3):
        store.put(make_record(split, 100 + split))
    return tmp_path


KEPT = {Run("kills", "writer", split): 100 + split for split in range(3)}


def judged(root, kept=KEPT, begun=None):
    return _check(root, dict(kept), begun or {}, Counter(), 7)


def place(root, split):
    return root / PAPER.digest / "kills" / "writer" / f"split-{split}.json"


def test_planted_faults_are_found(root):
    place(root, 0).unlink()
    assert judged(root) == ["writer 7: kills × writer, split 0 was written and is not there"]
    Store(root).put(make_record(0, 55))
    assert "holds 55 where 100 was written" in judged(root)[0]
    assert judged(root, begun={Run("kills", "writer", 0): 55}) == []
    Store(root).put(make_record(0, 100))
    text = place(root, 1).read_text()
    place(root, 1).write_text(text[: len(text) // 2])
    faults = judged(root)
    assert any("truncated or not JSON" in fault for fault in faults)
    assert any("split 1 was written and is not there" in fault for fault in faults)
    mixed = json.loads(text)
    mixed["graph"]["nodes"] = 99
    place(root, 1).write_text(json.dumps(mixed))
    assert judged(root) == ["writer 7: kills × writer, split 1 is not whole"]
    place(root, 1).write_text(text)
    (place(root, 1).parent / "split-01.json").write_text(text)
    assert "is not the name of a result" in judged(root)[0]
