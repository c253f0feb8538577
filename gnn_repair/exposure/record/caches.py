"""Tables that modules keep between runs, and that a recorded run has to make anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, eq=False)
class KeptTable:
    """An attribute of a module."""

    name: str
    holder: dict[str, Any]
    key: str

    @property
    def empty(self) -> Any:
        """What stands there before a first run."""
        value = self.holder[self.key]
        return type(value)() if isinstance(value, dict | list | set) else None


def kept_tables(model: nn.Module, used: set[int]) -> list[KeptTable]:
    """The attributes that hold tensors which a run has read, weights and buffers excepted."""
    learned = {id(t) for t in (*model.parameters(), *model.buffers())}
    return [
        KeptTable(f"{name}.{key}".lstrip("."), vars(module), key)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if not key.startswith(("_parameters", "_buffers", "_modules"))
        and any(
            isinstance(leaf, Tensor) and id(leaf) in used - learned for leaf in tree_leaves(value)
        )
    ]


@contextmanager
def emptied(tables: Sequence[KeptTable]) -> Iterator[None]:
    """While open, the attributes are as before a first run."""
    kept = [table.holder[table.key] for table in tables]
    for table in tables:
        table.holder[table.key] = table.empty
    try:
        yield
    finally:
        for table, value in zip(tables, kept, strict=True):
            table.holder[table.key] = value
