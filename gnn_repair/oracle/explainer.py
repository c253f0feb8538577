"""The oracle as a PyG explainer: an edge mask with which PyG runs the reweighted model."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import ExplainerAlgorithm, Explanation
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.explain.config import ModelMode, ModelTaskLevel
from torch_geometric.nn import MessagePassing

from gnn_repair.errors import InputError
from gnn_repair.exposure.from_model import expose
from gnn_repair.exposure.pieces import require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.problems import Tables, list_entries
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve

FAITHFUL = 1e-3
"""Largest difference between the masked model and β + Σ λ ℓ, relative to the logits: far above
float32's rounding, far below what another model would give."""
PART = re.compile(r"( (head|stack|relation) \d+)*( [+−])?$")
"""What stands behind a layer's name in the names of its groups."""
Layers = dict[MessagePassing, list[int]]
"""The layers whose messages are reweighted, each with the numbers of its groups."""


class OracleExplainer(ExplainerAlgorithm):
    """For each explained node, the few edges that make the target class win by most.

    The explanation's ``edge_mask`` [E] holds λ/α on the columns of ``edge_index`` that lead to the
    explained nodes, and 0 elsewhere: what the exposed layer's messages are to be multiplied by.
    PyG multiplies the messages of every layer that does not forbid it, so the explainer sets
    ``explain = False`` on the others; :meth:`release` undoes that. Before it returns, it runs the
    masked model and raises if that is not the reweighted one. So of PyG's tools

    * ``Explainer.get_masked_prediction``, ``unfaithfulness`` and the second number of ``fidelity``
      (fid−) see the reweighted model, at the explained nodes;
    * ``get_explanation_subgraph`` and plots show the edges that are used;
    * the first number of ``fidelity`` (fid+) multiplies by one minus the mask, which is no
      reweighting: it means nothing here.

    With several groups (heads, parallel layers) ``edge_mask`` holds Σλ/Σα of an edge's groups and
    ``group_mask`` [E, G] each group's own ratio; the exposed layers apply the latter when they are
    given the former. Layers that propagate several times (relations), hops beyond the edges, and
    self-loops that a convolution adds itself have no place on edges and are unsupported; add the
    loops to ``edge_index`` beforehand. ``solution`` carries margins and certificates, one LP per
    node; a model with a head gives verdicts, and an undecided node the best λ that was found.

    Args:
        exposure: of the model on the graph to be explained; found with
            :func:`~gnn_repair.exposure.expose` when not given.
        member: which member of the exposure.
        threads: as for :func:`solve`.
    """

    def __init__(
        self,
        exposure: Exposure | None = None,
        member: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self.exposure = exposure
        self.member = member
        self.threads = threads

    def forward(
        self,
        model: nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """The explanation of the nodes ``index`` (all unless given) for their ``target``."""
        if isinstance(x, dict) or isinstance(edge_index, dict):
            raise InputError("OracleExplainer explains homogeneous graphs; convert the graph first")
        exposure = self.exposure
        if exposure is None:
            exposure = expose(model, Data(x=x, edge_index=edge_index, **kwargs))
        require_outputs(exposure, "classes")
        exposure = exposure.member(self.member)
        nodes = None if index is None else torch.as_tensor(index).reshape(-1)
        layers = exposed_layers(model, exposure)
        solution = solve(exposure, target, nodes, threads=self.threads)
        masks = masks_of(solution, exposure, edge_index)
        edge_mask, group_mask = (mask.to(x.device) for mask in masks)

        def run() -> Tensor:
            with torch.no_grad():
                out: Tensor = model(x, edge_index, **kwargs)
            return out

        columns = (edge_index[1] * x.shape[0] + edge_index[0]).cpu().numpy()
        _prepare(model, run, layers, columns, x.shape[0], (edge_mask, group_mask))
        try:
            set_masks(model, edge_mask, edge_index, apply_sigmoid=False)
            masked = run()[solution.node].double().cpu()
        finally:
            clear_masks(model)
        _check_faithful(masked, exposure, solution)
        more = {"group_mask": group_mask} if exposure.num_groups > 1 else {}
        return Explanation(edge_mask=edge_mask, solution=solution, **more)

    def supports(self) -> bool:
        """Node-level classification with an edge mask and no node mask."""
        return bool(
            self.model_config.task_level == ModelTaskLevel.node
            and self.model_config.mode == ModelMode.multiclass_classification
            and self.explainer_config.node_mask_type is None
        )

    @staticmethod
    def release(model: nn.Module) -> None:
        """Let other explainers mask every layer of the model again."""
        for module in model.modules():
            if isinstance(module, MessagePassing):
                if module.explain is False:
                    module.explain = None
                _forget_columns(module)


def _prepare(
    model: nn.Module,
    run: Callable[[], Tensor],
    layers: Layers,
    columns: NDArray[np.int64],
    size: int,
    masks: tuple[Tensor, Tensor],
) -> None:
    """Only ``layers`` take masks, and they take them in the order of their own messages."""
    for module in model.modules():
        if isinstance(module, MessagePassing):
            module.explain = None if module in layers else False
    seen: dict[MessagePassing, list[Tensor]] = {layer: [] for layer in layers}

    def note(layer: Any, arguments: Any) -> None:
        if isinstance(arguments[0], Tensor) and not arguments[0].is_sparse:
            seen[layer].append(arguments[0])

    handles = []
    for layer in layers:
        _forget_columns(layer)
        handles.append(layer.register_propagate_forward_pre_hook(note))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    for layer, groups in layers.items():
        if len(seen[layer]) != 1:
            raise InputError(
                "the exposed layer propagates several times or along no list of edges, so no edge "
                "mask reweights it; use solve instead"
            )
        # Which column of the graph each of its messages belongs to.
        own = (seen[layer][0][1] * size + seen[layer][0][0]).cpu().numpy()
        order = np.argsort(columns, kind="stable")
        place = order[np.searchsorted(columns[order], own).clip(max=len(columns) - 1)]
        if (columns[place] == own).all():
            by_group = masks[1][:, groups]
            layer._mask_columns = torch.from_numpy(place), len(columns), masks[0], by_group
            layer.explain_message = MethodType(explain_message, layer)


def _forget_columns(layer: MessagePassing) -> None:
    """Undo what :func:`_prepare` did to a layer."""
    for name in ("explain_message", "_mask_columns"):
        layer.__dict__.pop(name, None)


def _check_faithful(seen: Tensor, exposure: Exposure, solution: Solution) -> None:
    """Raise InputError unless the masked model is the reweighted one at the solved nodes."""
    weights = solution.dense(exposure)
    expected = exposure.logits(weights)[0, solution.recipient].cpu()
    # A log-softmax head shifts all classes of a node alike.
    seen, expected = (z - z.mean(1, keepdim=True) for z in (seen, expected))
    gap = float(((seen - expected).abs() / expected.abs().clamp(min=1)).max())
    if not gap <= FAITHFUL:
        raise InputError(
            f"with the edge mask λ/α the model is {gap:.1g} away from its reweighted self, so "
            "PyG's tools would judge another model; use solve instead"
        )


# λ as masks of edges ------------------------------------------------------------------------------


def exposed_layers(model: nn.Module, exposure: Exposure) -> Layers:
    """The layers that the exposure's groups name; InputError where a group is no layer's."""
    if exposure.names.typed:
        raise InputError(
            "an edge mask is of one edge_index between nodes of one kind, and here senders are of "
            "several kinds; use solve instead, whose answers name relation and sender"
        )
    modules, layers = dict(model.named_modules()), Layers()
    for number, group in enumerate(exposure.groups):
        layer = modules.get(PART.sub("", group.name), model)  # which may be a layer itself
        if not isinstance(layer, MessagePassing):
            raise InputError(
                f"the model has no layer named {group.name!r}, so λ has no place on its edges: the "
                "exposure goes beyond one hop or is another model's; use solve instead"
            )
        layers.setdefault(layer, []).append(number)
    return layers


def masks_of(
    solution: Solution,
    exposure: Exposure,
    edge_index: Tensor,
) -> tuple[Tensor, Tensor]:
    """Edge mask [E] and group masks [E, G] of λ on the columns of ``edge_index``.

    A group's mask is λ/α on the columns that lead to solved nodes and 0 elsewhere; the edge mask is
    the same of all groups together, Σλ/Σα. Columns are matched by (source, recipient); parallel
    ones carry the same message and share the ratio.
    """
    if bool((exposure.sources < 0).any()):
        raise InputError("relaxed masses have terms without an edge; use solve instead")
    if len(np.unique(solution.node)) < len(solution):
        raise InputError("several classes of one node have no place in one mask; explain one")
    tables, size = Tables.from_exposure(exposure), exposure.num_nodes
    terms = list_entries(tables.segments[:: tables.num_groups], solution.recipient)
    owner = np.repeat(solution.recipient, tables.counts(solution.recipient))
    source, group = tables.origin(owner, terms)
    alpha = exposure.coefficients[0].double().cpu().numpy()
    share = np.zeros(exposure.num_terms)
    share[solution.terms] = solution.coefficients
    keys, where = np.unique(tables.nodes[owner] * size + source, return_inverse=True)
    columns = (edge_index[1] * size + edge_index[0]).cpu().numpy()
    whole, moved = np.zeros((2, len(keys), exposure.num_groups))
    np.add.at(whole, (where, group), alpha[terms])
    np.add.at(moved, (where, group), share[terms])
    _check_places(keys, whole, moved, columns, size)
    # By group and of all together; the last row is of columns without a key.
    whole, moved = (np.pad(np.c_[sums, sums.sum(1)], ((0, 1), (0, 0))) for sums in (whole, moved))
    ratio = np.divide(moved, whole, out=np.zeros_like(moved), where=whole > 0)
    row = np.where(np.isin(columns, keys), np.searchsorted(keys, columns), len(keys))
    masks = torch.from_numpy(ratio[row].T.copy()).to(exposure.coefficients.dtype)
    return masks[-1], masks[:-1].t()


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
            "hop, so λ has no place on edges; use solve instead"
        )
    grown = ((whole == 0) & (moved > 0)).any(1)
    if grown.any():
        recipient, source = divmod(int(keys[grown][0]), size)
        raise InputError(
            f"the edge from node {source} to node {recipient} has coefficient 0, and no mask makes "
            "more of it; use solve instead"
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
