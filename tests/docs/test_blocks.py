"""Every code block of the README and the documentation runs, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from pathlib import Path

import pytest
from shown_output import assert_alike
from typer.main import get_command

from gnn_repair.catalog import DATASETS
from gnn_repair.cli import app
from gnn_repair.exposure import WHOLE_MESSAGES
from tools.docs.blocks import Block, blocks_of, commands_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
LONG = ("docs/repair.md", "docs/ladder.md", "docs/backbones.md")
"""Pages that train for minutes; `GNN_REPAIR_LONG=1` runs them, too."""

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="not in a checkout")


@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(name, tmp_path, monkeypatch):
    blocks = [block for block in blocks_of(ROOT / name) if block.language == "python"]
    if name in LONG and not os.environ.get("GNN_REPAIR_LONG"):
        pytest.skip("trains for minutes; GNN_REPAIR_LONG=1 runs it")
    _need_data(blocks)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    known = set(WHOLE_MESSAGES)  # what a page adds to them ends with it
    try:
        for block in blocks:
            if block.skipped is None:
                printed = _run(block, names, name)
                if block.shown is not None:
                    assert_alike(printed, block.shown, f"{name}:{block.line}")
    finally:
        WHOLE_MESSAGES.intersection_update(known)


def _need_data(blocks: list[Block]) -> None:
    wanted = {word for b in blocks for word in re.findall(r'load_dataset\("([\w-]+)"\)', b.code)}
    for dataset in wanted - {"builtin"}:
        root = os.environ.get("GNN_REPAIR_DATA")
        if not root or not list(Path(root).rglob(f"*{dataset}*")):
            pytest.skip(f"the files of {dataset} are not here (GNN_REPAIR_DATA)")
        assert dataset in DATASETS


def _run(block: Block, names: dict[str, object], page: str) -> str:
    """What a block prints; a fault is reported at the page's own line."""
    code = compile("\n" * (block.line - 1) + block.code, page, "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(code, names)
    return out.getvalue()


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
