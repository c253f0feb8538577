"""Tables as text: Markdown, CSV, JSON and LaTeX; what all forms share."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from math import isnan
from string import ascii_lowercase
from typing import Any

from gnn_repair.published import DATASET_TITLES, TITLES, count_of
from gnn_repair.results.averages import Entry, Figure, Sheet, Table

MINUS = "−"
FIELDS = (
    *("table", "sheet", "row", "column", "value", "std", "count", "counted"),
    *("published", "difference", "outside", "best", "text", "upper"),
)


def number(value: float, digits: int, signed: bool = False) -> str:
    """A number with a real minus sign; a dash for none."""
    if isnan(value):
        return "–"
    # Rounding first, so that −0.04 does not become −0.0.
    rounded = round(value, digits) + 0.0
    text = f"{rounded:{'+' if signed else ''},.{digits}f}"
    return text.replace("-", MINUS)


def own_text(figure: Figure, usual: int, noun: bool = True) -> str:
    """Our side of a figure: 88.0 ± 1.2, with the count where it is not the usual one."""
    text = number(figure.value, figure.digits, figure.signed)
    if not isnan(figure.upper) and number(figure.upper, figure.digits) != text:
        text += f"–{number(figure.upper, figure.digits)}"
    if not isnan(figure.deviation):
        text += f" ± {number(figure.deviation, figure.digits)}"
    if figure.counted == "splits" and not isnan(figure.value) and figure.count != usual:
        text += f" [{count_of(figure.count, 'split') if noun else figure.count}]"
    return text


def paper_parts(figure: Figure) -> list[str]:
    """The published side: the value and the difference."""
    parts = []
    if not isnan(figure.published):
        parts.append(number(figure.published, figure.digits, figure.signed))
    if not isnan(figure.difference) and figure.counted:
        parts.append(number(figure.difference, figure.digits, signed=True))
    return parts


def cases_text(figure: Figure) -> str:
    """Over how many cases an average was taken; empty for anything else."""
    if figure.counted != "cases" or not figure.count:
        return ""
    return count_of(figure.count, "case")


def remark(sheet: Sheet, where: str = "in parentheses") -> str:
    """What a reader must know about a sheet's figures; empty where all of them stand alone."""
    text = "; ".join(remark_parts(sheet, where))
    return text[:1].upper() + text[1:] + "." * bool(text)


def remark_parts(sheet: Sheet, where: str = "in parentheses", difference: bool = True) -> list[str]:
    """The same in parts, each a half sentence."""
    usual, figures, parts = sheet.splits, sheet.figures, []
    if usual:
        spread = " ± standard deviation" if any(not isnan(f.deviation) for f in figures) else ""
        parts.append(f"mean{spread} over {count_of(usual, 'split')}")
    if any(not isnan(figure.published) for figure in figures):
        both = any(len(paper_parts(figure)) == 2 for figure in figures) and difference
        parts.append(f"{where} the published value" + " and the difference" * both)
    if any(not isnan(figure.upper) for figure in figures):
        parts.append(
            "a range is what is proved to what is not excluded (models with a nonlinear head)"
        )
    parts += [sheet.summary] if sheet.summary else []
    if any(figure.outside for figure in figures):
        parts.append("! marks what differs by more than its tolerance")
    if any(figure.best for figure in figures):
        parts.append("bold marks the best repair of the paper where it improves on Frozen")
    return parts


def as_markdown(tables: Iterable[Table]) -> str:
    """Tables for a document; the best is bold, what lies outside the tolerance is marked with !."""
    blocks = []
    for table in tables:
        blocks.append(f"## {table.title}")
        for sheet in table.sheets:
            rows = [[sheet.corner, *sheet.columns], ["---"] * (len(sheet.columns) + 1)]
            for name, row in sheet.rows.items():
                cells = (_markdown(entry, sheet.splits) for entry in row)
                rows.append([TITLES.get(name, name), *cells])
            lines = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
            blocks += filter(None, [f"### {sheet.title}", remark(sheet), lines])
    return "\n\n".join(blocks) + "\n"


def _markdown(entry: Entry, usual: int) -> str:
    if isinstance(entry, str):
        # A bar would end the cell.
        return entry.replace("|", "\\|")
    ours, paper = own_text(entry, usual), paper_text(entry)
    return (f"**{ours}**" if entry.best else ours) + paper + " !" * entry.outside


def paper_text(figure: Figure) -> str:
    """The published side in parentheses, with the number of cases; empty where there is none."""
    paper = "; ".join(filter(None, [", ".join(paper_parts(figure)), cases_text(figure)]))
    return f" ({paper})" if paper else ""


