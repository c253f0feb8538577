"""Mutants that change nothing: each one listed exists, with a reason."""

from __future__ import annotations

from pathlib import Path

from tools.mutation.__main__ import EQUIVALENT
from tools.mutation.equivalent import read_equivalent
from tools.mutation.mutants import mutants_of

ROOT = Path(__file__).parents[1]


def test_what_is_listed_as_changing_nothing_exists_and_has_a_reason(monkeypatch):
    monkeypatch.chdir(ROOT)
    listed = read_equivalent(EQUIVALENT)
    assert all(listed.values())
    names = {key.split(": ")[0] for key in listed}
    assert not set(listed) - {m.key for name in names for m in mutants_of(Path(name))}
