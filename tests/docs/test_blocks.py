"""Every code block of the README and the documentation runs, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from gnn_repair.cli import app
from tests.helpers.shown_output import assert_alike
from tools.docs.blocks import blocks_of, commands_of, run

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
RUN = [
    name
    for page, name in zip(PAGES, NAMES, strict=True)
    if page.exists() and any(block.language == "python" for block in blocks_of(page))
]

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="not in a checkout")


@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(ROOT / name):
        if block.language == "python" and block.skipped is None:
            printed = run(block, names, name)
            if block.shown is not None:
                assert_alike(printed, block.shown, f"{name}:{block.line}")


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_page_are_commands(name):
    for line, words in commands_of(ROOT / name):
        _parse(get_command(app), words, f"{name}:{line}")


def _parse(command, words: list[str], where: str) -> None:
    """Let the command read its options without running anything."""
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, (where, words)
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context(command.name, list(words), resilient_parsing=False)
    except Exception as problem:
        raise AssertionError(f"{where}: {problem}") from problem