def facts(tables: Iterable[Table]) -> Iterator[dict[str, Any]]:
    """Every entry as one flat record, in full precision."""
    for table in tables:
        for sheet in table.sheets:
            for name, row in sheet.rows.items():
                for column, entry in zip(sheet.columns, row, strict=True):
                    address = (table.name, sheet.title, name, column)
                    yield dict(zip(FIELDS[:4], address, strict=True)) | _fact(entry)


def _fact(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, str):
        return {**dict.fromkeys(FIELDS[4:]), "text": entry}
    held = {**vars(entry), "std": entry.deviation, "difference": entry.difference}
    held |= {"outside": entry.outside, "text": None}
    return {name: None if held[name] != held[name] else held[name] for name in FIELDS[4:]}


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


# For a paper --------------------------------------------------------------------------------------
#
# Floats with label and caption, panels as the paper has them; only booktabs is needed. The best is
# bold; what lies outside its tolerance has an exclamation mark in the exponent, and only where
# published values are shown.

LONG = 24
"""Letters from which on a column of words is set as paragraphs."""
PARAGRAPHS = 0.84
"""Share of the line that all paragraph columns have together; names and numbers take the rest."""

_ESCAPES = {
    "D_v": r"$\mathcal{D}_v$",
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "%": r"\%", "&": r"\&",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "α": r"$\alpha$", "β": r"$\beta$",
    "\n": " ", "\r": " ",
    "λ": r"$\lambda$", "Â": r"$\hat{A}$", "²": "$^{2}$", "ᵖ": "$^{p}$", "…": r"\ldots{}",
}  # fmt: skip
_ESCAPED = re.compile("|".join(map(re.escape, _ESCAPES)))


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)


def latex(tables: Iterable[Table]) -> str:
    """One float a table; sheets with the same columns are its panels."""
    floats = ["% needs \\usepackage{booktabs}"]
    for table in tables:
        grouped = groupby(table.sheets, key=lambda sheet: (sheet.corner, sheet.columns))
        for number, (_, sheets) in enumerate(grouped, start=1):
            label = f"tab:{table.name}" + (f"-{number}" if number > 1 else "")
            floats.append(_float(table, list(sheets), label))
    return "\n".join(floats)


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
    for position, sheet in enumerate(sheets):
        if position:
            lines.append(r"\midrule")
        lines += _panel(sheet, "" if alone else ascii_lowercase[position])
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _caption(table: Table, sheets: list[Sheet]) -> str:
    """What it shows and what a reader must know; what holds for some panels only names them."""
    title = table.title if len(sheets) > 1 else f"{table.title}: {sheets[0].title}"
    remarks: dict[str, list[str]] = {}
    for letter, sheet in zip(ascii_lowercase, sheets, strict=False):
        for part in remark_parts(sheet, difference=False):
            remarks.setdefault(part, []).append(letter)
    parts = [
        (f"{', '.join(f'({letter})' for letter in who)} " * (len(who) < len(sheets)) + part)
        for part, who in remarks.items()
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
    columns = list(zip(*sheet.rows.values(), strict=True)) or [()] * len(sheet.columns)
    longest = [max((len(e) for e in column if isinstance(e, str)), default=0) for column in columns]
    share = PARAGRAPHS / max(3, sum(length > LONG for length in longest))
    wide = rf"p{{{share:.2f}\linewidth}}"
    return "".join(wide if length > LONG else "l" if length else "r" for length in longest)


def _panel(sheet: Sheet, letter: str) -> Iterator[str]:
    if letter:
        width = len(sheet.columns) + 1
        title = escape(f"({letter}) {sheet.title}")
        yield rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textbf{{{title}}}}} \\"
    titles = [sheet.corner.capitalize(), *(_latex_title(column) for column in sheet.columns)]
    yield " & ".join(map(escape, titles)) + r" \\"
    yield r"\midrule"
    for name, row in sheet.rows.items():
        if name in ("average", "total"):
            yield rf"\cmidrule(lr){{1-{len(sheet.columns) + 1}}}"
        cells = [escape(_latex_title(name)), *(_latex_cell(entry, sheet.splits) for entry in row)]
        yield " & ".join(cells) + r" \\"


def _latex_title(name: str) -> str:
    return TITLES.get(name) or DATASET_TITLES.get(name) or name[:1].upper() + name[1:]


def _latex_cell(entry: Entry, usual: int) -> str:
    if isinstance(entry, str):
        return escape(entry)
    text = own_text(entry, usual, noun=False)
    out = rf"\textbf{{{escape(text)}}}" if entry.best else escape(text)
    if not isnan(entry.published):
        out += escape(f" ({number(entry.published, entry.digits, entry.signed)})")
    return out + ("$^{!}$" if entry.outside else "")


RENDERERS: dict[str, Callable[[Iterable[Table]], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
    "latex": latex,
}
"""Formats by name; the terminal's own lives with the command line."""
