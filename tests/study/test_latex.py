"""LaTeX that can be pasted: read back by a small reader that refuses what LaTeX would refuse."""

from __future__ import annotations

import re

import pytest

from gnn_repair.results.averages import Figure, Sheet, Table, without_published, without_spread
from gnn_repair.results.rendering import escape, latex
from gnn_repair.study import RENDERERS, make_tables
from tests.helpers.study.planted_records import make_record

SPECIAL = r"a_b & 50% #1 $x$ {y} ~z ^w \end{tabular} <|>"


def cells_of(line: str) -> list[str]:
    """Cut a row at ampersands that are not escaped."""
    return re.split(r"(?<!\\)&", line)


def columns_of(spec: str) -> int:
    """How many columns a tabular declares."""
    bare = re.sub(r"@\{[^}]*\}", "", spec)
    return len(re.sub(r"p\{[^}]*\}", "p", bare))


def check(text: str) -> None:
    """Environments nest, braces and dollars balance, every row has the columns it promised."""
    assert text.isascii()
    stack: list[str] = []
    promised = 0
    for line in text.splitlines():
        if line.startswith("%"):
            continue
        bare = re.sub(r"\\[\\{}$%&#_]", "", line)
        assert bare.count("{") == bare.count("}"), line
        assert bare.count("$") % 2 == 0, line
        outside_math = re.sub(r"\$[^$]*\$", "", bare)
        assert not re.search(r"[%#~^_]", outside_math), line
        for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", line):
            if kind == "begin":
                stack.append(name)
            else:
                assert stack.pop() == name, line
        if line.startswith(r"\begin{tabular}"):
            promised = columns_of(re.search(r"\{tabular\}\{(.*)\}$", line).group(1))
        if line.endswith(r" \\"):
            assert stack == ["table", "tabular"], line
            wide = re.match(r"\\multicolumn\{(\d+)\}", line)
            assert (int(wide.group(1)) if wide else len(cells_of(line))) == promised, line
    assert stack == []


def records():
    made = []
    for dataset, backbone in [("cora", "gcn"), ("cora", "my_own"), ("a_graph-2", "gcn")]:
        made += [make_record(dataset, backbone, k, test) for k, test in enumerate((0.7, 0.8))]
    return made


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("spread", [True, False])
def test_every_table_is_whole(published, spread):
    tables = make_tables(records())
    tables = tables if published else [without_published(table) for table in tables]
    text = latex(tables if spread else [without_spread(table) for table in tables])
    check(text)
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\caption{") == text.count(r"\centering")
    assert {f"tab:{table.name}" for table in tables} <= set(labels)
    assert ("88.1" in text) is published
    assert (r"$\pm$" in text) is spread


def planted(name: str) -> str:
    rows = {name: (Figure(1.5, best=True), name), "average": (Figure(-2.0, 3.0, tolerance=1), "")}
    sheet = Sheet(name, name, (name, "words"), rows, name)
    return latex([Table("planted", name, (sheet, sheet))])


@pytest.mark.parametrize("name", [SPECIAL, "100%", "a\nb", "under_score", "\\", "}{", "&&", "$"])
def test_names_that_need_escaping(name):
    text = planted(name)
    check(text)
    assert r"\textbf{1.5}" in text
    assert r"$-$2.0 (3.0)$^{!}$" in text


def test_escaped_text_is_the_text():
    assert escape("a_b & 50%") == r"a\_b \& 50\%"
    assert escape("\\") == r"\textbackslash{}"
    assert escape("inside D_v, α = Âᵖ") == (r"inside $\mathcal{D}_v$, $\alpha$ = $\hat{A}$$^{p}$")


def test_panels_of_one_table_share_a_float():
    text = RENDERERS["latex"](make_tables(records(), ["repair-accuracy"]))
    assert text.count(r"\begin{table}") == 1
    for panel in (
        r"\textbf{(a) Frozen}",
        r"\textbf{(b) Reweight}",
        r"\textbf{(c) Set translation}",
    ):
        assert text.count(panel) == 1
    assert r"\cmidrule(lr){1-4}" in text
    (caption,) = re.findall(r"\\caption\{(.*)\}", text)
    assert "Mean $\\pm$ standard deviation over 2 splits." in caption
    assert "(b), (c) bold marks" in caption or "(c) bold marks" in caption
