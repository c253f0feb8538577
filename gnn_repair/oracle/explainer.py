"""The oracle as a PyG explainer: an edge mask with which PyG runs the reweighted model."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import ExplainerAlgorithm, Explanation
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.explain.config import ModelMode, ModelTaskLevel
from torch_geometric.nn import MessagePassing

from gnn_repair.errors import InputError
from gnn_repair.exposure.from_model import expose
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.tails.solution import TailSolution

FAITHFUL = 1e-3
"""Largest difference between the masked model and β + Σ λ ℓ, relative to the logits: far above
float32's rounding, far below what another model would give."""


class OracleExplainer(ExplainerAlgorithm):
    """For each explained node, the few edges that make the target class win by most.

    The explanation's ``edge_mask`` [E] holds λ/α on the columns of ``edge_index`` that lead to the
    explained nodes, and 0 elsewhere: what the exposed layer's messages are to be multiplied by.
    PyG multiplies the messages of every layer that does not forbid it, so the explainer sets
    ``explain = False`` on the others; :meth:`release` undoes that. Before it returns, it runs the
    masked model and refuses if that is not the reweighted one. So of PyG's tools

    * ``Explainer.get_masked_prediction``, ``unfaithfulness`` and the second number of ``fidelity``
      (fid−) see the reweighted model, at the explained nodes;
    * ``get_explanation_subgraph`` and plots show the edges that are used;
    * the first number of ``fidelity`` (fid+) multiplies by one minus the mask, which is no
      reweighting: it means nothing here.

    Layers with several groups (heads, relations), hops beyond the edges, and self-loops that a
    convolution adds itself have no place in one number per edge and are refused; add the loops to
    ``edge_index`` beforehand. ``solution`` carries margins and certificates, one LP per node.

    Args:
        exposure: of the model on the graph to be explained; found with
            :func:`~gnn_repair.exposure.expose` when not given.
        member: which member of the exposure.
        threads: as for :func:`solve_oracle`.
    """

    def __init__(
        self,
        exposure: Exposure | TailedExposure | None = None,
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
        exposure = exposure.member(self.member)
        nodes = None if index is None else torch.as_tensor(index).reshape(-1)
        if nodes is not None and nodes.dtype == torch.bool:
            nodes = nodes.nonzero().view(-1)
        layer = exposed_layer(model, exposure)
        solution = solve_oracle(exposure, target, nodes, threads=self.threads)
        edge_mask = mask_of(solution, exposure, edge_index).to(x.device)
        _prepare(model, layer, x, edge_index, kwargs)
        _check_faithful(model, exposure, solution, (x, edge_index), edge_mask, kwargs)
        return Explanation(edge_mask=edge_mask, solution=solution)

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


def exposed_layer(model: nn.Module, exposure: Exposure | TailedExposure) -> MessagePassing:
    """The layer whose messages the exposure reweights; InputError unless it has one group."""
    if exposure.num_groups > 1:
        raise InputError(
            f"the exposure has {exposure.num_groups} groups (heads, hops or relations), and PyG's "
            "edge mask holds one number an edge; use solve_oracle instead"
        )
    name = exposure.groups[0].name
    layer = dict(model.named_modules()).get(name)
    if not isinstance(layer, MessagePassing):
        raise InputError(
            f"the model has no layer named {name!r}, so λ has no place on its edges: the exposure "
            "goes beyond one hop or is another model's; use solve_oracle instead"
        )
    return layer


def mask_of(
    solution: OracleSolution | TailSolution, exposure: Exposure | TailedExposure, edge_index: Tensor
) -> Tensor:
    """λ/α on the columns of ``edge_index`` [E] that lead to solved nodes, 0 elsewhere.

    Columns are matched by (source, recipient); parallel ones carry the same message and share the
    ratio Σλ / Σα.
    """
    if bool((exposure.sources < 0).any()):
        raise InputError("relaxed masses have terms without an edge; use solve_oracle instead")
    size, classes = exposure.num_nodes, np.unique(solution.node)
    if len(classes) < len(solution):
        raise InputError("several classes of one node have no place in one mask; explain one")
    ends = exposure.segments.cpu().numpy()
    position = solution.recipient
    counts = ends[position + 1] - ends[position]
    starts = np.cumsum(counts) - counts
    term = np.arange(counts.sum()) + np.repeat(ends[position] - starts, counts)
    recipient = np.repeat(solution.node, counts)
    source = exposure.sources.cpu().numpy()[exposure.rows.cpu().numpy()[term]].astype(np.int64)
    alpha = exposure.coefficients[0].double().cpu().numpy()
    share = np.zeros(exposure.num_terms)
    share[solution.terms] = solution.coefficients
    keys, where = np.unique(recipient * size + source, return_inverse=True)
    whole = np.bincount(where, alpha[term], len(keys))
    moved = np.bincount(where, share[term], len(keys))
    columns = (edge_index[1] * size + edge_index[0]).cpu().numpy()
    _check_places(keys, whole, moved, columns, size)
    place = np.searchsorted(keys, columns).clip(max=max(len(keys) - 1, 0))
    found = keys[place] == columns if len(keys) else np.zeros(len(columns), bool)
    ratio = np.where(whole > 0, moved / np.where(whole > 0, whole, 1.0), 0.0)
    mask = np.where(found, ratio[place] if len(keys) else 0.0, 0.0)
    return torch.from_numpy(mask).to(exposure.coefficients.dtype)


def _check_places(
    keys: np.ndarray[Any, Any],
    whole: np.ndarray[Any, Any],
    moved: np.ndarray[Any, Any],
    columns: np.ndarray[Any, Any],
    size: int,
) -> None:
    """Raise InputError where a term has no column, or λ cannot be a multiple of α."""
    missing = ~np.isin(keys, columns) & ((whole > 0) | (moved > 0))
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
    if ((whole == 0) & (moved > 0)).any():
        recipient, source = divmod(int(keys[(whole == 0) & (moved > 0)][0]), size)
        raise InputError(
            f"the edge from node {source} to node {recipient} has coefficient 0, and no mask makes "
            "more of it; use solve_oracle instead"
        )


def explain_message(self: Any, inputs: Tensor, dim_size: int | None) -> Tensor:
    """PyG's method of that name for a layer that reorders its edges, as GCN does with self-loops:
    each message is multiplied by the mask of its own edge."""
    mask, (columns, total) = self._edge_mask, self._mask_columns
    if mask.numel() != total or inputs.size(self.node_dim) != columns.numel():
        return MessagePassing.explain_message(self, inputs, dim_size)
    mask = mask.sigmoid() if self._apply_sigmoid else mask
    shape = [1] * inputs.dim()
    shape[self.node_dim] = -1
    return inputs * mask[columns.to(mask.device)].view(shape).to(inputs.dtype)


def _prepare(
    model: nn.Module, layer: MessagePassing, x: Tensor, edge_index: Tensor, kwargs: dict[str, Any]
) -> None:
    """Only ``layer`` takes masks, and it takes them in the order of its own messages."""
    for module in model.modules():
        if isinstance(module, MessagePassing):
            module.explain = None if module is layer else False
    _forget_columns(layer)
    seen: list[Tensor] = []

    def note(_: Any, arguments: Any) -> None:
        if isinstance(arguments[0], Tensor) and not arguments[0].is_sparse:
            seen.append(arguments[0])

    handle = layer.register_propagate_forward_pre_hook(note)
    try:
        with torch.no_grad():
            model(x, edge_index, **kwargs)
    finally:
        handle.remove()
    if len(seen) != 1:
        raise InputError(
            "the exposed layer propagates several times or along no list of edges, so no edge mask "
            "reweights it; use solve_oracle instead"
        )
    size = x.shape[0]
    columns = (edge_index[1] * size + edge_index[0]).cpu().numpy()
    entries = (seen[0][1] * size + seen[0][0]).cpu().numpy()
    order = np.argsort(columns, kind="stable")
    place = order[np.searchsorted(columns[order], entries).clip(max=len(columns) - 1)]
    if (columns[place] == entries).all():
        layer._mask_columns = torch.from_numpy(place), len(columns)
        layer.explain_message = MethodType(explain_message, layer)


def _forget_columns(layer: MessagePassing) -> None:
    """Undo what :func:`_prepare` did to a layer."""
    for name in ("explain_message", "_mask_columns"):
        layer.__dict__.pop(name, None)


def _check_faithful(
    model: nn.Module,
    exposure: Exposure | TailedExposure,
    solution: OracleSolution | TailSolution,
    graph: tuple[Tensor, Tensor],
    mask: Tensor,
    kwargs: dict[str, Any],
) -> None:
    """Raise InputError unless the masked model is the reweighted one at the solved nodes."""
    weights = solution.dense(exposure)  # type: ignore[arg-type]  # each is its own solution's
    expected = exposure.logits(weights)[0, solution.recipient].cpu()
    try:
        set_masks(model, mask, graph[1], apply_sigmoid=False)
        with torch.no_grad():
            seen = model(*graph, **kwargs)[solution.node].double().cpu()
    finally:
        clear_masks(model)
    # A log-softmax head shifts all classes of a node alike.
    seen, expected = (z - z.mean(1, keepdim=True) for z in (seen, expected))
    gap = float(((seen - expected).abs() / expected.abs().clamp(min=1)).max())
    if not gap <= FAITHFUL:
        raise InputError(
            f"with the edge mask λ/α the model is {gap:.1g} away from its reweighted self, so "
            "PyG's tools would judge another model; use solve_oracle instead"
        )
