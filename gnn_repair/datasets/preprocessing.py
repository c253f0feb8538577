"""From a raw graph to the entries, masks and types that everything after relies on."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, to_undirected

from gnn_repair.datasets.splits import Draw, Masks, as_splits, stratified_splits
from gnn_repair.datasets.validation import check_data, check_edges, check_labels

SPLITS = 10


def preprocess(
    raw: Data, name: str, classes: int, stratified: bool = False, draw: Draw = "torch"
) -> Data:
    """Prepare a raw graph and check it.

    Features are cast, not normalised. Splits are the first ten provided ones, or, if
    ``stratified``, ten drawn ones (by the generator ``draw``); nodes with ``y = -1`` are in none.

    Returns:
        ``x`` float32 [N, F], ``edge_index`` [2, E], ``y`` long [N], ``train_mask``, ``val_mask``
        and ``test_mask`` bool [N, splits], ``name`` and ``classes`` (C).
    """
    y = raw.y.long().view(-1)
    check_labels(y, classes)
    train, val, test = stratified_splits(y, draw=draw) if stratified else _provided(raw, y)
    data = Data(
        x=raw.x.float().contiguous(),
        edge_index=entries(raw.edge_index, num_nodes=raw.x.size(0)),
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        name=name,
        classes=classes,
    )
    check_data(data)
    return data


def entries(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The entries E [2, E] of a graph: symmetric, coalesced, one more self-loop per node.

    The self-loop comes on top of one that is already there, so that such a node has two: this is
    what reproduces the published counts.
    """
    check_edges(edge_index, num_nodes)
    symmetric = to_undirected(edge_index.long(), num_nodes=num_nodes)
    looped, _ = add_self_loops(symmetric, num_nodes=num_nodes)
    return looped.contiguous()


def _provided(raw: Data, y: Tensor) -> Masks:
    labelled = (y >= 0).unsqueeze(1)
    train, val, test = (
        (as_splits(mask.bool())[:, :SPLITS] & labelled).contiguous()
        for mask in (raw.train_mask, raw.val_mask, raw.test_mask)
    )
    return train, val, test
