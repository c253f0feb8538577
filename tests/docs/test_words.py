"""What the documentation mentions exists, in words that are used."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import benchmarks.__main__ as benchmarks
import gnn_repair
import tests.campaigns.__main__ as campaigns
from gnn_repair import errors
from gnn_repair.cli import app

# What prose mentions exists: commands with their options, make's targets, versions.

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob(".github/**/*.*")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
SPAN = re.compile(r"`([^`\n]*(?:\n[^`\n]+)?)`")
"""Code in a sentence, which may go on in the next line."""

OF_EARLIER_VERSIONS = {"CHANGELOG.md", "docs/start/migration.md"}
"""Pages that name what is gone."""

pytestmark = pytest.mark.skipif(not TEXTS, reason="not in a checkout")


def _mentioned(text: str, program: str) -> list[list[str]]:
    """Words after a program's name, in sentences and in blocks for the shell."""
    blocks = re.findall(r"^```(?:console|sh|yaml)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = [" ".join(span.split()) for span in SPAN.findall(re.sub(r"(?ms)^```.*?^```", "", text))]
    found = [re.match(rf'{program}(?:(?<=")| )(.*)', line.strip("$ ")) for line in [*lines, *spans]]
    return [match[1].split("#")[0].replace('"', " ").split() for match in found if match]


PROGRAMS = [
    (r"(?:docker run .* )?gnn-repair", app),
    ("python -m benchmarks", benchmarks.app),
    ('make bench ARGS="', benchmarks.app),
    ('make campaign ARGS="', campaigns.app),
]


@pytest.mark.parametrize("name", sorted(set(TEXTS) - OF_EARLIER_VERSIONS))
@pytest.mark.parametrize(("program", "own_app"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_options_of_commands_that_are_mentioned(name, program, own_app):
    for words in _mentioned(TEXTS[name], program):
        command, rest = get_command(own_app), list(words)
        while rest and hasattr(command, "commands") and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        assert not command.hidden, (name, words)
        known = {option for parameter in command.params for option in parameter.opts}
        known |= {option for parameter in command.params for option in parameter.secondary_opts}
        used = {word.split("=")[0] for word in words if re.fullmatch(r"--[a-z][\w=.-]*", word)}
        own = {"--install-completion", "--show-completion", "--help"}
        assert used <= known | own, (name, words)


@pytest.mark.parametrize("name", sorted(set(TEXTS) - OF_EARLIER_VERSIONS))
def test_names_of_the_package_and_its_errors_are_found_where_the_page_says(name):
    for given in re.findall(r"\bgr\.([A-Za-z]\w*)", TEXTS[name]):
        assert given in gnn_repair.__all__, (name, given)
    for where, given in re.findall(r"`([\w.]*?)([A-Z]\w*)`", TEXTS[name]):
        if hasattr(errors, given):
            home = {"gr.": gnn_repair, "gnn_repair.errors.": errors}.get(where, gnn_repair)
            assert hasattr(home, given), (name, given)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_targets_of_make_that_are_mentioned(name):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for words in _mentioned(TEXTS[name], "make"):
        asked = [word for word in words[:1] if re.fullmatch(r"[a-z][a-z-]*", word)]
        assert set(asked) <= targets, (name, words)


def test_versions_on_the_page_about_installing():
    page = TEXTS["docs/start/install.md"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lowest = dict(re.findall(r"^([\w-]+)>=([\d.]+)$", "\n".join(project["dependencies"]), re.M))
    shown = dict(re.findall(r"^\| (Python|PyTorch|PyTorch Geometric) \| ([\d.]+) \|", page, re.M))
    assert shown == {
        "Python": project["requires-python"].removeprefix(">="),
        "PyTorch": lowest["torch"],
        "PyTorch Geometric": lowest["torch-geometric"],
    }
    conda = set(re.findall(r"pytorch-[cg]pu=([\d.]+)", page))
    assert len(conda) == 1 and f"\ntorch=={conda.pop()}." in pinned


def test_constraints_never_meet_a_pytorch_without_a_version():
    """The newest one, even a build for CPUs, would be replaced by the named one with CUDA."""
    for name, text in TEXTS.items():
        if "constraints.txt" in text and name != "CHANGELOG.md":
            assert not re.search(r"pip install torch\b(?!==)", text), name


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    released = re.search(r"^## \[(\d[^\]]*)\]", TEXTS["CHANGELOG.md"], re.M)
    shown = re.search(r"^  version = \{(.+)\},$", TEXTS["README.md"], re.M)
    assert {project["version"], cited[1], released[1], shown[1]} == {gnn_repair.__version__}


# Words that are no longer used, in the documentation and in what the package says.
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
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted((ROOT / "gnn_repair").rglob("*.py"))


def _unused(text: str) -> list[str]:
    text = FINE.sub(" ", text)
    return [
        f"“{match[0]}” (write: {instead})"
        for pattern, instead in UNUSED.items()
        for match in re.finditer(pattern, text, re.I)
    ]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(ROOT).as_posix())
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
    texts = [page.read_text(encoding="utf-8") for page in PROSE]
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
