"""The shape of the package: imports go one way, the root's names are the public list."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import gnn_repair

PACKAGE = Path(gnn_repair.__file__).parent
SURFACE = Path(__file__).parent / "public.txt"
LAYERS = """
errors
atomic
published methods files devices budget startup f1
notebook highs results catalog checks
kernel_cache
kernels
datasets
training
backbones
exposure
oracle repair
study
reporting
diagnosis
cli
"""
RANK = {name: rank for rank, layer in enumerate(LAYERS.splitlines()) for name in layer.split()}
TREES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""Every module of the package, parsed once."""


def imported_parts(tree: ast.Module) -> set[str]:
    """Parts of the package that a module imports anywhere, type-checking blocks left out."""
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
            assert node.level == 0, f"{ast.unparse(node)} imports relatively"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    parts = [name.split(".") for name in names if name.startswith("gnn_repair.")]
    return {part[1] for part in parts} - {"__version__"}


def test_imports_go_one_way():
    found = []
    for path, tree in TREES.items():
        own = path.parts[0].removesuffix(".py")
        if len(path.parts) > 1 or own in RANK:
            parts = imported_parts(tree) - {own}
            found += [f"{path} imports {part}" for part in parts if RANK[part] >= RANK[own]]
    assert not found


def public_surface() -> str:
    """Every public name with its signature; of classes and modules their public functions, too."""
    lines = []
    for name in sorted(gnn_repair.__all__):
        value = getattr(gnn_repair, name)
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        called = inspect.isroutine(value) or (inspect.isclass(value) and not is_error)
        lines.append(f"{name}{signature(value) if called else ''}")
        if inspect.isclass(value) or inspect.ismodule(value):
            home = value.__name__ if inspect.ismodule(value) else None
            lines += [
                f"  {own}{signature(function)}"
                for own, function in sorted(vars(value).items())
                if inspect.isfunction(function) and not own.startswith("_")
                if home in (None, function.__module__)
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
    with pytest.raises(AttributeError, match="nonsense"):
        gnn_repair.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("load_repair", "FittedRepair.load"),
        ("plot_node", "plots.node"),
        ("OracleSolution", "Solution"),
        ("solve_labels", "solve"),
    ],
)
def test_names_that_moved_warn_and_work(old, new):
    with pytest.warns(DeprecationWarning, match=rf"gr\.{re.escape(new)}\b"):
        assert getattr(gnn_repair, old) == attrgetter(new)(gnn_repair)


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, gnn_repair; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_the_plots_are_all_that_they_list():
    plots = gnn_repair.plots
    own = {n for n, one in vars(plots).items() if getattr(one, "__module__", "") == plots.__name__}
    assert set(dir(plots)) == {name for name in own if not name.startswith("_")}


def test_highspy_is_spoken_to_in_one_place_and_no_two_classes_share_a_name():
    speakers, classes = [], Counter()
    for path, tree in TREES.items():
        text = (PACKAGE / path).read_text(encoding="utf-8")
        if re.search(r"import highspy|passModel|HighsLp", text):
            speakers.append(path.as_posix())
        names = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
        classes.update(name for name in names if not name.startswith("_"))
    assert speakers == ["highs.py"]
    assert [name for name, times in classes.items() if times > 1] == []


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
        text, place = path.read_text("utf-8"), path.relative_to(folder).parts[0]
        test = path.name.startswith("test_") or path.name == "conftest.py"
        assert test or place in ("helpers", "golden", "campaigns"), path
        assert not re.search(r"^(from|import) (\S+\.)?(test_|conftest)", text, re.M), path
        assert not re.search(r"^sys\.path", text, re.M), path


if __name__ == "__main__":
    SURFACE.write_text(public_surface(), encoding="utf-8")
