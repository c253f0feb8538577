"""``python -m tools.mutation``: the share of mutants that the tests do not notice."""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

from tools.mutation.equivalent import read_equivalent
from tools.mutation.mutants import Mutant, mutants_of
from tools.mutation.trials import Trial, Trials, run_tests

ORACLE = [
    f"tests/oracle/test_{name}.py"
    for name in (
        *("certificate", "clauses", "reach", "solution", "sequences"),
        *("own_scale", "solver", "variants", "frames"),
    )
]
EXPOSURE = [
    "tests/exposure/test_mixtures.py",
    "tests/exposure/test_value.py",
    "tests/exposure/test_from_backbone.py",
    *ORACLE[:5],
]
REPAIR = [
    "tests/repair",
    "tests/exposure/test_focus.py",
    "tests/test_paper_numbers.py",
    "tests/test_settings.py",
    "tests/study/test_declaring.py",
]
STUDY = ["tests/study/test_tables.py", "tests/study/test_rendering.py"]
OUTPUTS = [
    "tests/oracle/labels",
    "tests/exposure/test_outputs.py",
    "tests/exposure/links",
    "tests/repair/test_label_repairs.py",
    "tests/datasets/test_planted_outputs.py",
]
POOLING = [
    "tests/exposure/pooling",
    "tests/repair/test_graph_classifiers.py",
    "tests/oracle/test_graph_evidence.py",
]
HOME = [
    "tests/repair/test_repaired_plan.py",
    "tests/repair/test_repaired_outside.py",
    "tests/repair/test_repaired_model.py",
]
BASELINE = ["tests/oracle/test_baseline.py"]
TESTS = {
    "gnn_repair/oracle/certificate.py": ORACLE,
    "gnn_repair/oracle/rates.py": ORACLE,
    "gnn_repair/oracle/metrics.py": ORACLE,
    "gnn_repair/oracle/problems.py": ORACLE,
    "gnn_repair/oracle/solution.py": ORACLE,
    "gnn_repair/exposure/value.py": EXPOSURE,
    "gnn_repair/exposure/from_model.py": HOME,
    "gnn_repair/exposure/parts.py": ["tests/exposure/test_sampled.py"],
    "gnn_repair/oracle/frames.py": ORACLE,
    "gnn_repair/oracle/baseline.py": BASELINE,
    "gnn_repair/exposure/call_arguments.py": ["tests/exposure/hetero"],
    "gnn_repair/exposure/calling.py": ["tests/exposure/test_calling.py"],
    "gnn_repair/exposure/names.py": ["tests/exposure/hetero"],
    "gnn_repair/exposure/pooling": POOLING,
    "gnn_repair/results/tables.py": STUDY,
    "gnn_repair/results/averages.py": STUDY,
    "gnn_repair/results/rendering.py": STUDY,
    "gnn_repair/repair": REPAIR,
    "gnn_repair/repair/ladder": REPAIR,
    "gnn_repair/f1.py": OUTPUTS,
    "gnn_repair/exposure/arguments.py": OUTPUTS,
    "gnn_repair/exposure/heads/logit_form.py": OUTPUTS,
    "gnn_repair/exposure/links": OUTPUTS,
    "gnn_repair/oracle/solver.py": OUTPUTS,
    "gnn_repair/oracle/questions/ranges.py": OUTPUTS,
}
"""A module or folder, and the tests that should notice when it is wrong."""
SLOW = ["tests/repair/test_repair_bench.py", "tests/repair/test_gpu.py"]
"""Tests that take long and are there for another purpose: what only they notice counts as alive."""
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=main.__doc__)
    parser.add_argument("--module", action="append", help="only these (default: all listed)")
    parser.add_argument("--sample", type=int, default=0, help="mutants a module (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--most", type=float, default=float("inf"), help="seconds of tests spent on a mutant"
    )
    parser.add_argument("--output", type=Path, help="write every trial as a JSON line")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "mutation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or Path(folder) / "trials"
        every = _groups(None)
        for tests, modules in _groups(options.module).items():
            mutants = [m for path in modules for m in _sample(path, options.sample, options.seed)]
            show = functools.partial(_show, output=output)
            _in_a_process(
                Trials(mutants, every[tests], show, options.cache, options.most), list(tests)
            )
        _summarise(output)


def _groups(wanted: list[str] | None) -> dict[tuple[str, ...], list[Path]]:
    """Modules by the tests that they share."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for name, tests in TESTS.items():
        path = Path(name)
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            asked = not wanted or any(file.match(part) for part in wanted)
            if file.name != "__init__.py" and asked:
                found.setdefault(tuple(tests), []).append(file)
    return found


def _sample(path: Path, count: int, seed: int) -> list[Mutant]:
    """Mutants of a file, those left out that are known to change nothing."""
    known = read_equivalent(EQUIVALENT)
    mutants = [mutant for mutant in mutants_of(path) if mutant.key not in known]
    if count and len(mutants) > count:
        # The file's name goes into the seed, so that like files are not cut at like places.
        mutants = random.Random(f"{seed} {path.as_posix()}").sample(mutants, count)
    return mutants


def _in_a_process(trials: Trials, tests: list[str]) -> None:
    """Each group starts from a process that has loaded nothing of the package."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(1)
        return
    code = 1
    try:
        left_out = [f"--ignore={path}" for path in SLOW]
        run_tests(trials, [*tests, *left_out])
        code = 0
    except SystemExit as reason:
        print(reason, flush=True)
    finally:
        os._exit(code)


def _show(trial: Trial, output: Path) -> None:
    mutant = trial.mutant
    if trial.fate == "survived":
        reached = f"reached by {trial.tests} tests"
        print(f"survived  {mutant.path}:{mutant.line}  {mutant.change}  {reached}", flush=True)
    record = {"path": mutant.path.as_posix(), "key": mutant.key, "line": mutant.line}
    record |= {"fate": trial.fate, "seconds": round(trial.seconds, 1), "tests": trial.tests}
    with output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _summarise(output: Path) -> None:
    total, alive = Counter[str](), Counter[str]()
    for line in output.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        total[record["path"]] += 1
        alive[record["path"]] += record["fate"] == "survived"
    for path, count in total.items():
        share = 100 * alive[path] / count
        print(f"{path}: {alive[path]} of {count} mutants survived ({share:.1f} %)")
    count, left = sum(total.values()), sum(alive.values())
    print(f"in all: {left} of {count} survived ({100 * left / max(count, 1):.1f} %)")


if __name__ == "__main__":
    main()
