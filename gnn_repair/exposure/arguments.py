"""What outputs are, and what users say about an exposure: labels, nodes, members, coefficients.

Of classes the largest logit wins, and only differences count. A label is there where its own logit
is positive; a value is what it is. What the methods of an exposure are given is checked before it
reaches a kernel, which reads through the sizes it is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gnn_repair.checks import as_classes, as_member, as_nodes
from gnn_repair.errors import InputError

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


Outputs = Literal["classes", "labels", "values"]
OUTPUTS = ("classes", "labels", "values")
NOUNS = {"classes": "class", "labels": "label", "values": "value"}


def check_outputs(outputs: Any) -> None:
    """Raise InputError unless it names what outputs can be, or is None."""
    if outputs is not None and outputs not in OUTPUTS:
        raise InputError(f"outputs is {outputs!r}; choose 'classes', 'labels' or 'values'")


def require_outputs(exposure: Any, *wanted: str) -> None:
    """Raise InputError where the exposure's outputs are none of ``wanted``."""
    found = exposure.outputs
    if found in wanted:
        return
    advice = {
        "labels": "use solve, reach(exposure, y [N, K]) or value_range",
        "values": "use value_range",
        "classes": "expose the model with outputs='labels' or outputs='values'",
    }
    raise InputError(
        f"the exposure's outputs are {found}, and this is about {' or '.join(wanted)}; "
        + advice[found]
    )


def truths_for(exposure: Exposure, y: Any) -> Tensor:
    """y as [N, K] float64 of zeros and ones, NaN where unknown, on the exposure's device.

    Args:
        exposure: N nodes, K labels.
        y: [N, K] (or [N] for one label): truth values, zeros and ones; −1 or NaN is unknown.
    """
    shape = (exposure.num_nodes, exposure.num_classes)
    table = as_table(y, shape)
    unknown = table.isnan() | (table == -1)
    wrong = ~(unknown | (table == 0) | (table == 1))
    if bool(wrong.any()):
        node, label = wrong.nonzero()[0].tolist()
        raise InputError(
            f"y holds {float(table[node, label]):g} for label {label} of node {node}; give 1 where "
            "the label is, 0 where it is not, and NaN (or −1) where that is not known"
        )
    return table.masked_fill(unknown, torch.nan).to(exposure.recipients.device)


def as_table(y: Any, shape: tuple[int, int], name: str = "y") -> Tensor:
    """Numbers a user gives for every node and output, [N, K] float64."""
    try:
        table = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(y).__name__
        raise InputError(f"{name} is a {kind}; give a tensor {list(shape)}") from error
    if table.dim() == 1 and shape[1] == 1:
        table = table.unsqueeze(1)
    if tuple(table.shape) != shape or table.is_complex():
        raise InputError(
            f"{name} has shape {list(table.shape)} instead of {list(shape)}: a row for every node, "
            "a column for every output"
        )
    return table.detach().double()


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
