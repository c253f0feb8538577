"""Code blocks of the documentation's pages, and what the pages say that they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PIECE = re.compile(
    r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$|^<!-- (?P<note>run|skip)\b(?P<text>.*?)-->$",
    re.DOTALL | re.MULTILINE,
)
MADE_WITH = ("2.13.0", "AVX512")
"""PyTorch and the processor's instructions behind the outputs that pages and notebooks show."""
_BETWEEN = 40
"""Characters of text ("prints", "gives") that may stand between a block and what it prints."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    """Where its code begins."""
    shown: str | None = None
    """What the page says that it prints."""
    skipped: str | None = None
    """Why it is not run, where a note before it says so."""


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks in order.

    ``<!-- run … -->`` is code that a reader need not see, such as a stand-in for her own model;
    ``<!-- skip: reason -->`` before a block says why it cannot be run.
    """
    text = page.read_text(encoding="utf-8")
    pieces = list(_PIECE.finditer(text))
    found: list[Block] = []
    reason = None
    for number, piece in enumerate(pieces):
        following = pieces[number + 1] if number + 1 < len(pieces) else None
        line = text.count("\n", 0, piece.start()) + 2
        if piece["note"] == "skip":
            reason = piece["text"].strip(": \n")
            continue
        if piece["note"] == "run":
            found.append(Block("python", piece["text"].strip(), line))
            continue
        shown = _output(text, piece, following) if piece["language"] == "python" else None
        found.append(Block(piece["language"], piece["code"], line, shown, reason))
        reason = None
    return found


def _output(text: str, piece: re.Match[str], following: re.Match[str] | None) -> str | None:
    if following is None or following["note"] or following["language"]:
        return None
    between = text[piece.end() : following.start()].strip()
    return following["code"] if len(between) <= _BETWEEN else None


def commands_of(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that a page gives to the shell for gnn-repair: where, and their words."""
    import shlex

    for block in blocks_of(page):
        if block.language not in ("console", "sh", "yaml"):
            continue
        joined = block.code.replace("\\\n", " ")
        for number, line in enumerate(joined.splitlines()):
            words = line.strip().removeprefix("- run: ").removeprefix("$ ")
            if words.startswith("gnn-repair "):
                yield block.line + number, shlex.split(words, comments=True)[1:]


def made_elsewhere() -> str | None:
    """Why the shown numbers cannot be expected here: other products train other weights."""
    import torch

    here = torch.__version__.split("+")[0], torch.backends.cpu.get_cpu_capability()
    if here == MADE_WITH:
        return None
    return f"numbers were made with {' on '.join(MADE_WITH)}, this is {' on '.join(here)}"
