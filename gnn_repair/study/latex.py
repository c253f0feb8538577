"""Tables for a paper: floats with label and caption, panels as the paper has them.

Only booktabs is needed. The best is bold; what lies outside its tolerance has an exclamation mark
in the exponent, and only where published values are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from string import ascii_lowercase

from gnn_repair.study.cells import Figure
from gnn_repair.study.rendering import cases_text, number, remark_parts, usual_count
from gnn_repair.study.sheets import DATASET_TITLES, TITLES, Entry, Sheet, Table

LONG = 24
"""Letters from which on a column of words is set as paragraphs."""
PARAGRAPHS = 0.84
"""Share of the line that all paragraph columns have together; names and numbers take the rest."""

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "%": r"\%", "&": r"\&",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "α": r"$\alpha$", "β": r"$\beta$",
    "\n": " ", "\r": " ",
    "λ": r"$\lambda$", "Â": r"$\hat{A}$", "²": "$^{2}$", "ᵖ": "$^{p}$", "…": r"\ldots{}",
}  # fmt: skip
_WHOLE = {"D_v": r"$\mathcal{D}_v$"}
"""Symbols of more than one letter."""


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    for symbol, code in _WHOLE.items():
        if symbol in text:
            before, _, after = text.partition(symbol)
            return escape(before) + code + escape(after)
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def latex(tables: Iterable[Table]) -> str:
    """One float a table; sheets with the same columns are its panels."""
    floats = [text for table in tables for text in _floats(table)]
    return "\n".join(["% needs \\usepackage{booktabs}", *floats])


def _floats(table: Table) -> Iterator[str]:
    grouped = groupby(table.sheets, key=lambda sheet: (sheet.corner, sheet.columns))
    for place, (_, sheets) in enumerate(grouped, start=1):
        label = f"tab:{table.name}" + (f"-{place}" if place > 1 else "")
        yield _float(table, list(sheets), label)


def _float(table: Table, sheets: list[Sheet], label: str) -> str:
    first, alone = sheets[0], len(sheets) == 1
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(_caption(table, sheets))}}}",
        rf"\label{{{label}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{2.5pt}",
        rf"\begin{{tabular}}{{@{{}}l{_columns(first)}@{{}}}}",
        r"\toprule",
    ]
    for place, sheet in enumerate(sheets):
        if place:
            lines.append(r"\midrule")
        lines += _panel(sheet, "" if alone else ascii_lowercase[place])
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _caption(table: Table, sheets: list[Sheet]) -> str:
    """What it shows and what a reader must know; what holds for some panels only names them."""
    title = table.title if len(sheets) > 1 else f"{table.title}: {sheets[0].title}"
    said: dict[str, list[str]] = {}
    for letter, sheet in zip(ascii_lowercase, sheets, strict=False):
        for part in remark_parts(sheet, "in parentheses", difference=False):
            said.setdefault(part, []).append(letter)
    parts = [
        (f"{', '.join(f'({letter})' for letter in who)} " * (len(who) < len(sheets)) + part)
        for part, who in said.items()
    ]
    cases = {cases_text(entry) for sheet in sheets for entry in _macros(sheet)} - {""}
    if len(cases) == 1:
        parts.append(f"averages are over {cases.pop()}")
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in (title, *parts))


def _macros(sheet: Sheet) -> list[Figure]:
    """The averages over all cases: of the last row of a panel, of every row elsewhere."""
    rows = list(sheet.rows.values())
    rows = [rows[-1][-1:]] if "average" in sheet.rows else rows
    return [entry for row in rows for entry in row if isinstance(entry, Figure)]


def _columns(sheet: Sheet) -> str:
    texts = [[row[k] for row in sheet.rows.values()] for k in range(len(sheet.columns))]
    longest = [
        max((len(entry) for entry in column if isinstance(entry, str)), default=0)
        for column in texts
    ]
    wide = [length > LONG for length in longest]
    share = PARAGRAPHS / max(3, sum(wide))
    return "".join(
        rf"p{{{share:.2f}\linewidth}}" if long else ("l" if length else "r")
        for long, length in zip(wide, longest, strict=True)
    )


def _panel(sheet: Sheet, letter: str) -> Iterator[str]:
    if letter:
        width = len(sheet.columns) + 1
        title = escape(f"({letter}) {sheet.title}")
        yield rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textbf{{{title}}}}} \\"
    yield _line([sheet.corner.capitalize(), *(_title(column) for column in sheet.columns)])
    yield r"\midrule"
    usual = usual_count(sheet)
    for name, row in sheet.rows.items():
        if name in ("average", "total"):
            yield rf"\cmidrule(lr){{1-{len(sheet.columns) + 1}}}"
        yield " & ".join([escape(_title(name)), *(_cell(entry, usual) for entry in row)]) + r" \\"


def _title(name: str) -> str:
    return TITLES.get(name) or DATASET_TITLES.get(name) or name[:1].upper() + name[1:]


def _line(cells: Iterable[str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\"


def _cell(entry: Entry, usual: int) -> str:
    if isinstance(entry, str):
        return escape(entry)
    text = number(entry.value, entry.digits, entry.signed)
    if entry.deviation is not None:
        text += f" ± {number(entry.deviation, entry.digits)}"
    if entry.counted == "splits" and entry.value is not None and entry.count != usual:
        text += f" [{entry.count}]"
    out = rf"\textbf{{{escape(text)}}}" if entry.best else escape(text)
    if entry.published is not None:
        out += escape(f" ({number(entry.published, entry.digits, entry.signed)})")
    return out + ("$^{!}$" if entry.outside else "")
