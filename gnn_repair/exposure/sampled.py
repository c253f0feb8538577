"""Exposures of sampled subgraphs: who the nodes are, and several subgraphs as one exposure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.focus import sends_to_itself
from gnn_repair.exposure.model_arguments import field, field_names

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure

BY_NODE = ("fixed_logits", "frozen_logits", "state", "embedding")
SAME = ("groups", "root", "fixed", "origin", "fingerprint", "outputs")
"""What parts of one exposure have in common."""


def of_subgraph(exposure: Exposure, data: Any) -> Exposure:
    """The exposure with the graph's own node numbers where data is a sampled subgraph.

    ``data.n_id`` names the nodes. Where there is ``data.batch_size`` as well, as in the batches of
    a NeighborLoader, the first so many nodes are those that were asked for: only these have their
    neighbours about them, and only these are recipients.
    """
    names = field_names(data)
    if "n_id" not in names or exposure.graph_starts is not None or exposure.names.typed:
        return exposure
    whole, seeds = field(data, "n_id"), field(data, "batch_size") if "batch_size" in names else None
    if not isinstance(whole, Tensor) or whole.shape != (exposure.num_nodes,):
        return exposure  # another thing by that name
    if whole.is_floating_point() or whole.is_complex() or whole.dtype == torch.bool:
        return exposure
    numbered = named(exposure, whole.long().to(exposure.recipients.device))
    if seeds is None:
        return numbered
    count = _seeds(seeds, exposure.num_nodes)
    return numbered.restrict(torch.arange(count, device=exposure.recipients.device))


def _seeds(given: Any, nodes: int) -> int:
    """How many nodes were asked for; raises where that cannot be, so that nobody is taken for one
    who lacks neighbours."""
    try:
        count = -1 if isinstance(given, bool) else index(given)
    except (TypeError, ValueError, RuntimeError):
        count = -1
    if not 0 < count <= nodes:
        raise InputError(
            f"data.batch_size is {given!r:.60} beside n_id; give how many of the {nodes} nodes, "
            "the first of them, were asked for, or leave it out if all were"
        )
    return count


def named(exposure: Any, n_id: Tensor) -> Any:
    """The same exposure with the graph's node numbers."""
    return replace(exposure, n_id=n_id)


def local_values(exposure: Exposure, values: Any) -> Tensor:
    """Values of the graph's nodes as values of the exposure's; a mask keeps recipients alone."""
    if not isinstance(values, Tensor) or values.dim() == 0:
        raise InputError(f"values is {values!r:.60}; give a tensor with a row for each node")
    if exposure.n_id is None:
        return values
    largest = int(exposure.n_id.max()) if exposure.num_nodes else -1
    if largest >= values.shape[0]:
        raise InputError(
            f"values has {values.shape[0]} rows but node {largest} is in the exposure; give a row "
            "for each node of the graph that was sampled from"
        )
    own = values[exposure.n_id.to(values.device)]
    if own.dtype != torch.bool:
        return own
    kept = torch.zeros_like(own)
    places = exposure.recipients.to(own.device)
    kept[places] = own[places]
    return kept


def concatenated(parts: Sequence[Any]) -> Exposure:
    """Exposures of one model on several subgraphs as one; see :meth:`Exposure.concatenate`."""
    from gnn_repair.exposure.value import Exposure

    parts = list(parts) if isinstance(parts, Iterable) else [parts]
    odd = [p for p in parts if not isinstance(p, Exposure) or p.head is not None]
    if not parts or odd:
        odd = odd or ["nothing"]
        raise InputError(
            f"{odd[0]!r:.60} cannot be joined; give exposures without a nonlinear head, at least "
            "one (answers about models with a head can be joined as frames)"
        )
    _check_alike(parts)
    offsets = [_running([getattr(p, n).shape[a] for p in parts]) for n, a in _AXES]
    nodes, rows, messages, terms = offsets
    joined = {name: _joined(parts, name) for name in (*BY_NODE, "contributions", "messages")}
    return replace(
        parts[0],
        recipients=torch.cat([p.recipients + k for p, k in zip(parts, nodes, strict=True)]),
        segments=torch.cat(
            [
                parts[0].segments[:1],
                *(p.segments[1:] + k for p, k in zip(parts, terms, strict=True)),
            ]
        ),
        rows=torch.cat([p.rows + k for p, k in zip(parts, rows, strict=True)]),
        coefficients=_joined(parts, "coefficients"),
        message_rows=torch.cat([p.message_rows + k for p, k in zip(parts, messages, strict=True)]),
        sources=torch.cat(
            [
                torch.where(p.sources < 0, p.sources, p.sources + k)
                for p, k in zip(parts, nodes, strict=True)
            ]
        ),
        residual=_worst([p.residual for p in parts]),
        n_id=None if parts[0].n_id is None else torch.cat([p.n_id for p in parts]),
        **joined,
    )


_AXES = (("fixed_logits", 1), ("contributions", 1), ("messages", 1), ("rows", 0))


def _running(sizes: list[int]) -> list[int]:
    starts = [0]
    for size in sizes[:-1]:
        starts.append(starts[-1] + size)
    return starts


def _joined(parts: Sequence[Exposure], name: str) -> Tensor | None:
    """Values one after the other along their second axis, for all members where any has its own."""
    values = [getattr(part, name) for part in parts]
    if any(value is None for value in values):
        return None
    members = max(value.shape[0] for value in values)
    return torch.cat([value.expand(members, *value.shape[1:]) for value in values], dim=1)


def _worst(residuals: list[float | None]) -> float | None:
    known = [value for value in residuals if value is not None]
    return max(known) if known else None


def _check_alike(parts: Sequence[Exposure]) -> None:
    first = parts[0]
    if not all(sends_to_itself(part) for part in parts):
        raise InputError("exposures of graphs, or of several kinds of node, cannot be joined yet")
    for number, part in enumerate(parts[1:], 1):
        for name in SAME:
            if getattr(part, name) != getattr(first, name):
                raise InputError(
                    f"part {number} has another {name} than part 0; join exposures of one model"
                )
        sizes = (part.num_members, part.num_classes, part.state.shape[2], part.n_id is None)
        if sizes != (
            first.num_members,
            first.num_classes,
            first.state.shape[2],
            first.n_id is None,
        ):
            raise InputError(
                f"part {number} differs from part 0 in members, classes, width or in having "
                "node numbers (n_id); join exposures of one model on parts of one graph"
            )
