"""The user's own models, graphs and backbones: ``FILE.py:NAME`` or ``module:NAME``, one way."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from gnn_repair.catalog import DATASETS
from gnn_repair.errors import InputError, closest, kind_of
from gnn_repair.published import TITLES


def is_place(name: str) -> bool:
    """Whether a name says where something is written."""
    return ":" in name


def short_name(name: str) -> str:
    """What a store calls it: the part behind the colon."""
    return name.rpartition(":")[2]


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """What the user's code prints meanwhile is no part of the command's answer, such as JSON."""
    with redirect_stdout(sys.stderr):
        yield


def load_object(place: str) -> Any:
    """What stands at ``FILE.py:NAME`` or ``module:NAME``; the module is run once."""
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise InputError(f"{place!r:.80} is not FILE.py:NAME, such as models.py:trained")
    if Path(where).is_file() and not where.endswith(".py"):
        raise InputError(f"{where} is no .py file; give FILE.py:NAME")
    module = _module(where)
    if not hasattr(module, name):
        near = closest(name, vars(module))
        advice = "name something that it has" if near is None else f"did you mean {near!r:.60}?"
        raise InputError(f"{where} has no {name!r:.60}; {advice}")
    return getattr(module, name)


def one_backbone(name: str) -> tuple[str, dict[str, Any] | None]:
    """Its name in a store, and a mapping that has it where it is the user's own."""
    mapping = backbones([name])
    return short_name(name), mapping if isinstance(mapping, dict) else None


def backbones(names: Sequence[str]) -> Sequence[str] | dict[str, Any]:
    """The names themselves where all are the package's; else a mapping to what a study takes."""

    def known(name: str) -> Any:
        from gnn_repair.backbones import find_backbone

        return type(find_backbone(name))

    return _chosen(names, load_object, known)


def datasets(
    names: Sequence[str], root: str | Path | None, draw: Any
) -> Sequence[str] | dict[str, Any]:
    """The names themselves where all are the package's; else a mapping from names to data."""

    def known(name: str) -> Any:
        from gnn_repair.datasets import load_dataset

        return load_dataset(name, root, draw=draw)

    return _chosen(names, _data, known)


def _chosen(
    names: Sequence[str], own: Callable[[str], Any], known: Callable[[str], Any]
) -> Sequence[str] | dict[str, Any]:
    """By their short names; a name is taken once, and those of the package never."""
    if not any(map(is_place, names)):
        return names
    objects: dict[str, Any] = {}
    for name in names:
        short = short_name(name)
        if short in objects or (is_place(name) and short in (*DATASETS, *TITLES)):
            raise InputError(f"{name:.120} would be the second {short!r:.60}; give it another name")
        objects[short] = own(name) if is_place(name) else known(name)
    return objects


def made_by(factory: str) -> tuple[Any, Any, Any]:
    """Model, data and which nodes, by a function or tuple of the user's."""
    result = _called(factory, load_object(factory))
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise InputError(f"{factory} gave {kind_of(result)}; return (model, data) or with nodes")
    return (*result, None) if len(result) == 2 else result


def _data(name: str) -> Any:
    """A graph, or what a function gives; a study checks its fields."""
    from torch_geometric.data import Data

    value = load_object(name)
    value = value if isinstance(value, Data) else _called(name, value)
    if not isinstance(value, Data):
        raise InputError(f"{name} gives {kind_of(value)}; give a torch_geometric Data")
    return value


def _called(name: str, value: Any) -> Any:
    """What a function without arguments gives; anything else itself."""
    if not callable(value):
        return value
    try:
        return value()
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # one that exits with 0 must not pass for success
        raise InputError(f"{name} raised {_in_one_line(error)}") from error


def _module(where: str) -> Any:
    """The module of that name or in that file, run once.

    Its folder, or the working folder, goes onto the path as with ``python FILE.py``: for what it
    imports, and for processes that run cases.
    """
    path, name, folder = Path(where), where, Path.cwd()
    if where.endswith(".py"):
        if not path.is_file():
            raise InputError(f"{path} is no file; give FILE.py:NAME")
        name, folder = path.stem, path.resolve().parent
    elif not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r:.80} is no module; give FILE.py:NAME or module:NAME")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InputError(f"{where} cannot be imported: {_in_one_line(error)}") from error
    if name != where and Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise InputError(
            f"{path} would hide the module {name!r}, which is in use; give the file another name"
        )
    return module


def _in_one_line(error: BaseException) -> str:
    """What was raised, in one line of bounded length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
