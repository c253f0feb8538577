"""The mutation tool: every change is made, and a fate follows from the tests alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tools.mutation.__main__ import EQUIVALENT
from tools.mutation.equivalent import read_equivalent
from tools.mutation.mutants import mutants_of

ROOT = Path(__file__).parents[1]
MODULE = '''
"""Words are left alone."""
LIMIT: float = 0.5


def larger(a, b=1):
    if not a < b and b > 0:
        check(a, zip(a, b, strict=True))
        return max(a, -b) + LIMIT
    raise ValueError(f"{a} + 1")
'''


def test_every_change_is_made_once_and_words_are_left_alone(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    lines = {mutant.change.split(" in `")[0] for mutant in mutants_of(path)}
    assert lines == {
        "0.5 becomes 1.0", "1 becomes 2", "condition is negated", "and becomes or",
        "Not is dropped", "Lt becomes LtE", "Gt becomes GtE", "0 becomes 1", "call is left out",
        "max becomes min", "USub is dropped", "Add becomes Sub",
    }  # fmt: skip
    original = ast.unparse(ast.parse(MODULE))
    versions = [ast.unparse(mutant.changed[0]) for mutant in mutants_of(path)]
    assert len(set(versions)) == len(versions) == 12
    assert original not in versions


PAIR = """
from dataclasses import dataclass, field

STEP = 2
SPARE = 3


@dataclass(frozen=True)
class Base:
    width: int = 4
    depth: int = field(default=5)

    def area(self, height=6):
        def twice(number):
            return number * 7

        return twice(self.width) + height


@dataclass(frozen=True)
class Heir(Base):
    depth: int = 8


def idle(a):
    return a - 1
"""
TESTS = """
import pytest
from pair import STEP, Base, Heir, idle


@pytest.fixture(scope="module")
def heir():
    return Heir()


def test_heir(heir):
    assert (heir.width, heir.depth) == (4, 8)


def test_base():
    assert (STEP, Base.width, Base().depth, Base(1).area()) == (2, 4, 5, 13)


def test_nothing():
    assert idle
"""


def test_a_mutant_is_killed_by_the_tests_that_reach_it_and_by_nothing_else(tmp_path):
    (tmp_path / "pair.py").write_text(PAIR)
    (tmp_path / "test_pair.py").write_text(TESTS)
    code = (
        "from pathlib import Path\n"
        "from tools.mutation.mutants import mutants_of\n"
        "from tools.mutation.trials import Trials, run_tests\n"
        "def tell(t): print(t.fate, t.tests, t.mutant.change.split(' in ')[0], flush=True)\n"
        "mutants = list(mutants_of(Path('pair.py')))\n"
        "run_tests(Trials(mutants, [Path('pair.py')], tell, Path('cache')), ['test_pair.py'])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line for line in run.stdout.splitlines() if "becomes" in line]
    # A change that importing the module makes is tried with every cheap test.
    assert told == [
        "killed 3 2 becomes 3",
        "survived 3 3 becomes 4",
        "killed 3 4 becomes 5",
        "killed 3 5 becomes 6",
        "killed 1 6 becomes 7",
        "killed 1 Mult becomes Div",
        "killed 1 7 becomes 8",
        "killed 1 Add becomes Sub",
        "killed 3 8 becomes 9",
        "survived 0 Sub becomes Add",
        "survived 0 1 becomes 2",
    ]


def test_what_is_listed_as_changing_nothing_exists_and_has_a_reason(monkeypatch):
    monkeypatch.chdir(ROOT)
    listed = read_equivalent(EQUIVALENT)
    assert all(listed.values())
    names = {key.split(": ")[0] for key in listed}
    assert not set(listed) - {m.key for name in names for m in mutants_of(Path(name))}
