"""How values show themselves in a notebook: their own words, and a table below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

ROWS = 10
"""Rows of a table that are shown; the frame itself has them all."""


def shown(value: Any, frame: pd.DataFrame | None = None, rows: int | None = None) -> str:
    """HTML: what ``print`` says, and the first rows of the value's frame (of ``rows`` in all)."""
    text = f"<pre>{escape(str(value))}</pre>"
    if frame is None or frame.empty:
        return text
    more = (len(frame) if rows is None else rows) - ROWS
    table = frame.head(ROWS).to_html(index=False, border=0, escape=True)
    return text + table + (f"<p>… and {more:,} more rows: .to_frame()</p>" if more > 0 else "")
