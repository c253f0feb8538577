"""Products with several N × N matrices at once: attention heads, batches of one graph, einsum.

Each matrix is a product of its own, so that every head is a group; one matrix on several tables is
one product on their channels side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MULTIPLY = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm}
"""Functions of ([…, N, N], […, N, D]); A @ h is Tensor.matmul."""
HEADS = 64
"""Matrices that one call may multiply with: more than any attention has heads, and each of them is
probed by runs of its own."""


@dataclass(frozen=True, eq=False)
class Batch:
    """B products A_b h_b in one call."""

    matrices: Tensor
    """[B, N, N]."""
    tables: Tensor
    """[B, N, D]."""
    shaped: Callable[[Tensor], Tensor]
    """From the products [B, N, D] to what the model's own function returns."""

    def results(self, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What the call gives when each product is done by a function of (A, h)."""
        pairs = zip(self.matrices.unbind(0), self.tables.unbind(0), strict=True)
        return self.shaped(torch.stack([product(matrix, table) for matrix, table in pairs]))


def read_batch(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], nodes: int
) -> Batch | None:
    """The products with N × N matrices that a call of a torch function does; None: it does none."""
    if function in MULTIPLY and len(args) == 2 and not kwargs:
        return _multiplied(args[0], args[1], nodes)
    if function is torch.einsum and len(args) == 3 and isinstance(args[0], str):
        return _contracted(args[0].replace(" ", ""), args[1], args[2], nodes)
    if function is functional.scaled_dot_product_attention:
        return _attended(args, kwargs, nodes)
    return None


def _multiplied(left: Any, right: Any, nodes: int) -> Batch | None:
    if (
        not _dense(left, right)
        or min(left.dim(), right.dim()) < 2
        or left.dim() == right.dim() == 2
    ):
        return None
    if left.shape[-2:] != (nodes, nodes) or right.shape[-2] != nodes:
        return None
    outer = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    tables = right.expand(*outer, *right.shape[-2:])
    if left.shape[:-2].numel() == 1:
        columns = tables.reshape(-1, nodes, right.shape[-1]).transpose(0, 1)
        back = (nodes, outer.numel(), right.shape[-1])
        return Batch(
            left.reshape(1, nodes, nodes),
            columns.reshape(1, nodes, -1),
            lambda out: out.reshape(back).transpose(0, 1).reshape(tables.shape),
        )
    if not 0 < outer.numel() <= HEADS:
        return None
    matrices = left.expand(*outer, nodes, nodes).reshape(-1, nodes, nodes)
    flat = tables.reshape(-1, *right.shape[-2:])
    return Batch(matrices, flat, lambda out: out.reshape(tables.shape))


def _contracted(pattern: str, left: Any, right: Any, nodes: int) -> Batch | None:
    """Of einsum, a sum over one axis of a tensor with two axes of nodes, in either place."""
    if not _dense(left, right) or pattern.count("->") != 1 or "." in pattern:
        return None
    sides, out = pattern.split("->")
    names = sides.split(",")
    if len(names) != 2 or len(set(names[0])) < len(names[0]) or len(set(names[1])) < len(names[1]):
        return None
    for one, other in ((0, 1), (1, 0)):
        operands = (left, right)
        found = _roles(names[one], names[other], out, operands[one], nodes)
        if found is not None:
            return _arranged(found, names, out, operands, one, nodes)
    return None


def _roles(matrix: str, table: str, out: str, values: Tensor, nodes: int) -> tuple[str, str] | None:
    """The names of the matrix's axes of recipients and of senders."""
    wide = [name for name, size in zip(matrix, values.shape, strict=True) if size == nodes]
    senders = [name for name in wide if name in table and name not in out]
    recipients = [name for name in wide if name not in table and name in out]
    if len(senders) != 1 or len(recipients) != 1:
        return None
    kept = set(out) == (set(matrix) | set(table)) - {senders[0]}
    return (recipients[0], senders[0]) if kept else None


def _arranged(
    roles: tuple[str, str],
    names: list[str],
    out: str,
    operands: tuple[Tensor, Tensor],
    one: int,
    nodes: int,
) -> Batch | None:
    (recipient, sender), matrix, table = roles, names[one], names[1 - one]
    sizes = dict(zip(names[0] + names[1], (*operands[0].shape, *operands[1].shape), strict=True))
    heads = [name for name in matrix if name not in roles]
    channels = [name for name in table if name != sender and name not in heads]
    if not 0 < math.prod(sizes[name] for name in heads) <= HEADS:
        return None
    flat = "".join(heads)
    matrices = torch.einsum(f"{matrix}->{flat}{recipient}{sender}", operands[one])
    wanted = [*(name for name in heads if name in table), sender, *channels]
    tables = torch.einsum(f"{table}->{''.join(wanted)}", operands[1 - one])
    for place, name in enumerate(heads):
        if name not in table:
            tables = tables.unsqueeze(place)
    shape = [sizes[name] for name in heads]
    tables = tables.expand(*shape, nodes, *[sizes[name] for name in channels])
    back = [*shape, nodes, *[sizes[name] for name in channels]]
    order = f"{flat}{recipient}{''.join(channels)}->{out}"
    return Batch(
        matrices.reshape(-1, nodes, nodes),
        tables.reshape(math.prod(shape), nodes, -1),
        lambda values: torch.einsum(order, values.reshape(back)),
    )


def _attended(args: Sequence[Any], kwargs: Mapping[str, Any], nodes: int) -> Batch | None:
    """Attention whose mask is a graph: [N, N]. Without one it is attention over all nodes."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    query: Any = given.get("query")
    key: Any = given.get("key")
    value: Any = given.get("value")
    mask, scale = given.get("attn_mask"), given.get("scale")
    if not (_dense(query, key) and _dense(key, value) and isinstance(mask, Tensor)):
        return None
    plain = not given.get("dropout_p") and not given.get("is_causal")
    fits = mask.dim() >= 2 and mask.shape[-2:] == (nodes, nodes) and value.shape[-2] == nodes
    if not (plain and fits) or given.get("enable_gqa"):
        return None
    scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
    hidden = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    # A node that attends to nobody receives zeros.
    weights = hidden.softmax(-1).nan_to_num(nan=0.0)
    if weights.dim() > 2:
        return _multiplied(weights, value, nodes)
    return Batch(weights.unsqueeze(0), value.unsqueeze(0), lambda out: out.squeeze(0))


def _dense(left: Any, right: Any) -> bool:
    return (
        isinstance(left, Tensor)
        and isinstance(right, Tensor)
        and left.layout == right.layout == torch.strided
        and left.is_floating_point()
        and left.dtype == right.dtype
    )
