"""HTML views of values in notebooks: the printed text with a table below."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import pandas as pd

ROWS = 10
"""Rows of a table that are shown."""


def html_view(value: Any, frame: pd.DataFrame | None = None, rows: int | None = None) -> str:
    """HTML of the printed text and the first rows of the value's frame (of ``rows`` in total)."""
    text = f"<pre>{escape(str(value))}</pre>"
    if frame is None or frame.empty:
        return text
    more = (len(frame) if rows is None else rows) - ROWS
    table = frame.head(ROWS).to_html(index=False, border=0, escape=True)
    return text + table + (f"<p>… and {more:,} more rows: .to_frame()</p>" if more > 0 else "")


class PagePath(type(Path())):  # type: ignore[misc]
    """The path of a written page, which a notebook shows as a link."""

    def _repr_html_(self) -> str:
        size = f", {self.stat().st_size / 1e6:.1f} MB" if self.is_file() else ""
        link = f'<a href="{quote(self.as_posix())}" target="_blank">{escape(self.name)}</a>'
        return f"<p>report page {link}{size}</p>"
