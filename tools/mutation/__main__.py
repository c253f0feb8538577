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

TESTS = {
    "backbones": ["backbones", "exposure/test_convolutions.py"],
    "cli": ["cli"],
    "datasets": ["datasets"],
    "exposure": ["exposure", "oracle/heads", "repair/test_repaired*.py", "test_diagnosis.py"],
    "kernels": ["kernels", "backbones", "repair/test_factorised.py"],
    "oracle": ["oracle", "exposure/test_value.py", "exposure/test_calling.py", "test_diagnosis.py"],
    "repair": ["repair", "test_paper_numbers.py", "test_settings.py"],
    "reporting": ["report"],
    "results": ["study"],
    "study": ["study"],
    "": [
        "test_[adfst]*.py",
        "test_bad_calls.py",
        "oracle/test_reach.py",
        "study/test_running.py",
    ],
}
"""A folder of the package, and the tests that should notice when it is wrong."""
SLOW = [
    "tests/repair/test_gpu.py",
    "tests/test_file_mutations.py",
    "tests/test_architecture.py",
]
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
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--output", type=Path, help="write every trial as a JSON line")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "mutation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or Path(folder) / "trials"
        every = _groups(None)
        for tests, modules in _groups(options.module).items():
            mutants = [m for path in modules for m in _sample(path, options.sample, options.seed)]
            show = functools.partial(_show, output=output)
            trials = Trials(mutants, every[tests], show, options.cache, options.most, options.jobs)
            _in_a_process(trials, list(tests))
        _summarise(output)


def _groups(wanted: list[str] | None) -> dict[tuple[str, ...], list[Path]]:
    """Modules by the tests that they share."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for name, tests in TESTS.items():
        folder = Path("gnn_repair", name)
        places = tuple(str(place) for test in tests for place in sorted(Path("tests").glob(test)))
        for file in sorted(folder.rglob("*.py") if name else folder.glob("*.py")):
            asked = not wanted or any(file.match(part) for part in wanted)
            if asked and file.name != "__init__.py" and not file.match("*_gpu.py"):
                found.setdefault(places, []).append(file)
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
        for place in (record["path"], str(Path(record["path"]).parent)):
            total[place] += 1
            alive[place] += record["fate"] == "survived"
    for path, count in sorted(total.items()):
        share = 100 * alive[path] / count
        print(f"{path}: {alive[path]} of {count} mutants survived ({share:.1f} %)")
    count, left = sum(total.values()) // 2, sum(alive.values()) // 2
    print(f"in all: {left} of {count} survived ({100 * left / max(count, 1):.1f} %)")


if __name__ == "__main__":
    main()
