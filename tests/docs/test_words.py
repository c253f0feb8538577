"""What the documentation mentions exists, in words that are used."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
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


OF_TODAY = {name: text for name, text in TEXTS.items() if name not in OF_EARLIER_VERSIONS}


@pytest.mark.parametrize(("program", "own_app"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_options_of_commands_that_are_mentioned(program, own_app):
    used = [(name, words) for name, text in OF_TODAY.items() for words in _mentioned(text, program)]
    assert used
    for name, words in used:
        command, rest = get_command(own_app), list(words)
        while rest and hasattr(command, "commands") and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        assert not command.hidden, (name, words)
        known = {"--install-completion", "--show-completion", "--help"}
        known |= {o for given in command.params for o in (*given.opts, *given.secondary_opts)}
        given = {word.split("=")[0] for word in words if re.fullmatch(r"--[a-z][\w=.-]*", word)}
        assert given <= known, (name, words)


def test_names_of_the_package_its_errors_and_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for name, text in OF_TODAY.items():
        for given in re.findall(r"\bgr\.([A-Za-z]\w*)", text):
            assert given in gnn_repair.__all__, (name, given)
        for where, given in re.findall(r"`([\w.]*?)([A-Z]\w*)`", text):
            if hasattr(errors, given):
                home = errors if where == "gnn_repair.errors." else gnn_repair
                assert hasattr(home, given), (name, given)
        for words in _mentioned(text, "make"):
            asked = {word for word in words[:1] if re.fullmatch(r"[a-z][a-z-]*", word)}
            assert asked <= targets, (name, words)


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


def _texts() -> Iterator[tuple[str, str]]:
    """Pages, tutorials, what commands say, and sentences among the strings of the code."""
    for page in PROSE:
        yield page.name, re.sub(r"(?ms)^```python.*?^```", "", page.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                yield path.name, "".join(cell["source"])
    commands = [get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        helps = (getattr(parameter, "help", None) or "" for parameter in command.params)
        yield f"gnn-repair {command.name}", " ".join([command.help or "", *helps])
    for path in sorted((ROOT / "gnn_repair").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else ""
            if isinstance(text, str) and len(text.split()) > 2:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def test_no_word_is_said_that_is_no_longer_used():
    found, some = [], re.compile("|".join(UNUSED), re.I)
    for place, text in _texts():
        if some.search(plain := FINE.sub(" ", text)):
            words = [hint for pattern, hint in UNUSED.items() if re.search(pattern, plain, re.I)]
            found.append(f"{place}: {some.search(plain)[0]} (write: {words})")
    assert not found


def test_the_documentation_is_short():
    """Without what commands generate."""
    generated = ("## Exact-mass oracle", "<!-- below this line")
    texts = [page.read_text(encoding="utf-8") for page in PROSE]
    for start in generated:
        texts = [text.partition(start)[0] for text in texts]
    assert sum(len(text.split()) for text in texts) < 25_000
