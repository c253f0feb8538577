"""What a model gives when its last messages are scaled, by PyG's own hooks.

Shares nothing with exposures: relations are told by the order in which they are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HANConv, HGTConv, MessagePassing

from tests.helpers.models.typed_models import OneSet, first_run

Relation = tuple[str, str, str]
Factors = dict[Relation, Tensor]


def random_factors(data: HeteroData, seed: int = 0) -> Factors:
    """A number for every edge."""
    generator = torch.Generator().manual_seed(seed)
    return {
        kind: 0.2 + 1.6 * torch.rand(data[kind].edge_index.shape[1], generator=generator).double()
        for kind in data.edge_types
    }


def final_convolutions(model: nn.Module, data: HeteroData) -> list[tuple[Any, list[Relation]]]:
    """The convolutions that send to papers last, and whose messages each run sends."""
    convs = [c for c in model.modules() if isinstance(c, MessagePassing)]
    kinds = list(data.edge_types)
    if isinstance(convs[-1], HGTConv | HANConv) or isinstance(model, OneSet):
        return [(convs[-1], kinds)]
    if len(convs) == 1:
        return [(convs[0], [kind for kind in kinds if kind[2] == "paper"])]
    return [(conv, [kind]) for conv, kind in zip(convs[-len(kinds) :], kinds, strict=True)]


@contextmanager
def scaled(model: nn.Module, data: HeteroData, factors: Factors) -> Iterator[None]:
    """While open, the last messages are multiplied by their edges' numbers."""
    handles = []
    for conv, kinds in final_convolutions(model, data):
        queue = list(kinds)

        def change(module: Any, _: Any, out: Tensor, queue: list[Relation] = queue) -> Tensor:
            if len(out) == sum(map(len, factors.values())):  # all relations in one propagate
                numbers = torch.cat([factors[kind] for kind in queue])
            else:
                numbers = factors[queue.pop(0)]
            return out * numbers.to(out).view(-1, *[1] * (out.dim() - 1))

        handles.append(conv.register_message_forward_hook(change))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def logits_of(output: Any) -> Tensor:
    """The papers' logits in whatever a model returns."""
    while not isinstance(output, Tensor):
        output = output["paper"] if isinstance(output, dict) else output[0]
    return output


def scaled_run(model: nn.Module, data: HeteroData, factors: Factors) -> Tensor:
    """The papers' logits with scaled messages."""
    with scaled(model, data, factors):
        return logits_of(first_run(model, data))


def scaled_coefficients(exposure: Any, data: HeteroData, factors: Factors) -> Tensor:
    """α times the number of each term's edge, which is found by its two ends."""
    numbers = {}
    for kind, values in factors.items():
        ends = data[kind].edge_index.t().tolist()
        pairs = zip(ends, values.tolist(), strict=True)
        numbers |= {(" ".join(kind), kind[0], s, t): value for (s, t), value in pairs}
    frame = exposure.to_frame()
    group = frame["group"].str.replace(r" head \d+$", "", regex=True)
    keys = zip(group, frame["source_type"], frame["source"], frame["node"], strict=True)
    scale = torch.tensor([numbers[key] for key in keys], dtype=torch.float64)
    return exposure.coefficients[0].double() * scale
