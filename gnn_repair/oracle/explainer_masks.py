"""λ as masks of edges: what each group's messages are to be multiplied by."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.tails.solution import TailSolution

PART = re.compile(r"( (head|stack|relation) \d+)*( [+−])?$")
"""What stands behind a layer's name in the names of its groups."""
Layers = dict[MessagePassing, list[int]]
"""The layers whose messages are reweighted, each with the numbers of its groups."""


def exposed_layers(model: nn.Module, exposure: Exposure) -> Layers:
    """The layers that the exposure's groups name; InputError where a group is no layer's."""
    if exposure.names.typed:
        raise InputError(
            "an edge mask is of one edge_index, and this graph has several relations; use "
            "solve_oracle instead, whose answers name relation and sender"
        )
    modules, layers = dict(model.named_modules()), Layers()
    for number, group in enumerate(exposure.groups):
        layer = modules.get(PART.sub("", group.name))
        if not isinstance(layer, MessagePassing):
            raise InputError(
                f"the model has no layer named {group.name!r}, so λ has no place on its edges: the "
                "exposure goes beyond one hop or is another model's; use solve_oracle instead"
            )
        layers.setdefault(layer, []).append(number)
    return layers


def masks_of(
    solution: OracleSolution | TailSolution,
    exposure: Exposure,
    edge_index: Tensor,
) -> tuple[Tensor, Tensor]:
    """Edge mask [E] and group masks [E, G] of λ on the columns of ``edge_index``.

    A group's mask is λ/α on the columns that lead to solved nodes and 0 elsewhere; the edge mask is
    the same of all groups together, Σλ/Σα. Columns are matched by (source, recipient); parallel
    ones carry the same message and share the ratio.
    """
    if bool((exposure.sources < 0).any()):
        raise InputError("relaxed masses have terms without an edge; use solve_oracle instead")
    if len(np.unique(solution.node)) < len(solution):
        raise InputError("several classes of one node have no place in one mask; explain one")
    terms, recipient = _terms_of(solution, exposure)
    size = exposure.num_nodes
    source = exposure.sources.cpu().numpy()[exposure.rows.cpu().numpy()[terms]].astype(np.int64)
    alpha = exposure.coefficients[0].double().cpu().numpy()
    share = np.zeros(exposure.num_terms)
    share[solution.terms] = solution.coefficients
    keys, where = np.unique(recipient * size + source, return_inverse=True)
    columns = (edge_index[1] * size + edge_index[0]).cpu().numpy()
    group = _groups_of(exposure, terms)
    whole, moved = np.zeros((2, len(keys), exposure.num_groups))
    np.add.at(whole, (where, group), alpha[terms])
    np.add.at(moved, (where, group), share[terms])
    _check_places(keys, whole, moved, columns, size)
    by_group = _on_columns(keys, whole, moved, columns)
    together = _on_columns(keys, whole.sum(1)[:, None], moved.sum(1)[:, None], columns)[:, 0]
    dtype = exposure.coefficients.dtype
    return torch.from_numpy(together).to(dtype), torch.from_numpy(by_group).to(dtype)


def _terms_of(
    solution: OracleSolution | TailSolution, exposure: Exposure
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All terms of the solved nodes, and the node of each."""
    ends = exposure.segments[:: exposure.num_groups].cpu().numpy()
    position = solution.recipient
    counts = ends[position + 1] - ends[position]
    starts = np.cumsum(counts) - counts
    terms = np.arange(counts.sum()) + np.repeat(ends[position] - starts, counts)
    return terms, np.repeat(solution.node, counts)


def _groups_of(exposure: Exposure, terms: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = exposure.segments.cpu().numpy()
    return np.asarray((np.searchsorted(ends, terms, side="right") - 1) % exposure.num_groups)


def _on_columns(
    keys: NDArray[np.int64], whole: NDArray[Any], moved: NDArray[Any], columns: NDArray[Any]
) -> NDArray[np.float64]:
    """moved / whole [E, G] at the columns that have a key, 0 elsewhere."""
    if not len(keys):
        return np.zeros((len(columns), whole.shape[1]))
    place = np.searchsorted(keys, columns).clip(max=len(keys) - 1)
    found = keys[place] == columns
    ratio = np.where(whole > 0, moved / np.where(whole > 0, whole, 1.0), 0.0)
    return np.asarray(np.where(found[:, None], ratio[place], 0.0))


def _check_places(
    keys: NDArray[np.int64],
    whole: NDArray[np.float64],
    moved: NDArray[np.float64],
    columns: NDArray[np.int64],
    size: int,
) -> None:
    """Raise InputError where a term has no column, or λ cannot be a multiple of α."""
    used = ((whole > 0) | (moved > 0)).any(1)
    missing = ~np.isin(keys, columns) & used
    if missing.any():
        recipient, source = divmod(int(keys[missing][0]), size)
        if recipient == source:
            raise InputError(
                f"the convolution adds a self-loop to node {source} that edge_index does not have; "
                "pass add_remaining_self_loops(edge_index)[0] so that it has a place in the mask"
            )
        raise InputError(
            f"node {source} reaches node {recipient} without an edge: the exposure goes beyond one "
            "hop, so λ has no place on edges; use solve_oracle instead"
        )
    grown = ((whole == 0) & (moved > 0)).any(1)
    if grown.any():
        recipient, source = divmod(int(keys[grown][0]), size)
        raise InputError(
            f"the edge from node {source} to node {recipient} has coefficient 0, and no mask makes "
            "more of it; use solve_oracle instead"
        )


def explain_message(self: Any, inputs: Tensor, dim_size: int | None) -> Tensor:
    """PyG's method of that name for a layer that reorders its edges, as GCN does with self-loops,
    or whose groups (heads) have masks of their own: each message is multiplied by the mask of its
    own edge, and where PyG asks for the explanation's own mask, by those of its groups."""
    mask, (columns, total, together, by_group) = self._edge_mask, self._mask_columns
    if mask.numel() != total or inputs.size(self.node_dim) != columns.numel():
        return MessagePassing.explain_message(self, inputs, dim_size)
    mask = mask.sigmoid() if self._apply_sigmoid else mask
    shape = [1] * inputs.dim()
    shape[self.node_dim] = -1
    columns = columns.to(mask.device)
    if torch.equal(mask, together.to(mask)):
        own = by_group.to(mask)[columns]
        if inputs.dim() == 3 and inputs.shape[1] == own.shape[1]:
            return inputs * own.unsqueeze(2).to(inputs.dtype)
        mask, columns = own.sum(1), slice(None)  # an edge is in one of the groups
    return inputs * mask[columns].view(shape).to(inputs.dtype)
