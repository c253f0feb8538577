"""``gnn-repair doctor``: what a bug report needs to say about a machine.

Versions, devices, kernels, data and two trials; each line is looked up or tried, never assumed.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gnn_repair import __version__
from gnn_repair.catalog import DATASETS, data_root, missing_files
from gnn_repair.cli.options import Format, FormatOption, RootOption, emit

if TYPE_CHECKING:
    from gnn_repair.exposure import Exposure
    from gnn_repair.oracle import Solution

ROUNDING = 1e-12
"""How far the answer of an LP of nine small numbers may be off: 1e-16 a sum, with room."""

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9_.-]+)\s*(?:>=\s*([0-9.]+))?[^;]*(?:;.*extra\s*==\s*.(\w+).)?"
)
"""Name, least version and extra of a requirement as metadata spells it."""
_DEVELOPMENT = ("dev", "docs")
"""Extras that only those who work on the package need."""


@dataclass(frozen=True)
class Observation:
    """One line of the examination."""

    subject: str
    found: str
    wrong: str | None = None
    """What to do about it; None where all is well."""


def doctor(root: RootOption = None, format: FormatOption = Format.table) -> None:
    """Examine this installation: the first thing to put into a bug report.

    Exit code 1 if something is wrong.
    """
    findings = list(examine(root))
    emit([_row(finding, format) for finding in findings], format)
    if any(f.wrong for f in findings):
        raise typer.Exit(1)


def _row(finding: Observation, format: Format) -> dict[str, Any]:
    if format is Format.json:
        return vars(finding)
    words = f"{finding.found}: {finding.wrong}" if finding.wrong else finding.found
    return {"": "✗" if finding.wrong else "✓", "subject": finding.subject, "found": words}


def examine(root: str | None = None) -> Iterator[Observation]:
    """Every finding, in the order in which one would ask."""
    yield Observation("gnn-repair", f"{__version__} in {Path(__file__).parents[1]}")
    yield Observation("Python", f"{platform.python_version()} on {platform.platform()}")
    yield from _packages()
    looks = {"devices": _devices, "kernels": _kernels, "one LP": _one_lp}
    looks |= {"one certificate": _one_certificate, "data": lambda: _data(root)}
    for subject, look in looks.items():
        yield _tried(subject, look)


def _tried(subject: str, look: Callable[[], Observation]) -> Observation:
    """A finding, even where looking for it fails: this is where faults are looked for."""
    try:
        return look()
    except ImportError as error:  # ModuleNotFoundError, or a library that cannot be loaded
        return Observation(subject, f"not tried: {error}", "install it anew")
    except Exception as error:
        return Observation(subject, f"{type(error).__name__}: {error}", "report this line")


# Packages -----------------------------------------------------------------------------------------


def _packages() -> Iterator[Observation]:
    try:
        declared = metadata.requires("gnn-repair") or []
    except metadata.PackageNotFoundError:
        yield Observation("packages", "gnn-repair runs without being installed", "pip install it")
        return
    for text in declared:
        match = _REQUIREMENT.match(text)
        if match is not None and match[3] not in _DEVELOPMENT:
            yield _package(match[1], match[2], match[3])


def _package(name: str, least: str | None, extra: str | None) -> Observation:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if extra is not None:
            return Observation(name, f"not installed; comes with gnn-repair[{extra}]")
        return Observation(name, "not installed", f"pip install {name}")
    if least is not None and _ordered(version) < _ordered(least):
        return Observation(name, version, f"{least} or newer is needed")
    return Observation(name, version)


def _ordered(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, which compare as versions do."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


# The machine --------------------------------------------------------------------------------------


def _devices() -> Observation:
    import torch  # here and below: PyTorch itself may be what is missing or broken

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [f"{cores} CPU cores, PyTorch threads: {torch.get_num_threads()}"]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        parts.append(f"cuda:{index} {device.name} ({device.total_memory / 2**30:.0f} GiB)")
    if not torch.cuda.is_available():
        parts.append("no GPU that PyTorch can use")
    return Observation("devices", "; ".join(parts))


def _kernels() -> Observation:
    from gnn_repair.kernels.cpu import mix_rows

    folder = getattr(mix_rows._cache, "cache_path", None)
    if folder is None:
        advice = "set NUMBA_CACHE_DIR to a folder that can be written"
        return Observation("kernels", "compiled anew in every process", advice)
    return Observation("kernels", f"kept beside their sources, such as in {folder}")


def _data(root: str | None) -> Observation:
    folder = data_root(root)
    here = [name for name, spec in DATASETS.items() if not missing_files(spec, folder)]
    return Observation(
        "data", f"{len(here)} of {len(DATASETS)} datasets in {folder}: {', '.join(here)}"
    )


# Trials -------------------------------------------------------------------------------------------


def _one_lp() -> Observation:
    """An LP whose answer is known: two messages that each help against one rival."""
    answer, right = float(_solved()[1].margin[0]), 0.5
    wrong = "the oracle is wrong here; report this line" if abs(answer - right) > ROUNDING else None
    return Observation("one LP", f"margin {answer!r}, known to be {right!r}", wrong)


def _one_certificate() -> Observation:
    """The check must accept that answer's certificate and refuse one that was changed."""
    exposure, solution = _solved()
    changed = replace(solution, rival_weights=solution.rival_weights[:, [0, 2, 1]] * [1, 0.9, 1.1])
    accepted, refused = bool(solution.check(exposure)), not changed.check(exposure)
    words = f"right one {'accepted' if accepted else 'refused'}, "
    words += f"changed one {'refused' if refused else 'accepted'}"
    wrong = None if accepted and refused else "the check is wrong here; report this line"
    return Observation("one certificate", words, wrong)


def _solved() -> tuple[Exposure, Solution]:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.nn import SimpleConv

    from gnn_repair.exposure import expose
    from gnn_repair.oracle import solve

    table = [[2, 0, 3], [2, 3, 0], [-9, 0, 0], [0, 0, 0]]
    edges = torch.tensor([[0, 1, 2], [3, 3, 3]])
    data = Data(x=torch.tensor(table, dtype=torch.float64), edge_index=edges)
    exposure = expose(SimpleConv("mean"), data)
    return exposure, solve(exposure, torch.tensor([-1, -1, -1, 0]))
