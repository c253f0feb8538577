"""The map in docs/DESIGN.md names files and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gnn_repair

PACKAGE = Path(gnn_repair.__file__).parent
DESIGN = PACKAGE.parent / "docs" / "DESIGN.md"
SECTIONS = ("The path of one call", "Where a change goes")
NAMED = re.compile(r"`([\w/]+\.(?:py|js|json))`(?:: ?((?:`[\w.]+`(?:, | and | or )?)+))?")


def sections() -> str:
    """The map's text, its lines joined where they were wrapped."""
    parts = re.split(r"^## ", DESIGN.read_text(encoding="utf-8"), flags=re.M)
    found = [part for part in parts if part.startswith(SECTIONS)]
    assert len(found) == len(SECTIONS)
    return re.sub(r"\s*\n\s+", " ", "".join(found))


def places() -> list[tuple[str, tuple[str, ...]]]:
    """Every file of the map with the names that follow it."""
    text = sections()
    return [
        (file, tuple(re.findall(r"`([\w.]+)`", re.sub(r"`\w[\w/]*/.*", "", names or ""))))
        for file, names in NAMED.findall(text)
    ]


def python_names(path: Path) -> set[str]:
    """Top-level names of a module, and those of its classes as ``Class.name``."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            names |= {node.name, *(f"{node.name}.{item.name}" for item in inner)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def names_in(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return python_names(path)
    return set(re.findall(r"^(?:async )?function (\w+)", text, re.M))


@pytest.mark.parametrize(("file", "names"), sorted(set(places())), ids=str)
def test_what_the_map_names_is_there(file, names):
    path = PACKAGE / file
    assert path.is_file(), f"docs/DESIGN.md names gnn_repair/{file}"
    missing = set(names) - names_in(path)
    assert not missing, f"docs/DESIGN.md: gnn_repair/{file} has no {missing}"


def test_every_part_of_the_package_stands_in_the_list():
    """Folders and modules of the package's root, each with a word about it."""
    listing = re.search(r"```\ngnn_repair/\n(.*?)```", DESIGN.read_text(encoding="utf-8"), re.S)
    named = re.findall(r"^  ((?:[\w./]+, )*[\w./]+)  ?", listing[1], re.M)
    words = {word.removesuffix(".py").strip("/") for line in named for word in line.split(", ")}
    parts = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} == words


def test_the_map_is_read():
    """Nothing between backticks that looks like a file is passed over."""
    text = sections()
    files = {file for file, _ in places()}
    assert files == set(re.findall(r"`([^`]*\.(?:py|js|json))`", text))
    assert len(files) > 50
    by_file = dict(places())
    assert by_file["oracle/solve_kernel.py"] == ("solve_range",)
    assert by_file["exposure/certification.py"] == ("certify",)
