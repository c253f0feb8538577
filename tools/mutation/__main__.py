"""``python -m tools.mutation``: the share of mutants that the tests do not notice."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from tools.mutation.mutants import mutants_of
from tools.mutation.trials import Trial, baseline, preload, read_equivalent, run_all

TESTS = {
    "gnn_repair/oracle/certificate.py": ["tests/oracle"],
    "gnn_repair/oracle/metrics.py": ["tests/oracle"],
    "gnn_repair/oracle/tables.py": ["tests/oracle"],
    "gnn_repair/oracle/solution.py": ["tests/oracle"],
    "gnn_repair/exposure/mixtures.py": ["tests/exposure"],
    "gnn_repair/exposure/value.py": ["tests/exposure", "tests/oracle"],
    "gnn_repair/study/tables.py": ["tests/study/test_tables.py"],
    "gnn_repair/study/cells.py": ["tests/study/test_tables.py"],
    "gnn_repair/repair": ["tests/repair"],
}
"""A module or folder, and the tests that should notice when it is wrong."""
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=main.__doc__)
    parser.add_argument("--module", action="append", help="only these (default: all listed)")
    parser.add_argument("--sample", type=int, default=0, help="mutants a module (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write every trial as a JSON line")
    options = parser.parse_args()
    preload()
    trials: list[Trial] = []
    for path, tests in _modules(options.module):
        mutants = list(mutants_of(path))
        if options.sample and len(mutants) > options.sample:
            mutants = random.Random(options.seed).sample(mutants, options.sample)
        limit = 3 * baseline(tests) * options.jobs + 30
        for trial in run_all(mutants, tests, options.jobs, limit):
            trials.append(trial)
            _show(trial, options.output)
    _summarise(trials)


def _modules(wanted: list[str] | None) -> list[tuple[Path, list[str]]]:
    found = []
    for name, tests in TESTS.items():
        path = Path(name)
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        found += [(file, tests) for file in files if file.name != "__init__.py"]
    if not wanted:
        return found
    return [(path, tests) for path, tests in found if any(path.match(name) for name in wanted)]


def _show(trial: Trial, output: Path | None) -> None:
    mutant = trial.mutant
    if trial.fate == "survived":
        print(f"survived  {mutant.path}:{mutant.line}  {mutant.change}", flush=True)
    if output is not None:
        record = {"key": mutant.key, "line": mutant.line, "fate": trial.fate}
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "seconds": round(trial.seconds, 1)}) + "\n")


def _summarise(trials: list[Trial]) -> None:
    equivalent = read_equivalent(EQUIVALENT)
    total, alive = Counter[Path](), Counter[Path]()
    for trial in trials:
        if trial.mutant.key not in equivalent:
            total[trial.mutant.path] += 1
            alive[trial.mutant.path] += trial.fate == "survived"
    for path, count in total.items():
        share = 100 * alive[path] / count
        print(f"{path}: {alive[path]} of {count} mutants survived ({share:.1f} %)")
    count, left = sum(total.values()), sum(alive.values())
    print(f"in all: {left} of {count} survived ({100 * left / max(count, 1):.1f} %)")


if __name__ == "__main__":
    main()
