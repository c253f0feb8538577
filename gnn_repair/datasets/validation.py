"""Checks of a graph, ours or a user's: each raises one sentence that names the value at fault."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.datasets.splits import as_splits
from gnn_repair.errors import DatasetError, SplitError

MASKS = ("train_mask", "val_mask", "test_mask")


def check_data(data: Data, masks: tuple[str, ...] = MASKS) -> None:
    """Check features, entries, labels and masks (``test_mask`` may be left out of ``masks``).

    The number of classes is ``data.classes`` where it is set, else the largest label plus one.
    """
    if not isinstance(data, Data):
        raise DatasetError(f"The graph is a {type(data).__name__}; give a torch_geometric Data.")
    for field in ("x", "edge_index", "y", *masks):
        if not isinstance(data.get(field), Tensor):
            raise DatasetError(f"The graph has no tensor {field}; set data.{field}.")
    check_features(data.x)
    check_edges(data.edge_index, num_nodes=data.x.size(0))
    if data.y.shape != (data.x.size(0),):
        raise DatasetError(
            f"y has shape {list(data.y.shape)} for {data.x.size(0)} nodes; give it one integer "
            "label per node."
        )
    check_labels(data.y, data.get("classes"))
    test = data.test_mask if "test_mask" in masks else None
    check_masks(data.train_mask, data.val_mask, test, data.y)


def num_classes(data: Data) -> int:
    """C: ``data.classes`` where it is set, else the largest label plus one."""
    return int(data.get("classes") or int(data.y.max()) + 1)


def check_features(x: Tensor) -> None:
    """Features [N, F] are floating-point and finite."""
    if x.dim() != 2 or x.size(0) == 0 or not x.is_floating_point():
        raise DatasetError(
            f"x is {x.dtype} of shape {list(x.shape)}; give floating-point features of shape "
            "[nodes, features] with at least one node."
        )
    broken = (~torch.isfinite(x)).nonzero()
    if len(broken):
        node, feature = broken[0].tolist()
        raise DatasetError(
            f"x holds {len(broken)} NaN or infinite values, the first ({x[node, feature].item()}) "
            f"at node {node}, feature {feature}; replace them with finite numbers."
        )


def check_edges(edge_index: Tensor, num_nodes: int) -> None:
    """Edges [2, E] join existing nodes."""
    integral = not edge_index.is_floating_point() and edge_index.dtype is not torch.bool
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or not integral:
        raise DatasetError(
            f"edge_index is {edge_index.dtype} of shape {list(edge_index.shape)}; give integer "
            "node numbers of shape [2, edges]."
        )
    outside = edge_index[(edge_index < 0) | (edge_index >= num_nodes)]
    if len(outside):
        raise DatasetError(
            f"edge_index names node {outside[0].item()}, but the nodes are 0 to {num_nodes - 1}; "
            "renumber them."
        )


def check_labels(y: Tensor, classes: int | None = None) -> None:
    """Labels [N] are -1 (unlabelled) or 0 to C-1, and at least one node is labelled."""
    if y.is_floating_point() or y.dtype is torch.bool:
        raise DatasetError(f"y is {y.dtype}; give integer labels, with -1 where unlabelled.")
    if y.numel() == 0 or int(y.max()) < 0:
        raise DatasetError("No node is labelled; give y at least one label of 0 or more.")
    top = int(y.max()) if classes is None else classes - 1
    outside = ((y < -1) | (y > top)).nonzero()
    if len(outside):
        node = int(outside[0])
        raise DatasetError(
            f"Node {node} has label {int(y[node])}, outside 0 to {top} (-1 means unlabelled); "
            "correct the labels."
        )


def check_masks(train: Tensor, val: Tensor, test: Tensor | None, y: Tensor) -> None:
    """Masks [N] or [N, splits] are bool, nonempty, disjoint and hold labelled nodes only."""
    given = zip(MASKS, (train, val, test), strict=True)
    masks = {name: mask for name, mask in given if mask is not None}
    for name, mask in masks.items():
        _check_mask(name, mask, train, y)
    for first, second in combinations(masks, 2):
        shared = (as_splits(masks[first]) & as_splits(masks[second])).nonzero()
        if len(shared):
            node, split = shared[0].tolist()
            raise SplitError(
                f"{first} and {second} overlap: node {node} is in both of split {split}; put "
                "every node in at most one of them."
            )


def _check_mask(name: str, mask: Tensor, train: Tensor, y: Tensor) -> None:
    """One mask has the shape of the others, no empty split and no unlabelled node."""
    fits = mask.dim() in (1, 2) and mask.size(0) == y.size(0) and mask.shape == train.shape
    if mask.dtype is not torch.bool or not fits:
        raise SplitError(
            f"{name} is {mask.dtype} of shape {list(mask.shape)}; give all three masks as bool of "
            f"shape [{y.size(0)}] or [{y.size(0)}, splits]."
        )
    columns = as_splits(mask)
    empty = (~columns.any(dim=0)).nonzero()
    if len(empty) or columns.size(1) == 0:
        which = int(empty[0]) if len(empty) else 0
        raise SplitError(f"{name} of split {which} is empty; give it at least one node.")
    unlabelled = (columns & (y < 0).unsqueeze(1)).nonzero()
    if len(unlabelled):
        node, split = unlabelled[0].tolist()
        raise SplitError(
            f"{name} of split {split} holds node {node}, which is unlabelled (y = {int(y[node])}); "
            "take unlabelled nodes out of every mask."
        )
