"""The golden record: what the package gives today, compared with committed files.

    make golden                             compare everything
    make golden ARGS="convolutions lps"     some parts
    make golden ARGS="--update heads"       rewrite the record of a part (all unless named)
    make golden ARGS="--update words"       rewrite the sentences of all parts, and no numbers

An intended difference is a change of committed files in records/, with one line in CHANGES.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from argparse import RawDescriptionHelpFormatter as Formatter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gnn_repair as gr
from tests.golden.answers import PARTS
from tests.golden.galleries import galleries
from tests.golden.kept_files import of_files
from tests.golden.record import differences, of_exposure, refusal, without_words, write
from tests.golden.screens import PARTS as SCREENS
from tests.golden.shown import PARTS as SHOWN_PARTS
from tests.helpers.report.browser import missing

HERE = Path(__file__).parent
RECORDS = HERE / "records"
ALL = PARTS | SHOWN_PARTS | SCREENS
DRAWN_IN_SINGLE = ("PNA, mean and sum", "PNA with max and std", "spectral_norm by parametrization")
"""Double precision models with numbers of their own in single precision, which processors round
differently."""
SHOWN = 12
"""Differences of a part that are printed."""


def entries_of(part: str) -> dict[str, Callable[[], Any]]:
    """What a part records, by name."""
    if part == "files":
        return of_files()
    if part in ALL:
        return ALL[part]()
    return {name: partial(_of_model, name, call) for name, call in galleries()[part].items()}


def _of_model(name: str, call: Callable[[], Any]) -> Any:
    rounded = {"precision": "float32"} if name in DRAWN_IN_SINGLE else {}
    return of_exposure(call()) | rounded


def parts() -> list[str]:
    """Their names."""
    return [*galleries(), *(name for name in ALL if name != "screens" or not missing()), "files"]


def found_in(part: str, names: Any = None) -> dict[str, Any]:
    """The record of a part as the code gives it now, of some of its names where given."""
    tree = {}
    for name, call in entries_of(part).items():
        if names is None or name in names:
            try:
                tree[name] = call()
            except gr.GnnRepairError as error:
                if part not in galleries():
                    raise
                tree[name] = refusal(error)
    return json.loads(json.dumps(tree))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def compare(part: str, tree: dict[str, Any], some: bool = False) -> list[str]:
    """What differs from the record; with ``some`` only the names in ``tree``, and no words."""
    plain, words = without_words(tree)
    expected = read(RECORDS / f"{part}.json")
    if some:
        expected = {name: expected[name] for name in tree if name in expected}
        return [*differences(expected, plain, part)]
    said = read(RECORDS / f"{part}.words.json")
    return [*differences(expected, plain, part), *differences(said, words, f"{part}.words")]


def recorded(*names: str) -> Callable[[str], None]:
    """A test of these parts; they stand in several files, which are run side by side."""

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("part", names)
    def test(part: str) -> None:
        if part == "screens" and missing():
            pytest.skip(missing())
        assert compare(part, found_in(part)) == []

    return test


def update(part: str, tree: dict[str, Any], words_only: bool) -> None:
    """Rewrite the record; numbers that agree with it within tolerance stay as they are."""
    RECORDS.mkdir(exist_ok=True)
    for kind, held in zip(("", ".words"), without_words(tree), strict=True):
        path = RECORDS / f"{part}{kind}.json"
        if words_only and not kind:
            continue
        old = read(path)
        kept = {
            name: old[name] if name in old and not [*differences(old[name], value)] else value
            for name, value in held.items()
        }
        if kept or path.exists():
            write(path, kept)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("parts", nargs="*", help=", ".join(parts()))
    parser.add_argument("--update", action="store_true", help="rewrite instead of comparing")
    options = parser.parse_args(arguments)
    updating = options.update
    words_only = updating and options.parts == ["words"]
    chosen = parts() if words_only else options.parts or parts()
    if unknown := [name for name in chosen if name not in parts()]:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(parts())}")
    warnings.simplefilter("ignore")
    failed = 0
    for part in chosen:
        start = time.monotonic()
        tree = found_in(part)
        if updating:
            update(part, tree, words_only)
        unlike = compare(part, tree) if not words_only else []
        failed += bool(unlike)
        said = f"{len(unlike)} differences" if unlike else "as recorded"
        print(f"{part}: {len(tree)} entries, {said} ({time.monotonic() - start:.0f} s)", flush=True)
        for text in unlike[:SHOWN]:
            print(f"  {text}")
    if updating:
        print("Say in tests/golden/CHANGES.md what changed and why.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
