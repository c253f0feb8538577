"""What an exposure's own methods are given: checked before it reaches a kernel.

The kernels read through the sizes they are told, so a tensor of another length would be read
past its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.checks import as_classes, as_member, as_nodes
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
    given = as_classes(target, exposure.num_nodes, exposure.num_classes, "target")
    return given.to(exposure.rows.device)


def nodes_for(exposure: Exposure, nodes: Any) -> Tensor:
    """Node numbers [k] int64 from a mask [N], numbers in any order, or anything like them."""
    return as_nodes(nodes, exposure.num_nodes).to(exposure.recipients.device)


def member_for(exposure: Exposure, index: Any) -> int:
    """A member's number, counted from the end where negative, as Python's sequences do."""
    return as_member(index, exposure.num_members)


def _kind(value: Any) -> str:
    return type(value).__name__
