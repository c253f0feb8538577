"""Which of a model's modules is running, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Every module's names: one that several parts share has one in each."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def place(names: Sequence[str], running: Sequence[str]) -> str:
    """Of a shared module's names the one inside the module that runs it now."""
    for outer in reversed(running):
        for name in names:
            if outer and name.startswith(f"{outer}."):
                return name
    return names[0]


@contextmanager
def followed(model: nn.Module, running: list[str]) -> Iterator[None]:
    """While open, ``running`` holds the names of the modules that run, the innermost last."""
    names = names_of(model)

    def enter(module: nn.Module, args: Any) -> None:
        running.append(place(names[module], running))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    handles = [module.register_forward_pre_hook(enter) for module in names]
    handles += [module.register_forward_hook(leave) for module in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
