"""Labels as users give them: zeros and ones, one column a label, some of them unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


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
