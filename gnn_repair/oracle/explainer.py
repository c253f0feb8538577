"""The oracle as a PyG explainer: λ as an edge mask, so PyG's own metrics and plots work on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import ExplainerAlgorithm, Explanation
from torch_geometric.explain.config import ModelMode, ModelTaskLevel

from gnn_repair.errors import InputError
from gnn_repair.exposure.from_model import expose
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.tails.solution import TailSolution


class OracleExplainer(ExplainerAlgorithm):
    """For each explained node, the few edges that make the target class win by most.

    The explanation's ``edge_mask`` [E] holds λ on the entries of ``edge_index``, summed over
    groups and explained nodes. A self-loop that the convolution added itself has no column; its λ
    is in ``self_loops`` [N]. ``solution`` carries margins and certificates, one LP per node.

    Args:
        exposure: of the model on the graph to be explained; found with
            :func:`~gnn_repair.exposure.expose` when not given.
        member: which member of the exposure.
        threads: as for :func:`solve_oracle`.
    """

    def __init__(
        self, exposure: Exposure | None = None, member: int = 0, threads: int | None = None
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
        solution = solve_oracle(exposure, target, nodes, threads=self.threads)
        edge_mask, self_loops = spread_over_edges(solution, edge_index, x.shape[0])
        return Explanation(
            edge_mask=edge_mask.to(x.device), self_loops=self_loops, solution=solution
        )

    def supports(self) -> bool:
        """Node-level classification with an edge mask and no node mask."""
        return bool(
            self.model_config.task_level == ModelTaskLevel.node
            and self.model_config.mode == ModelMode.multiclass_classification
            and self.explainer_config.node_mask_type is None
        )


def spread_over_edges(
    solution: OracleSolution | TailSolution, edge_index: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor]:
    """λ on the columns of ``edge_index`` [E] and on self-loops without a column [N].

    Columns are matched by (source, recipient); parallel ones share their λ equally.
    """
    recipient = np.repeat(solution.node, np.diff(solution.indptr))
    wanted = recipient * num_nodes + solution.sources
    source, end = edge_index.cpu().numpy()
    columns = end * num_nodes + source
    keys, inverse, parallel = np.unique(columns, return_inverse=True, return_counts=True)
    place = np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))
    found = keys[place] == wanted if len(keys) else np.zeros(len(wanted), bool)
    loose = ~found & (recipient != solution.sources)
    if loose.any():
        k = int(np.flatnonzero(loose)[0])
        raise InputError(
            f"node {solution.sources[k]} reaches node {recipient[k]} without an edge: the exposure "
            "goes beyond one hop, so λ has no place on edges; use solve_oracle instead"
        )
    share = np.bincount(place[found], solution.coefficients[found], max(len(keys), 1))
    edge_mask = (share[: len(keys)] / parallel)[inverse]
    loops = np.bincount(recipient[~found], solution.coefficients[~found], num_nodes)
    return torch.from_numpy(edge_mask).float(), torch.from_numpy(loops).float()
