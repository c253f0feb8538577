"""What an exposure's own methods are given: checked before it reaches a kernel.

The kernels read through the sizes they are told, so a tensor of another length would be read
past its end.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.outputs import require_outputs

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


def coefficients_for(exposure: Exposure, coefficients: Any) -> Tensor:
    """λ as [S or 1, T] on the exposure's device; a vector [T] is shared by all members."""
    if not isinstance(coefficients, Tensor):
        raise InputError(f"coefficients is a {_kind(coefficients)}; pass a tensor [S or 1, T]")
    if not coefficients.is_floating_point():
        raise InputError(f"coefficients holds {coefficients.dtype}; convert it with .double()")
    members, terms = exposure.num_members, exposure.num_terms
    shaped = coefficients.unsqueeze(0) if coefficients.dim() == 1 else coefficients
    if shaped.dim() != 2 or shaped.shape[0] not in (1, members) or shaped.shape[1] != terms:
        first = "1" if members == 1 else f"1 or {members}"
        raise InputError(
            f"coefficients has shape {list(coefficients.shape)} instead of [{first}, {terms}]: "
            "one number for every term of the exposure"
        )
    if shaped.device != exposure.rows.device:
        raise InputError(
            f"coefficients is on {shaped.device} and the exposure on {exposure.rows.device}; "
            "move one of them with .to()"
        )
    if not bool(torch.isfinite(shaped).all()):
        raise InputError("coefficients holds NaN or infinite values")
    return shaped


def classes_for(exposure: Exposure, target: Any) -> Tensor:
    """The class of every node of the graph, [N] int64, −1 where it is not known."""
    require_outputs(exposure, "classes")
    classes = _tensor(target, "target", "a class for every node, [N]").to(exposure.rows.device)
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise InputError(f"target holds {classes.dtype}; pass class numbers, such as data.y")
    if classes.shape != (exposure.num_nodes,):
        raise InputError(
            f"target has shape {list(classes.shape)} instead of [{exposure.num_nodes}]: "
            "one class for every node of the graph"
        )
    wrong = ((classes < -1) | (classes >= exposure.num_classes)).nonzero()
    if wrong.numel():
        node = int(wrong[0])
        raise InputError(
            f"target is {int(classes[node])} at node {node}; classes are 0 to "
            f"{exposure.num_classes - 1}, and −1 where unknown"
        )
    return classes.long()


def nodes_for(exposure: Exposure, nodes: Any) -> Tensor:
    """Node numbers [k] int64 from a mask [N], numbers in any order, or anything like them."""
    chosen = _tensor(nodes, "nodes", "a mask [N] or node numbers").to(exposure.recipients.device)
    if chosen.dim() == 0 and chosen.dtype != torch.bool:
        chosen = chosen.view(1)
    if chosen.dim() != 1:
        raise InputError(
            f"nodes has shape {list(chosen.shape)}; pass one mask [N] or a list of node numbers "
            "(of a mask by split, one column)"
        )
    if chosen.dtype == torch.bool:
        if chosen.numel() != exposure.num_nodes:
            raise InputError(
                f"the mask has {chosen.numel()} entries for the graph's {exposure.num_nodes} nodes"
            )
        return chosen.nonzero().view(-1)
    if chosen.numel() == 0:
        return chosen.long()
    if chosen.is_floating_point() or chosen.is_complex():
        raise InputError(f"nodes holds {chosen.dtype}; pass node numbers or a boolean mask")
    outside = chosen[(chosen < 0) | (chosen >= exposure.num_nodes)]
    if outside.numel():
        raise InputError(
            f"node {int(outside[0])} does not exist; nodes are 0 to {exposure.num_nodes - 1}"
        )
    return chosen.long()


def member_for(exposure: Exposure, index: Any) -> int:
    """A member's number, counted from the end where negative, as Python's sequences do."""
    count = exposure.num_members
    try:
        number = operator.index(index)
    except TypeError:
        raise InputError(f"member is a {_kind(index)}; pass a whole number") from None
    if not -count <= number < count:
        raise InputError(f"member {number} does not exist; there are {count}, numbered from 0")
    return number % count


def _tensor(value: Any, name: str, wanted: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        # A range or a set is no sequence to torch; a list of their items is.
        return torch.as_tensor(list(value) if isinstance(value, range | set) else value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is a {_kind(value)}; pass {wanted}") from None


def _kind(value: Any) -> str:
    return type(value).__name__
