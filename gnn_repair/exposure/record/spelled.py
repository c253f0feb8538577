"""Functions of PyTorch that are done in other operations while a model is recorded.

Fused kernels hide what nodes stand behind their results, and some of PyTorch's own ways to do a
thing look at numbers or lay nodes and channels along one axis. The results are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.library import _scoped_library, fallthrough_kernel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gnn_repair.exposure.record.reductions import EXTENSIONS, HANDLERS

Counts = Sequence[int]
"""Nodes of every type."""


def _one_hot(counts: Counts, func: Any, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """By comparison: PyTorch's own looks at the smallest and the largest number."""
    with _disable_current_modes():
        count = num_classes if num_classes >= 0 else int(tensor.max()) + 1
    return (tensor.unsqueeze(-1) == torch.arange(count, device=tensor.device)).to(torch.int64)


def _leaving(counts: Counts, func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """To numpy or Python: an operation that looks at the numbers says so in the record."""
    if tensor.numel():
        bool((tensor.reshape(-1)[:1] != 0).any())
    return func(tensor, *args, **kwargs)


def _einsum(counts: Counts, func: Any, equation: Any, *operands: Any, **options: Any) -> Tensor:
    """Of a stack of N × N matrices and a table a product per matrix: PyTorch's own puts the
    matrices, or nodes and channels, along one axis."""
    axes = _axes_of(equation, operands)
    chosen = None if axes is None else _square_operand(*axes, counts)
    if axes is None or chosen is None:
        return func(equation, *operands, **options)
    (*parts, result), sizes = axes
    which, row, column = chosen
    own, other = parts[which], parts[1 - which]
    batch = [a for a in own if a not in (row, column)]
    channels = [a for a in other if a not in own]
    matrices = operands[which].permute([own.index(a) for a in (*batch, row, column)])
    shared = [a for a in (*batch, column, *channels) if a in other]
    table = operands[1 - which].permute([other.index(a) for a in shared])
    for place, axis in enumerate(batch):
        table = table if axis in other else table.unsqueeze(place)
    stack, width, size = ([sizes[a] for a in some] for some in (batch, channels, [column]))
    table = table.expand(*stack, *size, *width).reshape(prod(stack), *size, prod(width))
    product = torch.bmm(matrices.reshape(prod(stack), *size, *size), table)
    order = [*batch, row, *channels]
    product = product.view(*stack, *size, *width)
    added = [order.index(a) for a in batch if a not in result]
    product = product.sum(added) if added else product
    order = [a for a in order if a in result]
    return product.permute([order.index(a) for a in result])


def _axes_of(equation: Any, operands: Any) -> tuple[list[str], dict[str, int]] | None:
    """The axes of two operands and of the result, and their sizes; None: in another form."""
    if not isinstance(equation, str) or "." in equation or len(operands) != 2:
        return None
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if not arrow:
        result = "".join(sorted(a for a in set(inputs) - {","} if inputs.count(a) == 1))
    sizes = {a: n for axes, one in zip(parts, operands, strict=True)
             for a, n in zip(axes, one.shape, strict=True)}  # fmt: skip
    repeated = any(len(set(axes)) < len(axes) for axes in (*parts, result))
    alone = any(a not in result and inputs.count(a) == 1 for a in sizes)
    return None if repeated or alone else ([*parts, result], sizes)


def _square_operand(
    axes: list[str], sizes: dict[str, int], counts: Counts
) -> tuple[int, str, str] | None:
    """Which operand holds N × N matrices, one for every place along its other axes, and their rows
    and columns, of which the latter are added up."""
    *parts, result = axes
    added = [a for a in parts[0] if a in parts[1] and a not in result and sizes[a] in counts]
    column = added[0] if added else ""
    for which, own in enumerate(parts):
        rows = [
            a for a in own if a not in parts[1 - which] and column and sizes[a] == sizes[column]
        ]
        if rows and (which == 1 or len(own) > 2):
            return which, rows[-1], column
    return None


def _matmul(counts: Counts, func: Any, left: Any, right: Any, **options: Any) -> Tensor:
    """A stack of N × N matrices times one table, as above."""
    both = isinstance(left, Tensor) and isinstance(right, Tensor) and not options
    if both and left.dim() == 3 and right.dim() == 2 and len(right) in counts:
        stacked = left.layout == right.layout == torch.strided
        if stacked and left.shape[1:] == (len(right), len(right)):
            return torch.bmm(left, right.expand(len(left), *right.shape))
    return func(left, right, **options)


SPELLED: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.einsum: _einsum,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys((Tensor.numpy, Tensor.tolist, Tensor.__array__), _leaving),
}
"""Functions that are done in operations that can be followed."""


class _Spelled(TorchFunctionMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        other = SPELLED.get(func)
        options = kwargs or {}
        return other(self.counts, func, *args, **options) if other else func(*args, **options)


@contextmanager
def unfused(counts: Counts) -> Iterator[None]:
    """While open, attention and recurrent layers show their steps instead of fused kernels.

    Operations of extensions, which hide behind their gradients, are seen as such. ``counts``: nodes
    of every type.
    """
    with ExitStack() as stack:
        stack.enter_context(_Spelled(counts))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        # Setting the flag touches one for Intel GPUs, which PyTorch then warns about.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        for namespace, name in _extension_operations():
            library = stack.enter_context(_scoped_library(namespace, "IMPL"))
            for key in ("AutogradCPU", "AutogradCUDA"):
                library.impl(name, fallthrough_kernel, key)
        yield


@cache
def _extension_operations() -> list[tuple[str, str]]:
    """The operations of installed extensions that :data:`HANDLERS` knows."""
    pairs = [(namespace, name) for namespace in EXTENSIONS for name in HANDLERS]
    return [(space, name) for space, name in pairs if hasattr(getattr(torch.ops, space), name)]
