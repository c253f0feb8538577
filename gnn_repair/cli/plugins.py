"""Datasets and backbones from elsewhere: entry points of installed packages, modules by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from gnn_repair.cli.own_backbones import (
    as_architecture,
    in_one_line,
    is_own,
    load_own,
    short_name,
)
from gnn_repair.errors import InputError

GROUPS = {"dataset": "gnn_repair.datasets", "backbone": "gnn_repair.backbones"}
"""Entry points by what they give."""
TABLES = {"dataset": "DATASETS", "backbone": "BACKBONES"}
"""What a module given by --plugin holds, each a mapping from names."""
Found = dict[str, Callable[[], Any]]
"""What loads each, by name."""

PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A module with DATASETS or BACKBONES of your own, by name; may be repeated.",
    ),
]


@dataclass(frozen=True)
class Plugins:
    """What there is beside the package's own."""

    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, modules: Sequence[str] | None) -> Plugins:
        """Of the modules that were named, which are imported now."""
        found = cls(tuple(modules or ()))
        for name in found.modules:
            _module(name)
        return found

    def datasets(self, names: Sequence[str], root: str | Path | None, draw: Any) -> Any:
        """The names themselves where all are the package's; else a mapping from names to data."""
        from gnn_repair.datasets import DATASETS, load_dataset

        others = self._beside("dataset", names, DATASETS)
        if not others:
            return names
        return {
            name: others[name]() if name in others else load_dataset(name, root, draw=draw)
            for name in names
        }

    def backbones(self, names: Sequence[str]) -> Any:
        """The names themselves where all are the package's; else a mapping to backbones."""
        from gnn_repair.backbones import BACKBONES, find_backbone

        plain = [name for name in names if not is_own(name)]
        others = self._beside("backbone", plain, BACKBONES)
        if len(plain) == len(names) and not others:
            return names
        found: dict[str, Any] = {}
        for name in names:
            if is_own(name):
                found |= load_own(name)
            elif name in others:
                found[name] = as_architecture(others[name](), name, name)
            else:
                find_backbone(name)
                found[name] = BACKBONES[name]
        return found

    def one_backbone(self, name: str) -> tuple[str, dict[str, Any] | None]:
        """Its name in a store, and a mapping that has it where it is not the package's own."""
        found = self.backbones([name])
        return short_name(name), found if isinstance(found, dict) else None

    def listed(self) -> list[tuple[str, str, str]]:
        """Kind, name and origin of everything that modules and entry points offer."""
        rows = []
        for kind, group in GROUPS.items():
            rows += [(kind, e.name, _origin(e)) for e in entry_points(group=group)]
            for module in self.modules:
                rows += [(kind, name, f"--plugin {module}") for name in _table(module, kind)]
        return sorted(rows)

    def _beside(self, kind: str, names: Sequence[str], known: Mapping[str, Any]) -> Found:
        """What loads those names that the package does not have."""
        found: Found = {}
        for module in self.modules:
            for name, given in _table(module, kind).items():
                if name in known:
                    raise InputError(
                        f"--plugin {module} has a {kind} {name!r:.60}, which the package has "
                        "already; give yours another name"
                    )
                if name in found and name in names:
                    raise InputError(
                        f"--plugin {module} and another plugin both have a {kind} {name!r:.60}; "
                        "give one of them another name"
                    )
                found[name] = _from_module(kind, module, name, given)
        missing = [name for name in names if name not in known and name not in found]
        if missing:
            found |= _from_packages(kind, missing)
        return {name: found[name] for name in names if name in found and name not in known}


def _from_packages(kind: str, names: Sequence[str]) -> Found:
    """What installed packages offer under these names; two of one name are nobody's."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUPS[kind]):
        other = found.get(entry.name)
        if other is not None and entry.name in names and other.value != entry.value:
            raise InputError(
                f"{_origin(other)} ({other.value}) and {_origin(entry)} ({entry.value}) both have "
                f"a {kind} {entry.name!r:.60}; uninstall one, or name a module with --plugin"
            )
        found[entry.name] = entry
    return {name: _from_entry(kind, entry) for name, entry in found.items()}


def _module(name: str) -> Any:
    """The module of that name, from the working folder as well."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"--plugin is {name!r:.60}; give a module's name, such as my_module")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a module that exits must not end us with code 0
        raise InputError(f"--plugin {name} cannot be imported: {in_one_line(error)}") from error


def _table(module: str, kind: str) -> Mapping[str, Any]:
    table = getattr(_module(module), TABLES[kind], {})
    if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table):
        raise InputError(f"{TABLES[kind]} of {module} is no mapping from names to {kind}s")
    return table


def _from_module(kind: str, module: str, name: str, given: Any) -> Callable[[], Any]:
    where = f"{TABLES[kind]}[{name!r}] of {module}"
    return lambda: given if kind == "backbone" else _data(given, where)


def _from_entry(kind: str, entry: EntryPoint) -> Callable[[], Any]:
    def load() -> Any:
        try:
            given = entry.load()
        except (Exception, SystemExit) as error:
            raise InputError(
                f"the {kind} {entry.name!r} of {_origin(entry)} cannot be loaded: "
                f"{in_one_line(error)}"
            ) from error
        return given if kind == "backbone" else _data(given, f"{entry.value} of {_origin(entry)}")

    return load


def _origin(entry: EntryPoint) -> str:
    return "an entry point" if entry.dist is None else f"package {entry.dist.name}"


def _data(given: Any, where: str) -> Any:
    """A graph, or what a function gives; a study checks its fields."""
    from torch_geometric.data import Data

    if callable(given) and not isinstance(given, Data):
        try:
            given = given()
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{where} cannot be called without arguments: {in_one_line(error)}"
            ) from error
    if not isinstance(given, Data):
        raise InputError(f"{where} gives a {type(given).__name__}; give a torch_geometric Data")
    return given
