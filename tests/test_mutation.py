"""The mutation tool: every change is made, and a fate follows from the tests alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tools.mutation.mutants import mutants_of

ROOT = Path(__file__).parents[1]
MODULE = '''
"""Words are left alone."""
LIMIT: float = 0.5


def larger(a, b=1):
    if not a < b and b > 0:
        check(a)
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
    versions = [ast.unparse(mutant.tree) for mutant in mutants_of(path)]
    assert len(set(versions)) == len(versions) == 12
    assert original not in versions


def test_a_noticed_mutant_is_killed_and_an_unnoticed_one_survives(tmp_path):
    (tmp_path / "pair.py").write_text("def both(a, b):\n    return a + b\n\n\nSPARE = 3\n")
    (tmp_path / "test_pair.py").write_text(
        "from pair import both\n\n\ndef test_both():\n    assert both(2, 3) == 5\n"
    )
    code = (
        "from pathlib import Path\n"
        "from tools.mutation.mutants import mutants_of\n"
        "from tools.mutation.trials import run_all\n"
        "mutants = list(mutants_of(Path('pair.py')))\n"
        "for trial in run_all(mutants, ['test_pair.py'], 1, 60):\n"
        "    print(trial.fate, trial.mutant.change)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [
        "killed Add becomes Sub in `return a + b`",
        "survived 3 becomes 4 in `SPARE = 3`",
    ]
