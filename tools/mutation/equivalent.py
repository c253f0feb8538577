"""Mutants that are known to change nothing, each with the reason."""

from __future__ import annotations

from pathlib import Path

MARK = "  ##  "


def read_equivalent(path: Path) -> dict[str, str]:
    """Reason by key of the mutant; one ``key  ##  reason`` a line."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            key, _, reason = line.partition(MARK)
            found[key.strip()] = reason.strip()
    return found
