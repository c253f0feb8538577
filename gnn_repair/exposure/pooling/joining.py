"""Exposures of several batches of graphs as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.tails.operations import Operation, TailGraph
from gnn_repair.exposure.value import Exposure

ONE_BATCH = "pass these graphs as one batch, with torch_geometric.data.Batch.from_data_list"


def joined(parts: Sequence[Exposure]) -> Exposure:
    """One exposure over the graphs of all parts, numbered one part after the other."""
    if len(parts) == 1:
        return parts[0]
    if all(part.head is None for part in parts):
        return _joined_mixtures(list(parts))
    if not all(part.head is not None for part in parts):
        raise ExposureRefused(f"the model ends differently from batch to batch; {ONE_BATCH}")
    return _joined_tailed(list(parts))


def _joined_mixtures(parts: list[Exposure]) -> Exposure:
    first = parts[0]
    if any(part.groups != first.groups for part in parts):
        raise ExposureRefused(
            f"the pools of one batch make other groups than those of another; {ONE_BATCH}"
        )
    return replace(
        first,
        recipients=torch.arange(sum(part.num_nodes for part in parts), device=first.rows.device),
        segments=_chained([part.segments for part in parts]),
        rows=_shifted(parts, "rows", lambda part: part.contributions.shape[1]),
        message_rows=_shifted(parts, "message_rows", lambda part: part.messages.shape[1]),
        sources=_shifted(parts, "sources", lambda part: part.num_sources),
        graph_starts=_chained([p.graph_starts for p in parts if p.graph_starts is not None]),
        coefficients=_side_by_side(part.coefficients for part in parts),
        contributions=_side_by_side(part.contributions for part in parts),
        fixed_logits=_side_by_side(part.fixed_logits for part in parts),
        frozen_logits=_side_by_side(part.frozen_logits for part in parts),
        state=_side_by_side(part.state for part in parts),
        messages=_side_by_side(part.messages for part in parts),
        names=replace(first.names, senders=(("node", sum(part.num_sources for part in parts)),)),
        embedding=_embedding(parts),
        residual=_worst(parts),
    )


def _side_by_side(values: Iterable[Tensor]) -> Tensor:
    """[1, …] of each part, along the second axis."""
    return torch.cat(list(values), dim=1)


def _embedding(parts: Sequence[Exposure]) -> Tensor | None:
    known = [part.embedding for part in parts if part.embedding is not None]
    return torch.cat(known, dim=1) if len(known) == len(parts) else None


def _worst(parts: Sequence[Exposure]) -> float | None:
    known = [part.residual for part in parts]
    return None if None in known else max(r for r in known if r is not None)


def _chained(ends: Sequence[Tensor]) -> Tensor:
    """Where things start, one part after the other."""
    starts = accumulate((int(end[-1]) for end in ends), initial=0)
    moved = [end[1:] + start for end, start in zip(ends, starts, strict=False)]
    return torch.cat([ends[0][:1], *moved])


def _shifted(parts: Sequence[Exposure], name: str, size: Callable[[Exposure], int]) -> Tensor:
    """Numbers of rows after those of the parts before."""
    starts = accumulate((size(part) for part in parts), initial=0)
    pairs = zip(parts, starts, strict=False)
    return torch.cat([getattr(part, name) + start for part, start in pairs])


def _joined_tailed(parts: list[Exposure]) -> Exposure:
    counts = [part.num_nodes for part in parts]
    lengths = [part.num_terms for part in parts]
    replays = [part.replay for part in parts]

    def replay(coefficients: Tensor) -> Tensor:
        pieces = zip(replays, coefficients.reshape(-1).split(lengths), strict=True)
        return torch.cat([run(piece) for run, piece in pieces if run is not None])

    return _joined_mixtures([part.aggregate for part in parts]).with_head(
        _joined_tail([part.head for part in parts if part.head is not None], counts),
        torch.cat([part.frozen_logits for part in parts], dim=1),
        _worst(parts),
        None if None in replays else replay,
    )


def _joined_tail(tails: list[TailGraph], counts: list[int]) -> TailGraph:
    shapes = {tuple((type(op), op.inputs) for op in tail.operations) for tail in tails}
    if len(shapes) > 1:
        raise ExposureRefused(f"the model's tail differs from batch to batch; {ONE_BATCH}")
    steps = zip(*[tail.operations for tail in tails], strict=True)
    operations = tuple(_joined_operation(list(step), counts) for step in steps)
    return TailGraph(tails[0].width, operations)


def _joined_operation(step: list[Operation], counts: list[int]) -> Operation:
    changed: dict[str, Any] = {}
    for field in fields(step[0]):
        values = [getattr(operation, field.name) for operation in step]
        if all(isinstance(value, Tensor) for value in values):
            changed[field.name] = _joined_constant(values, counts)
        elif not _alike(values):
            raise ExposureRefused(f"the model's tail differs from batch to batch; {ONE_BATCH}")
    return replace(step[0], **changed)


def _alike(values: list[Any]) -> bool:
    """Whether settings are the same; tensors inside them are compared by their numbers."""
    first = values[0]
    if isinstance(first, tuple | list):
        same = all(len(value) == len(first) for value in values)
        return same and all(_alike(list(items)) for items in zip(*values, strict=True))
    if isinstance(first, Tensor):
        return all(isinstance(v, Tensor) and torch.equal(v, first) for v in values)
    return all(value == first for value in values)


def _joined_constant(values: list[Tensor], counts: list[int]) -> Tensor:
    """The same for every graph, or a row a graph."""
    first = values[0]
    if all(value.shape == first.shape and torch.equal(value, first) for value in values):
        return first
    width = first.shape[-1]
    wide = [v.expand(n, width) for v, n in zip(values, counts, strict=True) if v.dim() <= 2]
    if len(wide) < len(values):
        raise ExposureRefused(f"the model's tail differs from batch to batch; {ONE_BATCH}")
    return torch.cat(wide)
