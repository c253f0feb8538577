"""Operations of PyTorch without a form of their own here: kept as they are and run by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import Form, Operation
from gnn_repair.files import check_fields


@dataclass(frozen=True)
class Slot:
    """Stands in an operation's arguments for a tensor that differs by node."""

    position: int
    """Which of the inputs, or which of the constants by node."""
    rest: tuple[int, ...]
    """The shape of one node's part."""
    axis: int
    """Where the axis over nodes goes."""
    dtype: torch.dtype
    fixed: bool = False
    """Whether it is one of the constants."""

    def filled(self, rows: Tensor) -> Tensor:
        """The tensor with nodes [n, width] in their place."""
        tensor = rows.reshape(rows.shape[0], *self.rest).movedim(0, self.axis)
        if self.dtype == torch.bool:
            return tensor != 0
        return tensor if self.dtype.is_floating_point else tensor.to(self.dtype)


@dataclass(frozen=True, eq=False)
class Opaque(Operation):
    """Any node-wise operation of PyTorch; it can be run and differentiated but not bounded."""

    target: Callable[..., Any]
    """The ATen operation."""
    arguments: tuple[Any, ...]
    """Its arguments, with a :class:`Slot` for each tensor that differs by node."""
    keywords: dict[str, Any]
    fixed: tuple[Tensor, ...]
    """Constants by node, [N, width] each."""
    output: int | None
    """Which of several results; None where there is one."""
    axis: int
    """The axis of the result that runs over nodes."""

    FORM: ClassVar[Form] = {
        "target": str, "arguments": list, "keywords": dict, "fixed": list,
        "output": int | None, "axis": int,
    }  # fmt: skip

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        def fill(slot: Slot) -> Tensor:
            fixed = self.fixed[slot.position][nodes] if slot.fixed else None
            return slot.filled(values[slot.position] if fixed is None else fixed)

        arguments, keywords = tree_map_only(Slot, fill, (self.arguments, self.keywords))
        result = self.target(*arguments, **keywords)
        result = result if self.output is None else result[self.output]
        return result.double().movedim(self.axis, 0).reshape(nodes.numel(), -1)

    @property
    def title(self) -> str:
        return name_of(self.target)

    def width(self, widths: Sequence[int]) -> int:
        values = [torch.zeros(1, width, dtype=torch.float64) for width in widths]
        return self.evaluate(values, torch.zeros(1, dtype=torch.int64)).shape[1]

    def fits(self, widths: Sequence[int]) -> bool:
        return True

    def setting(self, name: str, prefix: str, tensors: dict[str, Tensor]) -> Any:
        if name != "target":
            return encoded(getattr(self, name), prefix + name, tensors)
        if not restorable(self.target):
            raise InputError(
                f"the head holds {self.title}, which has no form in files; keep the model and "
                "expose it again instead"
            )
        return written_name(self.target)

    @classmethod
    def of_settings(cls, values: dict[str, Any], tensors: dict[str, Tensor]) -> Opaque:
        given = {name: decoded(values[name], tensors) for name in ("arguments", "keywords")}
        fixed = tuple(decoded(values["fixed"], tensors))
        target = find_target(values["target"])
        given["arguments"] = tuple(given["arguments"])
        return cls(**{**values, **given, "fixed": fixed, "target": target})

    def to(self, device: str | torch.device) -> Opaque:
        """The operation with its constants on another device."""
        pieces = (self.arguments, self.keywords, self.fixed)
        arguments, keywords, fixed = tree_map_only(Tensor, lambda t: t.to(device), pieces)
        return replace(self, arguments=arguments, keywords=keywords, fixed=fixed)


def name_of(target: Any) -> str:
    """What an ATen operation is called in PyTorch, such as ``softplus``."""
    name = str(getattr(target, "_schema", target).name).partition("::")[2] or str(target)
    return name.strip("_")


def restorable(target: Any) -> bool:
    """Whether an operation may be read from a file: only elementwise ones, which touch nothing."""
    return torch.Tag.pointwise in getattr(target, "tags", ())


def find_target(name: str) -> Callable[..., Any]:
    """The elementwise ATen operation written as ``name.overload``."""
    packet, _, overload = name.partition(".")
    known = packet.isidentifier() and overload.isidentifier() and not packet.startswith("__")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if known else None
    if found is None or not restorable(found):
        raise InputError(
            f"it names the operation {name[:60]!r}, which is no elementwise one of this PyTorch"
        )
    return found


# In files ----------------------------------------------------------------------------------------

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)}
SLOT = {"position": int, "rest": list, "axis": int, "dtype": str, "fixed": bool}


def written_name(target: Any) -> str:
    """An ATen operation as ``name.overload``."""
    return f"{target._schema.name.partition('::')[2]}.{target._overloadname or 'default'}"


def encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON can hold it; tensors in it go into ``tensors`` under their name."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Slot):
        held = {"position": value.position, "rest": list(value.rest), "axis": value.axis}
        return {"slot": {**held, "dtype": str(value.dtype), "fixed": value.fixed}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, tuple | list):
        return [encoded(item, f"{name}.{k}", tensors) for k, item in enumerate(value)]
    if isinstance(value, dict):
        return {str(k): encoded(item, f"{name}.{k}", tensors) for k, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"the head holds a {type(value).__name__}, which has no form in files")


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`encoded`; what it reads is taken out of ``tensors``."""
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        if value["tensor"] not in tensors:
            raise InputError(f"it lacks {str(value['tensor'])[:80]!r}")
        return tensors.pop(value["tensor"])
    if value.keys() == {"slot"}:
        return _slot(check_fields(value["slot"], SLOT, "slot"))
    if value.keys() == {"dtype"}:
        return _dtype(value["dtype"])
    return {name: decoded(item, tensors) for name, item in value.items()}


def _slot(held: dict[str, Any]) -> Slot:
    rest = held["rest"]
    if any(type(size) is not int or size < 0 for size in rest):
        raise InputError(f"a slot of its head has shape {str(rest)[:60]}")
    return Slot(held["position"], tuple(rest), held["axis"], _dtype(held["dtype"]), held["fixed"])


def _dtype(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in DTYPES:
        raise InputError(f"its head names the type {str(name)[:40]!r}, which is none known here")
    return DTYPES[name]
