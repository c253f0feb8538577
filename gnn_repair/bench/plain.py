"""The peer in training benchmarks: the loop most people write for a PyG network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from gnn_repair.training import Budget


def plain_loop(
    network: nn.Module,
    data: Data,
    split: int,
    budget: Budget,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> dict[str, object]:
    """Train one split with Adam, clip, validate every epoch, keep the best state.

    ``on_epoch`` hears the number of epochs done, after each.
    """
    optimizer = torch.optim.Adam(
        network.parameters(), lr=budget.learning_rate, weight_decay=budget.weight_decay
    )
    train, val = data.train_mask[:, split], data.val_mask[:, split]
    best, best_state = -1.0, copy.deepcopy(network.state_dict())
    for epoch in range(budget.epochs):
        network.train()
        optimizer.zero_grad()
        out = network(data.x, data.edge_index)
        cross_entropy(out[train], data.y[train]).backward()
        nn.utils.clip_grad_norm_(network.parameters(), budget.clip)
        optimizer.step()
        network.eval()
        with torch.no_grad():
            predicted = network(data.x, data.edge_index).argmax(1)
        accuracy = float((predicted[val] == data.y[val]).float().mean())
        if accuracy > best:
            best, best_state = accuracy, copy.deepcopy(network.state_dict())
        on_epoch(epoch + 1)
    return best_state
