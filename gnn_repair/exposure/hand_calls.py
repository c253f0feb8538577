"""How PyTorch's gathering and adding functions are called, whatever the spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ADD = ("base", "dim", "index", "source")
_SCATTER = ("base", "dim", "index", "src")
_REDUCE = (*_SCATTER, "reduce")
_PUT = ("base", "indices", "values", "accumulate")
SPELLINGS: dict[Any, tuple[tuple[str, ...], bool]] = {
    torch.index_add: (_ADD, False),
    Tensor.index_add: (_ADD, False),
    Tensor.index_add_: (_ADD, True),
    torch.scatter_add: (_SCATTER, False),
    Tensor.scatter_add: (_SCATTER, False),
    Tensor.scatter_add_: (_SCATTER, True),
    torch.scatter_reduce: (_REDUCE, False),
    Tensor.scatter_reduce: (_REDUCE, False),
    Tensor.scatter_reduce_: (_REDUCE, True),
    torch.index_put: (_PUT, False),
    Tensor.index_put: (_PUT, False),
    Tensor.index_put_: (_PUT, True),
}
"""Names of the arguments by function, and whether the base is changed in place."""
ADDS = {f: inplace for f, (names, inplace) in SPELLINGS.items() if names in (_ADD, _SCATTER)}
"""Functions of (base, axis, index, messages), and whether they change the base in place."""
REDUCTIONS = {function for function, (names, _) in SPELLINGS.items() if names is _REDUCE}
"""Functions of (base, axis, index, messages, reduce)."""
SELECT = "index_select"
"""By its name: PyG puts a function of its own in the place of PyTorch's."""


@dataclass(frozen=True, eq=False)
class HandAdd:
    """A call that adds messages to the rows of a base."""

    base: Tensor
    index: Tensor
    """The recipient of every message, a list or of the messages' shape."""
    sent: Tensor
    """The messages."""
    inplace: bool
    how: str
    """``sum`` or ``mean``, or another reduction."""
    name: str
    """In words, such as ``scatter_reduce_ by amax``."""


def read_add(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> HandAdd | None:
    """What a call adds up along its first axis; None where it is no such call."""
    if function not in SPELLINGS:
        return None
    names, inplace = SPELLINGS[function]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    base: Any = given.get("base", given.get("input"))
    index, sent = _pair(given)
    tensors = all(isinstance(value, Tensor) for value in (base, index, sent))
    if not tensors or given.get("dim", 0) not in (0, -base.dim()) or given.get("alpha", 1) != 1:
        return None
    how = _how(given, names)
    if how == "mean" and (given.get("include_self", True) or bool(base.any())):
        how = "mean with its own value"
    label = f"{function.__name__} by {how}" if names is _REDUCE else function.__name__
    return HandAdd(base, index, sent, inplace, how, label)


def _pair(given: Mapping[str, Any]) -> tuple[Any, Any]:
    """The recipients and the messages."""
    if "indices" not in given:
        return given.get("index"), given.get("source", given.get("src"))
    places = given["indices"]
    single = isinstance(places, tuple | list) and len(places) == 1
    return (places[0] if single else None), given.get("values")


def _how(given: Mapping[str, Any], names: tuple[str, ...]) -> str:
    if names is _REDUCE:
        return str(given.get("reduce", ""))
    return "sum" if names is not _PUT or given.get("accumulate") else "overwriting"


def read_gather(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """The table and the list of nodes of a call that gathers rows; None where it does not."""
    table: Any = None
    index: Any = None
    if function is Tensor.__getitem__ and len(args) == 2 and not kwargs:
        table, index = args
        if isinstance(index, tuple) and index and _all_of(index[1:]):
            index = index[0]
    elif getattr(function, "__name__", "") == SELECT:
        given = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
        if given.get("dim") in (0, -2):
            table, index = given.get("input"), given.get("index")
            table = table if given["dim"] == 0 or _dim(table) == 2 else None
    elif function is functional.embedding and len(args) >= 2:
        index, table = args[:2]
    fits = isinstance(table, Tensor) and table.dim() in (2, 3) and table.is_floating_point()
    return (table, index) if fits and is_list(index) else None


def _all_of(rest: Sequence[Any]) -> bool:
    return all(part is Ellipsis or part == slice(None) for part in rest)


def _dim(table: Any) -> int:
    return table.dim() if isinstance(table, Tensor) else 0


def is_list(index: Any) -> bool:
    """Whether an index is a list of nodes."""
    return isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64
