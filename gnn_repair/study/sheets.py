"""Tables before they are printed: sheets of figures and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnn_repair.study.cells import Figure

Entry = Figure | str
"""A figure, or words."""


@dataclass(frozen=True)
class Sheet:
    """Rows and columns of figures under one title."""

    title: str
    corner: str
    """What the rows are."""
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Entry, ...]]
    """By name; one entry a column."""
    summary: str = ""
    """How much of it is within the tolerance."""


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]
