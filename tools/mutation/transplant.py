"""Putting a mutant's code into a process that has loaded the module already."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from tools.mutation.mutants import Mutant


def module_of(path: Path) -> ModuleType:
    """The module of a file, loaded where it was not."""
    return importlib.import_module(".".join(path.with_suffix("").parts))


def transplant(mutant: Mutant) -> None:
    """Change the running module as the mutant has it; whoever imported from it sees the change."""
    module = module_of(mutant.path)
    tree, statement, scope = mutant.changed
    if any(isinstance(owner, ast.FunctionDef) for owner in scope):
        _swap_code(tree, str(module.__file__))
        return
    owner = _owner(scope, module)
    if isinstance(statement, ast.FunctionDef):
        _swap_defaults(statement, owner, module)
    elif owner is not None:
        _set_attribute(statement, owner, module)
    else:
        _set_names(statement, module)


def _swap_code(tree: ast.Module, file: str) -> None:
    """Every living function of the file gets the code that the mutant has for it."""
    new = {_place(code): code for code in _codes(compile(tree, file, "exec"))}
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == file:
            code = new.get(_place(function.__code__))
            if code is not None and code != function.__code__:
                function.__code__ = code


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _run(statement: ast.stmt, module: ModuleType, owner: type | None = None) -> dict[str, Any]:
    """The names that a statement gives values to, when run with those that the module has now."""
    before = {**vars(module), **(vars(owner) if owner else {})}
    names = dict(before)
    tree = ast.Module([statement], [])
    exec(compile(tree, str(module.__file__), "exec"), names)
    return {name: v for name, v in names.items() if name in before and v is not before[name]}


def _owner(scope: tuple[ast.stmt, ...], module: ModuleType) -> type | None:
    owner: Any = module
    for inner in scope:
        owner = getattr(owner, cast(ast.ClassDef, inner).name)
    return None if owner is module else owner


def _swap_defaults(statement: ast.FunctionDef, owner: type | None, module: ModuleType) -> None:
    statement.decorator_list = []
    new = _run(statement, module, owner)[statement.name]
    old = inspect.unwrap(_plain(vars(owner or module)[statement.name]))
    old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__


def _plain(function: Any) -> Callable[..., Any]:
    for name in ("__func__", "fget", "func"):
        function = getattr(function, name, None) or function
    return cast(Callable[..., Any], function)


def _set_names(statement: ast.stmt, module: ModuleType) -> None:
    """A value of the module, in it and in all modules that imported it by that name."""
    before = dict(vars(module))
    for name, value in _run(statement, module).items():
        for other in list(sys.modules.values()):
            if getattr(other, "__dict__", {}).get(name, MISSING) is before[name]:
                setattr(other, name, value)


def _set_attribute(statement: ast.stmt, owner: type, module: ModuleType) -> None:
    """A value of a class, and the default of the argument that a dataclass makes of it."""
    for name, value in _run(statement, module, owner).items():
        value = value.default if isinstance(value, Field) else value
        if value is MISSING:
            continue
        before = vars(owner)[name]
        setattr(owner, name, value)
        for heir in _heirs(owner):
            if heir is owner or vars(heir).get(name, before) is before:
                _set_default(heir, name, value)


def _heirs(owner: type) -> Iterator[type]:
    yield owner
    heirs: list[type] = type.__subclasses__(owner)
    for heir in heirs:
        yield from _heirs(heir)


def _set_default(owner: type, name: str, value: object) -> None:
    start: Any = vars(owner).get("__init__")
    if start is None or "__dataclass_fields__" not in vars(owner):
        return
    if start.__kwdefaults__ and name in start.__kwdefaults__:
        start.__kwdefaults__ = {**start.__kwdefaults__, name: value}
    given = start.__code__.co_varnames[: start.__code__.co_argcount]
    defaults = dict(zip(reversed(given), reversed(start.__defaults__ or ()), strict=False))
    if name in defaults:
        defaults[name] = value
        start.__defaults__ = tuple(defaults[own] for own in given if own in defaults)
