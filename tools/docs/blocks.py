"""Code blocks of the documentation's pages, and what the pages say that they print.

``python -m tools.docs.blocks docs/start/tour.md …`` runs pages and writes their outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PIECE = re.compile(
    r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$|^<!-- (?P<note>run|skip)\b(?P<text>.*?)-->$",
    re.DOTALL | re.MULTILINE,
)
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
    place: tuple[int, int] = (0, 0)
    """Where that stands in the page's text."""
    skipped: str | None = None
    """Why it is not run, where a note before it says so."""


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks in order.

    ``<!-- run … -->`` is code that a reader need not see, such as the import of an example model;
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
        shown, place = None, (0, 0)
        if (
            piece["language"] == "python"
            and following is not None
            and _output(text, piece, following)
        ):
            shown, place = following["code"], following.span("code")
        found.append(Block(piece["language"], piece["code"], line, shown, place, reason))
        reason = None
    return found


def _output(text: str, piece: re.Match[str], following: re.Match[str]) -> bool:
    if following["note"] or following["language"]:
        return False
    return len(text[piece.end() : following.start()].strip()) <= _BETWEEN


def run(block: Block, names: dict[str, object], page: str) -> str:
    """What a block prints; a fault is reported at the page's own line."""
    code = compile("\n" * (block.line - 1) + block.code, page, "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(code, names)
    return out.getvalue()


def commands_of(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that a page gives to the shell for gnn-repair: where, and their words."""
    for block in blocks_of(page):
        if block.language not in ("console", "sh", "yaml"):
            continue
        joined = block.code.replace("\\\n", " ")
        for number, line in enumerate(joined.splitlines()):
            words = line.strip().removeprefix("- run: ").removeprefix("$ ")
            if words.startswith("gnn-repair "):
                yield block.line + number, shlex.split(words, comments=True)[1:]


def rewritten(page: Path) -> str:
    """The page with what its blocks print now."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    outputs = []
    for block in blocks_of(page):
        if block.language == "python" and block.skipped is None:
            printed = run(block, names, str(page))
            if block.shown is not None:
                lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
                outputs.append((block.place, "\n".join(lines) + "\n"))
    for (start, stop), output in reversed(outputs):
        text = text[:start] + output + text[stop:]
    return text


def main(pages: list[str]) -> None:
    """Run the named pages in a scratch folder and write their outputs into them."""
    paths = [Path(page).resolve() for page in pages]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        for path in paths:
            path.write_text(rewritten(path), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
