"""Why nothing was seen to aggregate in a model's run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.exposure.probes import AFFINE_SLACK, EXACT, deviation, perturbation
from gnn_repair.exposure.recording import Watch

SEEN = "no propagate of PyG, no product with an N × N matrix, no sum of gathered rows"


def unread(watch: Watch) -> str:
    """What to say of a sum by hand that could not be read."""
    return (
        f"{type(watch.model).__name__}'s forward aggregates by hand, with {watch.unread_sum}: no "
        "weighted sum of nodes' rows can be read off it; write that layer as a MessagePassing that "
        "adds"
    )


def why_nothing(watch: Watch, logits: Tensor) -> str:
    """Whether the model mixes nodes out of sight, or not at all."""
    name = type(watch.model).__name__
    if watch.unread_sum:
        return unread(watch)
    if _mixes(watch, logits):
        return (
            f"{name}'s forward mixes nodes in a way that cannot be watched ({SEEN}), as a loop "
            "over nodes, a table of neighbours or nn.MultiheadAttention does; write that layer as "
            "a MessagePassing, or as a product with a matrix"
        )
    return (
        f"no aggregation happens in {name}'s forward ({SEEN}): where its features were propagated "
        "beforehand, pass a forward= that propagates"
    )


def _mixes(watch: Watch, logits: Tensor) -> bool:
    """Whether some nodes' logits answer to other nodes' features."""
    nodes = logits.shape[0]
    moved = torch.arange(nodes, device=logits.device) % 2 == 0
    with _given_otherwise(watch.model, moved):
        try:
            seen = watch.run()
        except Exception:  # what the model makes of such features is its own affair
            return False
    if seen.shape != logits.shape or not bool(torch.isfinite(seen).all()):
        return False
    return bool((deviation(seen, logits) > AFFINE_SLACK * EXACT[logits.dtype])[~moved].any())


@contextmanager
def _given_otherwise(model: nn.Module, moved: Tensor) -> Iterator[None]:
    """While open, the model is given other features of the moved nodes."""

    def instead(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(_other(v, moved) for v in args), {
            k: _other(v, moved) for k, v in kwargs.items()
        }

    handle = model.register_forward_pre_hook(instead, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _other(value: Any, moved: Tensor) -> Any:
    if isinstance(value, Data):
        value = copy(value)
        value.x = _other(value.x, moved)
        return value
    strided = isinstance(value, Tensor) and value.layout == torch.strided and value.dim() == 2
    if not strided or not value.is_floating_point() or value.shape[0] != moved.numel():
        return value
    graph = value.shape[0] == value.shape[1]
    return value if graph else value + perturbation(value, seed=5) * moved.unsqueeze(1)
