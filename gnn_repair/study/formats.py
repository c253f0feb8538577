"""Every form of the tables by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gnn_repair.study.latex import latex
from gnn_repair.study.rendering import as_csv, as_json, markdown
from gnn_repair.study.sheets import Table

RENDERERS: dict[str, Callable[[Iterable[Table]], str]] = {
    "markdown": markdown,
    "csv": as_csv,
    "json": as_json,
    "latex": latex,
}
"""Formats by name; the terminal's own lives with the command line."""
