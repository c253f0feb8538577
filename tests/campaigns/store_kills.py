"""Writers of a store killed at any moment: what was reported as written is there, whole, once.

A process writes records, replaces some and records failures, and says each time *after* a write
that it is done. It is killed with SIGKILL at a random moment. Everything it said must then be in
the store; whatever else is there must be whole; nothing may be damaged, doubled or in the way of
the next writer, who goes on in the same store.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gnn_repair.errors import ResourceError
from gnn_repair.results.protocol import PAPER
from gnn_repair.results.records import Run, RunRecord
from gnn_repair.results.store import Store
from tests.campaigns import CampaignResult
from tests.helpers.study.planted_records import make_record as planted_record

SPLITS = 40
"""Addresses a writer goes round; small enough that it replaces its own records all the time."""
STARTS = 60.0
"""Seconds a writer may take until its first word, on a machine that does other things too."""
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
    writer = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        said = [_first_line(writer.stdout)]
        time.sleep(draw.expovariate(1 / 0.05))
        os.kill(writer.pid, signal.SIGKILL)
        said += writer.stdout.read().splitlines()
    finally:
        writer.kill()
        writer.wait()
    begun: dict[Run, int] = {}
    for line in said:
        _hear(line, kept, begun, seen)
    seen["kills"] += 1
    return _check(root, kept, begun, seen, number)


def _first_line(stream: IO[str]) -> str:
    if not select.select([stream], [], [], STARTS)[0]:
        raise ResourceError(f"a writer said nothing for {STARTS:.0f} s; give it a quieter machine")
    return stream.readline().rstrip("\n")


def _hear(line: str, kept: dict[Run, int], begun: dict[Run, int], seen: Counter[str]) -> None:
    """A word of the writer: about to write, or written. The last one may be cut off."""
    parts = line.split()
    if len(parts) != 4 or parts[3] != ".":
        return
    word, split, value, _ = parts
    run = Run("kills", "writer", int(split))
    if word == "begin":
        begun[run] = int(value)
    elif word == "written":
        kept[run] = int(value)
        begun.pop(run, None)
        seen["written"] += 1
    elif word == "failed":
        seen["failures written"] += 1


def _check(
    root: Path, kept: dict[Run, int], begun: dict[Run, int], seen: Counter[str], number: int
) -> list[str]:
    """Compare the store with what was said, by reading every file anew."""
    faults = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = Store(root)
        found = {record.run: record for record in store.records(PAPER.digest)}
    faults += [f"writer {number}: {warning.message}" for warning in said]
    for run, value in kept.items():
        if run not in found:
            faults.append(f"writer {number}: {run} was written and is not there")
        elif (there := found[run].members) not in (value, begun.get(run)):
            faults.append(f"writer {number}: {run} holds {there} where {value} was written")
    for run, record in found.items():
        if record != make_record(run.split, record.members):
            faults.append(f"writer {number}: {run} is not whole")
        # One that was put in place before its writer could say so is a record like any other.
        kept[run] = record.members
    faults += _strays(root, number, seen)
    return faults


def _strays(root: Path, number: int, seen: Counter[str]) -> list[str]:
    """Unfinished files are hidden and harmless; nothing else may be there."""
    faults = []
    for path in root.rglob("*"):
        if path.is_file() and path.name.startswith("."):
            seen["unfinished files"] += 1
            path.unlink()
        elif path.is_file() and not path.name.endswith(".json"):
            faults.append(f"writer {number}: {path.name} was left behind")
        elif path.name.endswith(".failed.json") and not path.read_text().endswith("}\n"):
            faults.append(f"writer {number}: {path.name} is torn")
    return faults


def make_record(split: int, value: int) -> RunRecord:
    """A record that says ``value`` in many places, so that a mixture of two would show."""
    share = 0.1 + value % 800 / 1000
    said = {"graph": {"nodes": value}, "members": value, "seconds": {"total": value}}
    note = {"note": f"{value} " * 200}
    return planted_record("kills", "writer", split, share, environment=note, **said)


def write() -> None:
    """The writer: never ends by itself."""

    def say(word: str) -> None:
        """One write to the pipe, so that a kill cannot cut it."""
        os.write(1, f"{word} {split} {value} .\n".encode())

    root, draw = sys.argv[1], random.Random(int(sys.argv[2]))
    store = Store(root)
    store.begin(PAPER)
    while True:
        split, value = draw.randrange(SPLITS), draw.randrange(1, 10**6)
        if draw.random() < 0.1:
            store.put_failure(PAPER.digest, Run("kills", "writer", SPLITS + split), "planted", "")
            say("failed")
            continue
        say("begin")
        store.put(make_record(split, value))
        say("written")


if __name__ == "__main__":
    write()
