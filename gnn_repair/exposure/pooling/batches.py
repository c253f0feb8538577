"""Lists, datasets and loaders of graphs as batches that a model is run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Batch, Data, Dataset, HeteroData
from torch_geometric.loader import DataLoader as GraphLoader

from gnn_repair.errors import InputError
from gnn_repair.exposure.model_arguments import BATCHES, parameters_of

RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
LARGEST = 1 << 19
"""Nodes of one batch: their vectors, 64 wide, fill 128 MB a layer."""


def batches_of(data: Any) -> list[Any] | None:
    """The batches behind a list, a dataset of several graphs or a loader; None: data is none."""
    if isinstance(data, DataLoader):
        return _of_loader(data)
    if isinstance(data, Dataset) and len(data) > 1:
        return list(_batched([data[i] for i in range(len(data))], {}))
    if isinstance(data, list | tuple) and any(isinstance(d, HeteroData) for d in data):
        raise InputError(
            f"data is {len(data)} graphs of several node types, which are exposed one at a time; "
            "pass one of them"
        )
    if isinstance(data, list | tuple) and data and all(isinstance(d, Data) for d in data):
        return list(_batched(data, {}))
    return None


def as_batch(data: Any, model: nn.Module) -> Any:
    """A graph alone as a batch of one, where the model's forward asks for a batch vector."""
    asked = any(p.name in BATCHES and p.required for p in parameters_of(model))
    alone = batch_of_one(data) if asked else None
    return data if alone is None else alone


def batch_of_one(data: Any) -> Any | None:
    """A graph alone as a batch of one; None where it is no graph, or a batch already."""
    if not isinstance(data, Data) or isinstance(data, Batch) or data.get("batch") is not None:
        return None
    return Batch.from_data_list([data])


def _of_loader(loader: DataLoader[Any]) -> list[Any]:
    """Its graphs in order, in batches of our own size; of a sampler of one's own, its batches."""
    if isinstance(loader.sampler, RANDOM):
        raise InputError(
            "the loader shuffles its graphs, so that an exposure's graphs could not be told; pass "
            "its dataset, or a loader with shuffle=False"
        )
    found = _in_order(loader) if isinstance(loader, GraphLoader) else None
    batches = list(loader) if found is None else found
    if not batches:
        raise InputError("the loader holds no graphs; pass one with at least one batch")
    return batches


def _in_order(loader: GraphLoader) -> list[Any] | None:
    if type(loader.sampler) is not SequentialSampler or loader.batch_sampler is None:
        return None
    items = [loader.dataset[i] for i in range(len(loader.dataset))]
    if not all(isinstance(item, Data) for item in items):
        return None
    words = {name: getattr(loader, name, None) for name in ("follow_batch", "exclude_keys")}
    return list(_batched(items, {name: value for name, value in words.items() if value}))


def _batched(graphs: Sequence[Any], words: dict[str, Any]) -> Iterator[Any]:
    """Graphs in order, as many in a batch as it may have nodes; batches as they are."""
    waiting: list[Data] = []
    size = 0
    for graph in graphs:
        if isinstance(graph, Batch):
            if waiting:
                yield Batch.from_data_list(waiting, **words)
                waiting, size = [], 0
            yield graph
            continue
        waiting.append(graph)
        size += graph.num_nodes or 0
        if size >= LARGEST:
            yield Batch.from_data_list(waiting, **words)
            waiting, size = [], 0
    if waiting:
        yield Batch.from_data_list(waiting, **words)
