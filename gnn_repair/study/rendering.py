"""Tables as text: Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gnn_repair.study.cells import Figure
from gnn_repair.study.tables import TITLES, Entry, Sheet, Table

MINUS = "−"
FIELDS = (
    *("table", "sheet", "row", "column", "value", "std", "count", "counted"),
    *("published", "difference", "outside", "text", "upper"),
)


def number(value: float | None, digits: int, signed: bool = False) -> str:
    """A number with a real minus sign; a dash for none."""
    if value is None:
        return "–"
    # Rounding first, so that −0.04 does not become −0.0.
    rounded = round(value, digits) + 0.0
    text = f"{rounded:{'+' if signed else ''},.{digits}f}"
    return text.replace("-", MINUS)


def own_text(figure: Figure, usual: int) -> str:
    """Our side of a figure: 88.0 ± 1.2, with the count where it is not the usual one."""
    text = number(figure.value, figure.digits, figure.signed)
    if figure.upper is not None and number(figure.upper, figure.digits) != text:
        text += f"–{number(figure.upper, figure.digits)}"
    if figure.deviation is not None:
        text += f" ± {number(figure.deviation, figure.digits)}"
    if figure.counted == "splits" and figure.value is not None and figure.count != usual:
        text += f" [{figure.count} splits]"
    return text


def paper_parts(figure: Figure) -> list[str]:
    """The published side: the value and the difference."""
    parts = []
    if figure.published is not None:
        parts.append(number(figure.published, figure.digits, figure.signed))
    if figure.difference is not None and figure.counted:
        parts.append(number(figure.difference, figure.digits, signed=True))
    return parts


def cases_text(figure: Figure) -> str:
    """Over how many cases an average was taken; empty for anything else."""
    if figure.counted != "cases":
        return ""
    return f"{figure.count} case{'s' * (figure.count != 1)}"


def usual_count(sheet: Sheet) -> int:
    """The number of splits behind most of a sheet's cells: the largest."""
    counts = [
        entry.count
        for row in sheet.rows.values()
        for entry in row
        if isinstance(entry, Figure) and entry.counted == "splits"
    ]
    return max(counts, default=0)


def _compared(sheet: Sheet) -> bool:
    entries = [entry for row in sheet.rows.values() for entry in row]
    return any(isinstance(entry, Figure) and entry.published is not None for entry in entries)


def _between(sheet: Sheet) -> bool:
    entries = [entry for row in sheet.rows.values() for entry in row]
    return any(isinstance(entry, Figure) and entry.upper is not None for entry in entries)


def remark(sheet: Sheet, where: str = "in parentheses") -> str:
    """What a reader must know about a sheet's figures."""
    usual = usual_count(sheet)
    parts = []
    if usual:
        spread = " ± standard deviation" if usual > 1 else ""
        parts.append(f"mean{spread} over {usual} split{'s' * (usual != 1)}")
        if _compared(sheet):
            parts.append(f"{where} the published value and the difference")
    if _between(sheet):
        parts.append("a range is what is proved to what is not excluded (models with a tail)")
    if sheet.summary:
        parts.append(sheet.summary)
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." * bool(text)


def markdown(tables: Iterable[Table]) -> str:
    """Tables for a document; what lies outside the tolerance is bold."""
    blocks = []
    for table in tables:
        blocks.append(f"## {table.title}")
        for sheet in table.sheets:
            usual = usual_count(sheet)
            lines = [
                _line([sheet.corner, *sheet.columns]),
                _line(["---"] * (len(sheet.columns) + 1)),
            ]
            lines += [
                _line([TITLES.get(name, name), *(_markdown(entry, usual) for entry in row)])
                for name, row in sheet.rows.items()
            ]
            note = remark(sheet)
            blocks += [f"### {sheet.title}", *([note] if note else []), "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(entry: Entry, usual: int) -> str:
    text = plain(entry, usual)
    return f"**{text}**" if isinstance(entry, Figure) and entry.outside else text


def plain(entry: Entry, usual: int) -> str:
    """Both sides on one line."""
    if isinstance(entry, str):
        return entry
    paper = "; ".join(filter(None, [", ".join(paper_parts(entry)), cases_text(entry)]))
    return own_text(entry, usual) + (f" ({paper})" if paper else "")


def facts(tables: Iterable[Table]) -> Iterator[dict[str, Any]]:
    """Every entry as one flat record, in full precision."""
    for table in tables:
        for sheet in table.sheets:
            for name, row in sheet.rows.items():
                for column, entry in zip(sheet.columns, row, strict=True):
                    place = {
                        "table": table.name,
                        "sheet": sheet.title,
                        "row": name,
                        "column": column,
                    }
                    yield {**place, **_fact(entry)}


def _fact(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, str):
        return {**dict.fromkeys(FIELDS[4:]), "text": entry}
    return {
        "value": entry.value,
        "std": entry.deviation,
        "count": entry.count,
        "counted": entry.counted,
        "published": entry.published,
        "difference": entry.difference,
        "outside": entry.outside,
        "text": None,
        "upper": entry.upper,
    }


def as_csv(tables: Iterable[Table]) -> str:
    """One line an entry."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(facts(tables))
    return out.getvalue()


def as_json(tables: Iterable[Table]) -> str:
    """A list with one object an entry."""
    return json.dumps(list(facts(tables)), indent=1, ensure_ascii=False) + "\n"


_ESCAPES = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "–": "--", MINUS: "$-$", "±": r"$\pm$"}


def latex(tables: Iterable[Table]) -> str:
    """Booktabs tables; what lies outside the tolerance is bold."""
    return "\n".join(_latex_sheet(table, sheet) for table in tables for sheet in table.sheets)


def _latex_sheet(table: Table, sheet: Sheet) -> str:
    usual = usual_count(sheet)
    caption = f"{table.title}: {sheet.title}. {remark(sheet)}".strip()
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\begin{{tabular}}{{@{{}}l*{{{len(sheet.columns)}}}{{r}}@{{}}}}",
        r"\toprule",
        _latex_line([sheet.corner, *sheet.columns]),
        r"\midrule",
    ]
    for name, row in sheet.rows.items():
        marked = [isinstance(entry, Figure) and entry.outside for entry in row]
        cells = [_escape(plain(entry, usual)) for entry in row]
        bold = [rf"\textbf{{{c}}}" if m else c for c, m in zip(cells, marked, strict=True)]
        lines.append(" & ".join([_escape(TITLES.get(name, name)), *bold]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(_escape(cell) for cell in cells) + r" \\"


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


RENDERERS: dict[str, Callable[[Iterable[Table]], str]] = {
    "markdown": markdown,
    "csv": as_csv,
    "json": as_json,
    "latex": latex,
}
"""Formats by name; the terminal's own lives with the command line."""
