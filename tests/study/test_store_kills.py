"""The campaign against the store: a short sample, and faults planted for it to find."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest

from gnn_repair.study import PAPER, Run, Store
from tests.campaigns import CampaignResult
from tests.campaigns.__main__ import main
from tests.campaigns.store_kills import _check, _hear, campaign, make_record


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


def test_a_sound_store_has_no_fault(root):
    assert judged(root) == []


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


def test_a_word_that_is_cut_off_counts_for_nothing():
    kept: dict[Run, int] = {}
    for line in ("written 3 12345 .", "written 4 12", "begin 5 7 .", "", "written 6 9"):
        _hear(line, kept, {}, Counter())
    assert kept == {Run("kills", "writer", 3): 12345}


def fake(faults):
    def run(seed, seconds, on_progress=None):
        on_progress("half way")
        return CampaignResult("store", 12, faults, {"kills": 12, "seed seen": seed})

    return run


@pytest.mark.parametrize(("faults", "code"), [((), 0), (("one is lost",), 1)])
@pytest.mark.parametrize("form", ["table", "json"])
def test_the_command_prints_seed_and_table_and_fails_on_faults(
    monkeypatch, capsys, faults, code, form
):
    monkeypatch.setattr("tests.campaigns.store_kills.campaign", fake(faults))
    line = ["--minutes", "0.01", "--only", "store", "--seed", "9", "--format", form]
    monkeypatch.setattr(sys, "argv", ["campaigns", *line])
    with pytest.raises(SystemExit) as caught:
        main()
    assert int(caught.value.code or 0) == code
    output = capsys.readouterr()
    assert "store: half way" in output.err
    assert all(fault in output.err for fault in faults)
    if form == "json":
        (row,) = json.loads(output.out)
        assert (row["seed"], row["tried"], row["faults"]) == (9, 12, len(faults))
        assert (row["sentences"], row["details"]["seed seen"]) == (list(faults), 9)
    else:
        assert output.out.startswith("seed 9\n")
        assert "kills 12" in output.out


@pytest.mark.parametrize(
    "line",
    [
        *(["--minutes", text] for text in ("0", "nan", "-1", "inf")),
        *(["--only", text] for text in ("nonsense", "")),
        *(["--seed", text] for text in ("-1", "x")),
    ],
    ids=" ".join,
)
def test_a_bad_line_runs_no_campaign(monkeypatch, capsys, line):
    monkeypatch.setattr(sys, "argv", ["campaigns", *line])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    assert caught.value.code == 2 and not said.out
    assert line[0] in said.err or "unknown campaign" in said.err
