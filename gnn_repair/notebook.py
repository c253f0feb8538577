"""How values show themselves in a notebook: their own words, and a table below."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import pandas as pd

ROWS = 10
"""Rows of a table that are shown; the frame itself has them all."""


def html_view(value: Any, frame: pd.DataFrame | None = None, rows: int | None = None) -> str:
    """HTML: what ``print`` says, and the first rows of the value's frame (of ``rows`` in all)."""
    text = f"<pre>{escape(str(value))}</pre>"
    if frame is None or frame.empty:
        return text
    more = (len(frame) if rows is None else rows) - ROWS
    table = frame.head(ROWS).to_html(index=False, border=0, escape=True)
    return text + table + (f"<p>… and {more:,} more rows: .to_frame()</p>" if more > 0 else "")


class PagePath(type(Path())):  # type: ignore[misc]
    """Where a page was written: a path as any other, and in a notebook a link to it."""

    def _repr_html_(self) -> str:
        size = f", {self.stat().st_size / 1e6:.1f} MB" if self.is_file() else ""
        link = f'<a href="{quote(self.as_posix())}" target="_blank">{escape(self.name)}</a>'
        return f"<p>report page {link}{size}</p>"
