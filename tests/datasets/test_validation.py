"""Each kind of bad input is refused by name; entries of a small graph by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.catalog import DatasetSpec, Statistics
from gnn_repair.checks import check_data
from gnn_repair.datasets import stratified_splits
from gnn_repair.datasets.loading import compare, entries
from gnn_repair.errors import DatasetError, SplitError


def small_graph() -> Data:
    """Six nodes in a ring, the last unlabelled, two splits."""
    part = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 1], [1, 2], [-1, -1]])
    ring = torch.arange(6)
    return Data(
        x=torch.arange(12.0).view(6, 2),
        edge_index=torch.stack([ring, ring.roll(1)]),
        y=torch.tensor([0, 1, 2, 0, 1, -1]),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


def test_a_sound_graph_passes() -> None:
    check_data(small_graph())


def test_masks_of_a_single_split_pass() -> None:
    data = small_graph()
    for name in ("train_mask", "val_mask", "test_mask"):
        data[name] = data[name][:, 0]
    check_data(data)


def with_value(tensor: Tensor, where: tuple[int, ...], value: float) -> Tensor:
    changed = tensor.clone()
    changed[where] = value
    return changed


@pytest.mark.parametrize(
    ("field", "where", "value", "error", "message"),
    [
        ("x", (3, 1), float("nan"), DatasetError, r"\(nan\) at node 3, feature 1"),
        ("y", (4,), -2, DatasetError, "y is -2 at node 4; classes are 0 to 2"),
        ("edge_index", (1, 0), 6, DatasetError, "names node 6"),
        ("val_mask", (0, 0), True, SplitError, "train_mask and val_mask overlap: node 0"),
        ("test_mask", (2, 1), True, SplitError, "train_mask and test_mask overlap: node 2"),
        ("train_mask", (2, 1), False, SplitError, "train_mask of split 1 is empty"),
        ("train_mask", (5, 0), True, SplitError, "node 5, which is unlabelled"),
    ],
)
def test_one_wrong_value(
    field: str, where: tuple[int, ...], value: float, error: type[Exception], message: str
) -> None:
    data = small_graph()
    data[field] = with_value(data[field], where, value)
    with pytest.raises(error, match=message):
        check_data(data)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("x", torch.arange(12).view(6, 2), "torch.int64"),
        ("x", torch.zeros(6), r"shape \[6\]"),
        ("y", torch.zeros(6), "torch.float32"),
        ("y", torch.zeros(5, dtype=torch.long), r"shape \[5\] for 6 nodes"),
        ("y", torch.full((6,), -1), "No node is labelled"),
        ("edge_index", torch.zeros(3, 4, dtype=torch.long), r"shape \[3, 4\]"),
        ("test_mask", torch.zeros(6, 2), "torch.float32"),
        ("test_mask", torch.ones(6, 3, dtype=torch.bool), r"shape \[6, 3\]"),
        ("val_mask", None, "no tensor val_mask"),
    ],
)
def test_a_wrong_tensor(field: str, value: Tensor | None, message: str) -> None:
    data = small_graph()
    data[field] = value
    with pytest.raises((DatasetError, SplitError), match=message):
        check_data(data)


def test_stated_classes_bound_the_labels() -> None:
    data = small_graph()
    data.classes = 2
    with pytest.raises(DatasetError, match="y is 2 at node 2; classes are 0 to 1"):
        check_data(data)


def test_the_shares_of_every_split_are_of_the_labelled_nodes() -> None:
    y = torch.where(torch.arange(40) < 24, torch.arange(40) % 2, -1)
    train, val, test = stratified_splits(y, (50, 25, 25), range(10))
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    data = Data(x=torch.ones(40, 1), edge_index=torch.empty(2, 0), y=y, **masks)
    spec = DatasetSpec("own", None, Statistics(40, 0, 1, 2, (50, 25, 25)))
    assert compare(spec, data) == []
    moved = int(train[:, 7].nonzero()[0])
    train[moved, 7], val[moved, 7] = False, True
    shares = ["train_mask 45.8 % (published 50 %)", "val_mask 29.2 % (published 25 %)"]
    assert compare(spec, data) == shares


def test_entries_are_symmetric_coalesced_and_looped_on_top() -> None:
    # 0→1 one way, 1→2 both ways and twice, a self-loop at 2, node 3 isolated.
    edges = torch.tensor([[0, 1, 2, 1, 2], [1, 2, 1, 2, 2]])
    found = Counter(map(tuple, entries(edges, num_nodes=4).t().tolist()))
    both_ways = [(0, 1), (1, 0), (1, 2), (2, 1)]
    loops = [(0, 0), (1, 1), (2, 2), (2, 2), (3, 3)]
    assert found == Counter(both_ways + loops)


def test_a_graph_without_edges_keeps_its_loops() -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    torch.testing.assert_close(entries(none, num_nodes=3), torch.tensor([[0, 1, 2], [0, 1, 2]]))


def test_an_edge_to_nowhere_is_refused() -> None:
    with pytest.raises(DatasetError, match="names node 4, but the nodes are 0 to 3"):
        entries(torch.tensor([[0], [4]]), num_nodes=4)
