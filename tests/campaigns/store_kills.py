"""Writers of a store killed at any moment: what was reported as written is there, whole, once.

A process writes records, replaces some and records failures, and says each time *after* a write
that it is done. It is killed with SIGKILL at a random moment. Everything it said must then be in
the store; whatever else is there must be whole; nothing may be damaged, doubled or in the way of
the next writer, who goes on in the same store.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gnn_repair.results.protocol import PAPER
from gnn_repair.results.records import Run, RunRecord
from gnn_repair.results.store import Store
from tests.campaigns import CampaignResult
from tests.helpers.study.planted_records import make_record as planted_record

SPLITS = 40
"""Addresses a writer goes round; small enough that it replaces its own records all the time."""
EVERY = 5.0
"""Seconds between two words about the progress."""


def campaign(
    seed: int, seconds: float, on_progress: Callable[[str], None] | None = None
) -> CampaignResult:
    """Start and kill writers for ``seconds``; at least one."""
    draw, seen = random.Random(seed), Counter[str]()
    faults: list[str] = []
    end, spoke = time.monotonic() + seconds, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gnn-repair-kills-") as scratch:
        kept: dict[Run, int] = {}
        while not seen["kills"] or time.monotonic() < end:
            faults += _one_kill(Path(scratch), draw, kept, seen)
            if on_progress is not None and time.monotonic() - spoke > EVERY:
                spoke = time.monotonic()
                on_progress(f"{seen['kills']} kills, {len(faults)} faults")
    return CampaignResult("store", seen["kills"], tuple(faults), dict(seen))


def _one_kill(
    root: Path, draw: random.Random, kept: dict[Run, int], seen: Counter[str]
) -> list[str]:
    """One writer's life; ``kept`` holds the newest value that was reported of every run."""
    number = draw.randrange(2**31)
    command = [sys.executable, "-m", "tests.campaigns.store_kills", str(root), str(number)]
    home = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline()]
        time.sleep(draw.expovariate(1 / 0.05))
        writer.kill()
        said += writer.stdout.read().splitlines()
    begun: dict[Run, int] = {}
    for line in said:
        parts = line.split()
        if len(parts) != 4 or parts[3] != ".":
            continue  # the last one may be cut off
        run, value = Run("kills", "writer", int(parts[1])), int(parts[2])
        seen[parts[0]] += 1
        if parts[0] == "begin":
            begun[run] = value
        elif parts[0] == "written":
            kept[run] = value
            begun.pop(run, None)
    seen["kills"] += 1
    return check(root, kept, begun, number)


def check(root: Path, kept: dict[Run, int], begun: dict[Run, int], number: int) -> list[str]:
    """Compare the store with what was said, by reading every file anew.

    Unfinished files are hidden and harmless; nothing else may be there.
    """
    faults = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = {record.run: record for record in Store(root).records(PAPER.digest)}
    faults += [str(warning.message) for warning in said]
    for run, value in kept.items():
        if run not in found:
            faults.append(f"{run} was written and is not there")
        elif (there := found[run].members) not in (value, begun.get(run)):
            faults.append(f"{run} holds {there} where {value} was written")
    for run, record in found.items():
        if record != make_record(run.split, record.members):
            faults.append(f"{run} is not whole")
        # One that was put in place before its writer could say so is a record like any other.
        kept[run] = record.members
    for path in [path for path in root.rglob("*") if path.is_file()]:
        if path.name.startswith("."):
            path.unlink()
        elif not path.name.endswith(".json"):
            faults.append(f"{path.name} was left behind")
        elif path.name.endswith(".failed.json") and not path.read_text().endswith("}\n"):
            faults.append(f"{path.name} is torn")
    return [f"writer {number}: {fault}" for fault in faults]


def make_record(split: int, value: int) -> RunRecord:
    """A record that says ``value`` in many places, so that a mixture of two would show."""
    share = 0.1 + value % 800 / 1000
    said = {"graph": {"nodes": value}, "members": value, "seconds": {"total": value}}
    note = {"note": f"{value} " * 200}
    return planted_record("kills", "writer", split, share, environment=note, **said)


def write(root: str, seed: int) -> None:
    """The writer: never ends by itself."""

    def say(word: str) -> None:
        """One write to the pipe, so that a kill cannot cut it."""
        os.write(1, f"{word} {split} {value} .\n".encode())

    store, draw = Store(root), random.Random(seed)
    store.begin(PAPER)
    while True:
        split, value = draw.randrange(SPLITS), draw.randrange(1, 10**6)
        if draw.random() < 0.1:
            store.put_failure(PAPER.digest, Run("kills", "writer", SPLITS + split), "planted", "")
            say("failed")
        else:
            say("begin")
            store.put(make_record(split, value))
            say("written")


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
