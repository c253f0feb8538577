"""The shape of the package: imports go one way, the root's names are the public list."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gnn_repair

PACKAGE = Path(gnn_repair.__file__).parent
SURFACE = Path(__file__).parent / "public.txt"
LAYERS = [
    {"errors"},
    {"atomic"},
    {"published", "methods", "files", "devices", "budget", "startup", "f1"},
    {"notebook", "highs", "results", "catalog", "checks"},
    {"kernel_cache"},
    {"kernels"},
    {"datasets"},
    {"training"},
    {"backbones"},
    {"exposure"},
    {"oracle", "repair"},
    {"study"},
    {"reporting"},
    {"diagnosis"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in RANK
)


def imported_parts(path: Path) -> set[str]:
    """Parts of the package that a module imports anywhere, type-checking blocks left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    names: list[str] = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    parts = [name.split(".") for name in names if name.startswith("gnn_repair.")]
    return {part[1] for part in parts} - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for part in imported_parts(path):
        assert part == own or RANK[part] < RANK[own], f"{own} must not import {part}"


def test_the_public_names_exist_and_are_few():
    assert len(gnn_repair.__all__) <= 48
    for name in gnn_repair.__all__:
        assert getattr(gnn_repair, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gnn_repair.nonsense  # noqa: B018


def public_surface() -> str:
    """Every public name with its signature; of classes the public methods, too."""
    lines = []
    for name in sorted(gnn_repair.__all__):
        value = getattr(gnn_repair, name)
        if inspect.isclass(value):
            lines.append(f"{name}{'' if issubclass(value, Exception) else signature(value)}")
            for own, method in sorted(vars(value).items()):
                if not own.startswith("_") and inspect.isfunction(method):
                    lines.append(f"  {own}{signature(method)}")
        else:
            lines.append(f"{name}{signature(value) if inspect.isfunction(value) else ''}")
        if inspect.ismodule(value):
            lines += [
                f"  {own}{signature(function)}"
                for own, function in sorted(vars(value).items())
                if inspect.isfunction(function)
                and function.__module__ == value.__name__
                and not own.startswith("_")
            ]
    return "\n".join(lines) + "\n"


def signature(value) -> str:
    """Names, kinds and plain defaults; no annotations, which type checkers see."""
    parameters = inspect.signature(value).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return re.sub(r"=<[^>]*>|=[A-Z]\w*\(.*?\)(?=[,)])", "=…", str(inspect.Signature(plain)))


def test_the_public_surface_is_the_reviewed_one():
    """A change of it is a change of tests/public.txt: python -m tests.test_architecture."""
    assert public_surface() == SURFACE.read_text(encoding="utf-8")


def test_names_that_moved_warn_and_work():
    with pytest.warns(DeprecationWarning, match=r"gr\.FittedRepair\.load"):
        assert gnn_repair.load_repair is gnn_repair.FittedRepair.load
    with pytest.warns(DeprecationWarning, match=r"gr\.plots\.node"):
        assert gnn_repair.plot_node is gnn_repair.plots.node
    with pytest.warns(DeprecationWarning, match=r"gr\.Solution"):
        assert gnn_repair.OracleSolution is gnn_repair.Solution
    with pytest.warns(DeprecationWarning, match=r"gr\.solve now"):
        assert gnn_repair.solve_labels is gnn_repair.solve


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, gnn_repair; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_highspy_is_spoken_to_in_one_place():
    """One file imports it, and no other builds its models."""
    speakers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"import highspy|passModel|HighsLp", path.read_text(encoding="utf-8"))
    }
    assert speakers == {"highs.py"}


def test_no_two_classes_share_a_name():
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert not shared


def test_every_part_of_the_package_stands_in_the_design():
    """Folders and modules of the package's root, each with a word about it."""
    design = (PACKAGE.parent / "docs" / "DESIGN.md").read_text(encoding="utf-8")
    listing = re.search(r"```\ngnn_repair/\n(.*?)```", design, re.S)
    named = re.findall(r"^  ((?:[\w./]+, )*[\w./]+)  ?", listing[1], re.M)
    words = {word.removesuffix(".py").strip("/") for line in named for word in line.split(", ")}
    parts = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} == words


def test_what_tests_share_lies_in_helpers():
    """No test imports another test module or changes the path."""
    folder = Path(__file__).parent
    for path in folder.rglob("*.py"):
        tree, place = ast.parse(path.read_text("utf-8")), path.relative_to(folder).parts[0]
        lines = "\n".join(ast.unparse(node).split("\n")[0] for node in tree.body)
        test = path.name.startswith("test_") or path.name == "conftest.py"
        assert test or place in ("helpers", "golden", "campaigns"), path
        assert not re.search(r"^(from|import) (\S+\.)?(test_|conftest)", lines, re.M), path
        assert not re.search(r"^sys\.path", lines, re.M), path


if __name__ == "__main__":
    SURFACE.write_text(public_surface(), encoding="utf-8")
