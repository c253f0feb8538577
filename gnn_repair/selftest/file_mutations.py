"""Altered files: each is refused in one sentence or loads as a sound value."""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gnn_repair.errors import FileFormatError, GnnRepairError
from gnn_repair.selftest import CampaignResult
from gnn_repair.selftest.file_edits import EDITS, Parts, edit_bytes
from gnn_repair.selftest.file_subjects import Subject, fingerprint, make_subjects

SPARE_MEMORY = 64 << 20
"""Bytes a load of a file of a few kilobytes may take: far above what libraries allocate now and
then, far below what a size that was believed would take."""
KEPT_FAULTS = 50
"""Faults told in words; the rest are counted."""


def campaign(
    seed: int,
    seconds: float,
    on_progress: Callable[[str], None] | None = None,
    most: int | None = None,
) -> CampaignResult:
    """Alter saved exposures, frozen models, repairs and solutions, and load them.

    A fault is an exception other than :class:`FileFormatError`, a message of several lines, a value
    that differs from the saved one though its checksum was not made anew, a value that loads and
    does not hold what it must, and memory far beyond the file.

    Args:
        seed: the same seed tries the same files.
        seconds: when to stop.
        on_progress: told what was done every few seconds.
        most: files of each kind at most.
    """
    trial, begun, told = _Trial(random.Random(seed)), time.monotonic(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gnn-repair-") as name:
        subjects = make_subjects(Path(name))
        trial.originals = {s.name: _originals(s, Path(name) / "altered") for s in subjects}
        rounds = 0
        while time.monotonic() - begun < seconds and (most is None or rounds < most):
            for subject in subjects:
                trial.alter(subject, Path(name) / "altered")
            rounds += 1
            if on_progress and time.monotonic() - told > 2:
                told = time.monotonic()
                on_progress(f"{rounds} files of each kind, {trial.counts['faults']} faults")
    return CampaignResult(
        "altered files", rounds * len(subjects), tuple(trial.faults), dict(trial.counts)
    )


def _originals(subject: Subject, path: Path) -> list[str]:
    """What the sound files hold; loading them also compiles kernels, which takes memory once."""
    found = []
    for content in subject.files:
        path.write_bytes(content)
        found.append(fingerprint(subject.load(path)))
    return found


@dataclass
class _Trial:
    """What was tried and found."""

    rng: random.Random
    originals: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def alter(self, subject: Subject, path: Path) -> None:
        """Alter one file of this kind and load it."""
        which = self.rng.randrange(len(subject.files))
        content = subject.files[which]
        how = self.rng.choice(("bytes", *EDITS))
        # Sealed again, so that the checks behind the checksum are tried, too.
        sealed = how != "bytes" and self.rng.random() < 0.6
        if how == "bytes":
            altered = edit_bytes(content, self.rng)
        else:
            parts = EDITS[how](Parts.of(content), self.rng)
            altered = (parts.sealed() if sealed else parts).whole()
        path.write_bytes(altered)
        fault = self._outcome(subject, path, self.originals[subject.name][which], sealed)
        self.counts[f"{subject.name}: tried"] += 1
        if fault:
            self.counts["faults"] += 1
            if len(self.faults) < KEPT_FAULTS:
                told = f"{how}{', sealed again' if sealed else ''}"
                self.faults.append(f"{subject.name} ({told}): {fault}"[:500])

    def _outcome(self, subject: Subject, path: Path, original: str, sealed: bool) -> str:
        """What is wrong with how a load ended; empty where nothing is."""
        memory = _Memory()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = subject.load(path)
        except FileFormatError as error:
            self.counts[f"{subject.name}: refused"] += 1
            return "a message of several lines" if "\n" in str(error) else memory.fault()
        except Exception as error:
            self.counts[f"{subject.name}: foreign exceptions"] += 1
            return f"{type(error).__name__}: {error}"
        if fingerprint(value) == original:
            self.counts[f"{subject.name}: unchanged"] += 1
            return memory.fault()
        if not sealed:
            self.counts[f"{subject.name}: silent changes"] += 1
            return "loaded with another content"
        self.counts[f"{subject.name}: other sound values"] += 1
        return memory.fault() or _unsound(subject, value) or _fault_in_use(subject, value)


def _unsound(subject: Subject, value: object) -> str:
    try:
        return subject.judge(value)
    except Exception as error:  # a value so broken that it cannot even be judged
        return f"loaded, and when judged {type(error).__name__}: {error}"


def _fault_in_use(subject: Subject, value: object) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.use(value)
    except GnnRepairError:
        return ""
    except Exception as error:
        return f"loaded, and in use {type(error).__name__}: {error}"
    return ""


class _Memory:
    """The most memory this process had since this object was made, where the system tells it."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak
            self.before: int | None = self._peak()
        except OSError:
            self.before = None

    @staticmethod
    def _peak() -> int:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
        raise OSError("no peak is told")

    def fault(self) -> str:
        """Whether far more memory was taken than the file has bytes."""
        grown = 0 if self.before is None else self._peak() - self.before
        return f"took {grown >> 20} MiB" if grown > SPARE_MEMORY else ""
