"""``gnn-repair doctor``: versions, devices, kernels, data and two trials, in one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gnn_repair.cli.data import RootOption
from gnn_repair.cli.output import Format, FormatOption, emit

if TYPE_CHECKING:
    from gnn_repair.selftest.doctor import Observation


def doctor(root: RootOption = None, format: FormatOption = Format.table) -> None:
    """Examine this installation: the first thing to put into a bug report.

    Exit code 1 if something is wrong.
    """
    from gnn_repair.selftest.doctor import examine

    findings = list(examine(root))
    emit([_row(finding, format) for finding in findings], format)
    if any(f.wrong for f in findings):
        raise typer.Exit(1)


def _row(finding: Observation, format: Format) -> dict[str, Any]:
    if format is Format.json:
        return {"subject": finding.subject, "found": finding.found, "wrong": finding.wrong}
    found = f"{finding.found}: {finding.wrong}" if finding.wrong else finding.found
    return {"": "✗" if finding.wrong else "✓", "subject": finding.subject, "found": found}
