"""Why nothing was seen to aggregate in a model's run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch_geometric.data import Data

from gnn_repair.exposure.model_arguments import field, field_names
from gnn_repair.exposure.probes import AFFINE_SLACK, EXACT, deviation, perturbation
from gnn_repair.exposure.recording import Watch
from gnn_repair.exposure.steps import first_mixing

SEEN = "no propagate of PyG, no product with an N × N matrix, no sum of gathered rows"


def unread(watch: Watch) -> str:
    """What to say of a sum by hand that could not be read."""
    return (
        f"{type(watch.model).__name__}'s forward aggregates by hand, with {watch.unread_sum}: no "
        "weighted sum of nodes' rows can be read off it; write that layer as a MessagePassing that "
        "adds"
    )


def why_nothing(watch: Watch, logits: Tensor, data: Any) -> str:
    """Whether the model mixes nodes out of sight, reads what it kept, or does not mix at all."""
    name = type(watch.model).__name__
    if watch.unread_sum:
        return unread(watch)
    if (how := _mixing(watch, logits)) is not None:
        return (
            f"{name}'s forward mixes nodes in a way that cannot be watched ({SEEN}){how}; write "
            "that layer (a loop over nodes, a table of neighbours, attention, a matrix of more "
            "than N columns) as a MessagePassing, or as a product with an N × N matrix"
        )
    nothing = f"no aggregation happens in {name}'s forward ({SEEN})"
    if kept := _kept(watch, logits):
        return (
            f"{nothing}: it reads `{kept}`, a table with a row per node that it keeps between "
            "runs; where that holds propagated features, pass a forward= that clears it before "
            "each run"
        )
    for field_name in field_names(data):
        if _holds_graph(field(data, field_name), data, logits.shape[0]):
            return (
                f"{nothing}: the graph's adjacency matrix stands among the columns of "
                f"data.{field_name}, which it reads as features; multiply that part by itself, "
                "as a product with an N × N matrix, and add the rest"
            )
    return (
        f"{nothing}: where its features were propagated beforehand, pass a forward= that propagates"
    )


def _mixing(watch: Watch, logits: Tensor) -> str | None:
    """By what some nodes' logits answer to other nodes' features, if they do, in words."""
    moved = torch.arange(logits.shape[0], device=logits.device) % 2 == 0
    limit = AFFINE_SLACK * EXACT[logits.dtype]
    with _given_otherwise(watch.model, moved):
        try:
            seen = watch.run()
        except Exception:  # what the model makes of such features is its own affair
            return None
        other = watch.steps(None, moved.numel())
    if seen.shape != logits.shape or not bool(torch.isfinite(seen).all()):
        return None
    if not bool((deviation(seen, logits) > limit)[~moved].any()):
        return None
    step = first_mixing(watch.steps(None, moved.numel()), other, moved, limit)
    return "" if step is None else f", by `{step.operation}` in {step.place(watch.model)}"


def _kept(watch: Watch, logits: Tensor) -> str:
    """The name of something with a row per node that a module keeps and the logits depend on."""
    rows = logits.shape[0]

    def other(value: Tensor) -> Tensor:
        by_node = value.dim() > 1 and value.shape[0] == rows and value.is_floating_point()
        plain = by_node and value.layout == torch.strided and not isinstance(value, nn.Parameter)
        return value + perturbation(value, seed=6) if plain else value

    for name, module in watch.model.named_modules():
        held = [
            (vars(module), key) for key in vars(module) if key not in ("_parameters", "_modules")
        ]
        held += [(module._buffers, key) for key in module._buffers]
        for holder, key in held:
            value = holder[key]
            changed = tree_map_only(Tensor, other, value)
            pairs = zip(tree_leaves(value), tree_leaves(changed), strict=True)
            if key == "_buffers" or all(one is two for one, two in pairs):
                continue
            holder[key] = changed
            try:
                seen = watch.run()
            except Exception:  # what the model makes of it is its own affair
                seen = logits
            finally:
                holder[key] = value
            if seen.shape == logits.shape and not torch.equal(seen, logits):
                return f"{name}.{key}".lstrip(".")
    return ""


def _holds_graph(value: Any, data: Any, rows: int) -> bool:
    """Whether the first or the last N columns of a wider table are the graph's adjacency."""
    edges = field(data, "edge_index")
    known = isinstance(value, Tensor) and isinstance(edges, Tensor) and edges.dim() == 2
    wide = known and value.layout == torch.strided and value.dim() == 2
    if not wide or value.shape[0] != rows or value.shape[1] <= rows or not edges.numel():
        return False
    graph = torch.zeros(rows, rows, dtype=torch.bool, device=value.device)
    graph[edges[0], edges[1]] = True
    graph.fill_diagonal_(False)
    for part in (value[:, :rows] != 0, value[:, -rows:] != 0):
        found = part.clone().fill_diagonal_(False)
        if torch.equal(found, graph) or torch.equal(found, graph.t()):
            return True
    return False


@contextmanager
def _given_otherwise(model: nn.Module, moved: Tensor) -> Iterator[None]:
    """While open, the model is given other features of the moved nodes."""
    made: dict[int, tuple[Any, Any]] = {}

    def once(value: Any) -> Any:
        """Made in the first run, so that the others do nothing but the model's own operations."""
        if id(value) not in made:
            made[id(value)] = value, _other(value, moved)
        return made[id(value)][1]

    def instead(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(once(v) for v in args), {k: once(v) for k, v in kwargs.items()}

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
