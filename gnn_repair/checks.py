"""The one validator: labels, nodes, members, edges, masks and graphs that users hand over.

Each check raises one sentence that names the value at fault and what to give instead. What passes
comes back as the tensor that everything after reads.
"""

from __future__ import annotations

import operator
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.errors import DatasetError, InputError, SplitError, kind_of

MASKS = ("train_mask", "val_mask", "test_mask")


# One value ----------------------------------------------------------------------------------------


def as_classes(value: Any, nodes: int, classes: int, name: str, noun: str = "node") -> Tensor:
    """The class of every node of a graph, [N] int64, −1 where it is not known."""
    labels = _tensor(value, name, f"a class for every {noun}, [N]")
    if labels.shape != (nodes,):
        advice = ""
        if labels.dim() == 2:
            several = f"for several labels per {noun} expose the model with outputs='labels'"
            one_hot = labels.shape[1] == classes and bool(((labels != 0).sum(1) == 1).all())
            advice = f"; pass {name}.argmax(1)" if one_hot else f"; {several}"
            advice = f"; pass {name}.flatten()" if labels.shape[1] == 1 else advice
        raise InputError(
            f"{name} has shape {list(labels.shape)} instead of [{nodes}]: one class for every "
            f"{noun}{advice}"
        )
    _check_classes(labels, classes - 1, name, InputError, noun)
    return labels.long()


def _check_classes(
    labels: Tensor, top: int, name: str, error: type[InputError], noun: str = "node"
) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        whole = not labels.is_complex() and bool((labels == labels.long()).all())
        instead = f"{name}.long()" if whole else "whole numbers, −1 where unknown"
        raise error(f"{name} holds {labels.dtype} instead of class numbers; pass {instead}")
    labels = labels.long()  # an unsigned number is never below −1
    outside = ((labels < -1) | (labels > top)).nonzero()
    if outside.numel():
        node = int(outside[0])
        raise error(
            f"{name} is {int(labels[node])} at {noun} {node}; classes are 0 to {top}, and −1 where "
            "unknown"
        )


def as_nodes(value: Any, nodes: int, name: str = "nodes", noun: str = "node") -> Tensor:
    """Node numbers [k] int64 from a mask [N], numbers in any order, or anything like them."""
    chosen = _tensor(value, name, f"a mask [N] or {noun} numbers")
    if chosen.dim() == 0 and chosen.dtype != torch.bool:
        chosen = chosen.view(1)
    if chosen.dim() != 1:
        raise InputError(
            f"{name} has shape {list(chosen.shape)}; pass one mask [N] or a list of {noun} numbers "
            "(of a mask by split, one column)"
        )
    if chosen.dtype == torch.bool:
        if chosen.numel() != nodes:
            raise InputError(
                f"{name} has {chosen.numel()} entries for {nodes} {noun}s; give it one for each"
            )
        return chosen.nonzero().view(-1)
    if chosen.numel() == 0:
        return chosen.long()
    if chosen.is_floating_point() or chosen.is_complex():
        raise InputError(f"{name} holds {chosen.dtype}; pass {noun} numbers or a boolean mask")
    if chosen.numel() == nodes > 2 and bool(((chosen == 0) | (chosen == 1)).all()):
        raise SplitError(
            f"{name} is {chosen.dtype}, zeros and ones for all {nodes} {noun}s; pass a boolean "
            f"mask, such as {name}.bool(), or {noun} numbers"
        )
    outside = chosen[(chosen < 0) | (chosen >= nodes)]
    if outside.numel():
        raise InputError(f"{noun} {int(outside[0])} does not exist; {noun}s are 0 to {nodes - 1}")
    return chosen.long()


def as_member(value: Any, count: int) -> int:
    """A member's number, counted from the end where negative, as Python's sequences do."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InputError(f"member is {kind_of(value)}; pass a whole number") from None
    if not -count <= number < count:
        raise InputError(f"member {number} does not exist; there are {count}, numbered from 0")
    return number % count


def as_splits(mask: Tensor) -> Tensor:
    """A mask [N] (one split) or [N, splits] as [N, splits]."""
    if mask.dim() not in (1, 2):
        raise SplitError(f"A mask has shape {list(mask.shape)}; give it shape [N] or [N, splits].")
    return mask.unsqueeze(1) if mask.dim() == 1 else mask


def _tensor(value: Any, name: str, wanted: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        # A range or a set is no sequence to torch; a list of their items is.
        return torch.as_tensor(list(value) if isinstance(value, range | set) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        what = "holds a number too large for 64 bits" if "verflow" in str(error) else ""
        raise InputError(f"{name} {what or f'is {kind_of(value)}'}; pass {wanted}") from None


# A graph ------------------------------------------------------------------------------------------


def check_data(data: Data, masks: tuple[str, ...] = MASKS) -> None:
    """Check features, entries, labels and masks (``test_mask`` may be left out of ``masks``).

    The number of classes is ``data.classes`` where it is set, else the largest label plus one.
    """
    if not isinstance(data, Data):
        raise DatasetError(f"The graph is {kind_of(data)}; give a torch_geometric Data.")
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
    """Features [N, F] are dense, floating-point and finite."""
    if x.layout != torch.strided:
        raise DatasetError(f"x is sparse ({x.layout}); set data.x = data.x.to_dense().")
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
    if not y.is_floating_point() and (y.numel() == 0 or int(y.max()) < 0):
        raise DatasetError("No node is labelled; give y at least one label of 0 or more.")
    _check_classes(y, int(y.max()) if classes is None else classes - 1, "y", DatasetError)


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


def require_derivatives() -> None:
    """Raise where PyTorch records no derivatives, whatever is asked of it."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            "derivatives are needed and torch.inference_mode() records none; call it outside, or "
            "under torch.no_grad()"
        )
