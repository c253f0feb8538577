"""Words that are no longer used, in the documentation and in what the package says."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from gnn_repair.cli import app

ROOT = Path(__file__).parents[2]
WHOLE = (
    "node|recipient|class|head|group|split|hop|case|run|row|term|message|member|label|graph|"
    "relation|question|level|rung|pass|line|table"
)
PART = "one|ones|terms?|nodes|rows?|labels?|logits?|numbers?|vector|minutes|messages|µs|ms"
UNUSED = {
    rf"\b({PART}|\d) an? ({WHOLE})\b": "per",
    r"\btail(s|ed)?\b": "nonlinear head",
    r"\bkin\b": "similar nodes",
    r"\btake (it|them) home\b": "deploy",
    r"\bwhat is told\b": "say what it is",
    r"\bhonest (mistake|estimate)s?\b": "held-out errors",
    r"\bin three words\b": "can, cannot, undecided",
    r"\brefus(es|ed)\b": "unsupported, rejected",
    r"\bout of fold\b": "held-out",
    r"\bhas place\b": "rank",
    r"\bleast change\b": "smallest change",
    r"\bwill do\b": "is enough",
    r"\bcan be had\b|\bto be had\b": "available",
    r"\bone's own\b": "your own",
    r"\bof (the|its|their) own accord\b": "by itself",
    r"\bwhoever\b": "plain words",
    r"\bto the letter\b": "exactly",
    r"\bas ever\b": "as before",
    r"\bdoes without\b|\bdo without\b": "leave out",
}
"""Patterns, each with what to write instead."""
FINE = re.compile(r"`[^`]*`|gnn-repair tailed exposure|row a term points at")
"""Code, the name of a file format, and two nouns in a row."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted((ROOT / "gnn_repair").rglob("*.py"))

pytestmark = pytest.mark.skipif(not PAGES, reason="not in a checkout")


def _unused(text: str) -> list[str]:
    text = FINE.sub(" ", text)
    return [
        f"“{match[0]}” (write: {instead})"
        for pattern, instead in UNUSED.items()
        for match in re.finditer(pattern, text, re.I)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages(page):
    assert not _unused(re.sub(r"(?ms)^```python.*?^```", "", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda p: p.stem)
def test_tutorials(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not [
        word
        for c in cells
        if c["cell_type"] == "markdown"
        for word in _unused("".join(c["source"]))
    ]


def test_the_documentation_is_short():
    """Without what commands generate."""
    generated = ("## Exact-mass oracle", "<!-- below this line")
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    for start in generated:
        texts = [text.partition(start)[0] for text in texts]
    assert sum(len(text.split()) for text in texts) < 25_000


def test_commands():
    def check(command, name):
        texts = [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
        found = {name: words} if (words := _unused(" ".join(texts))) else {}
        for child in getattr(command, "commands", {}).values():
            found |= check(child, f"{name} {child.name}")
        return found

    assert not check(get_command(app), "gnn-repair")


def test_docstrings_and_messages_of_the_package():
    """Every sentence among the strings of the code."""
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else ""
            if isinstance(text, str) and len(text.split()) > 2 and (words := _unused(text)):
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = words
    assert not found
