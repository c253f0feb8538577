"""Some recipients of an exposure alone; several subgraphs or batches as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.heads.operations import HeadGraph, Operation
from gnn_repair.exposure.pieces import NodeNames, cut_terms

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


class Focus(NamedTuple):
    """A part of an exposure, and where its nodes and terms stand in the whole."""

    exposure: Exposure
    """Nodes and table rows numbered anew; recipients in the order that they were asked for."""
    nodes: Tensor
    """[k] int64: the whole exposure's node behind each of its own."""
    terms: Tensor
    """[t] int64: likewise for its terms."""


def focus(exposure: Exposure, positions: Tensor) -> Focus:
    """The part about the recipients at ``positions`` [n] int64, each once."""
    segments, terms = cut_terms(exposure.segments, exposure.num_groups, positions)
    rows, row_of = _kept(exposure.rows[terms], exposure.contributions.shape[1])
    messages, message_of = _kept(exposure.message_rows[rows], exposure.messages.shape[1])
    senders, chosen = exposure.sources[rows], exposure.recipients[positions]
    nodes = torch.arange(exposure.num_nodes, device=chosen.device)
    node_of, sources = nodes.int(), senders
    if sends_to_itself(exposure):
        nodes, node_of = _kept(torch.cat([senders[senders >= 0].long(), chosen]), len(nodes))
        sources = torch.where(senders < 0, senders, node_of[senders.long().clamp(min=0)])
    by_node = ("fixed_logits", "frozen_logits", "state")
    part = replace(
        exposure,
        recipients=node_of[chosen].long(),
        segments=segments,
        rows=row_of[exposure.rows[terms]],
        coefficients=exposure.coefficients[:, terms],
        contributions=exposure.contributions[:, rows],
        messages=exposure.messages[:, messages],
        message_rows=message_of[exposure.message_rows[rows]],
        sources=sources,
        embedding=None if exposure.embedding is None else exposure.embedding[:, nodes],
        n_id=None if exposure.n_id is None else exposure.n_id[nodes],
        **{name: getattr(exposure, name)[:, nodes] for name in by_node},
    )
    return Focus(part, nodes, terms)


def sends_to_itself(exposure: Exposure) -> bool:
    """Whether sources are numbers of the exposure's own nodes.

    Where graphs are classified, or senders are of other kinds, nodes are not numbered anew.
    """
    return exposure.graph_starts is None and not exposure.names.typed


def _kept(index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The numbers below ``size`` that occur in ``index``, ascending; and the new number of each."""
    used = torch.zeros(size, dtype=torch.bool, device=index.device)
    used[index.long()] = True
    return used.nonzero().view(-1), (used.cumsum(0, dtype=torch.int32) - 1)


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


# Several as one -----------------------------------------------------------------------------------


BESIDE = ("coefficients", "contributions", "fixed_logits", "frozen_logits", "state", "messages",
          "embedding")  # fmt: skip
"""Tables with an axis for members, and then one for nodes, rows or terms."""
SAME = ("groups", "root", "fixed", "origin", "fingerprint", "outputs")
"""What parts of one exposure have in common."""
ONE_BATCH = "pass these graphs as one batch, with torch_geometric.data.Batch.from_data_list"
OTHER_HEAD = f"the model's head differs from batch to batch; {ONE_BATCH}"


def concatenate_exposures(kind: type[Exposure], parts: Sequence[Any]) -> Exposure:
    """Exposures of one model on several subgraphs as one; see :meth:`Exposure.concatenate`."""
    parts = list(parts) if isinstance(parts, Iterable) else [parts]
    odd = [type(part).__name__ for part in parts if not isinstance(part, kind)]
    if odd or not parts:
        raise InputError(f"{(odd or ['nothing'])[0]} cannot be joined; give at least one exposure")
    if any(part.head is not None for part in parts):
        raise InputError(
            "exposures of models with a nonlinear head cannot be joined; ask each, and join the "
            "answers' frames"
        )
    if not all(sends_to_itself(part) for part in parts):
        raise InputError("exposures of graphs, or of several kinds of node, cannot be joined yet")
    for number, part in enumerate(parts[1:], 1):
        for name in SAME:
            if getattr(part, name) != getattr(parts[0], name):
                raise InputError(
                    f"part {number} has another {name} than part 0; join exposures of one model"
                )
        if _sizes(part) != _sizes(parts[0]):
            raise InputError(
                f"part {number} differs from part 0 in members, classes, width or in having "
                "node numbers (n_id); join exposures of one model on parts of one graph"
            )
    return _one_after_another(parts)


def _sizes(part: Exposure) -> tuple[Any, ...]:
    return part.num_members, part.num_classes, part.state.shape[2], part.n_id is None


def join_batches(parts: Sequence[Exposure]) -> Exposure:
    """One exposure over the graphs of all batches, numbered one batch after the other."""
    heads = [part.head for part in parts if part.head is not None]
    if len(parts) == 1:
        return parts[0]
    if len(heads) not in (0, len(parts)):
        raise ExposureRefused(f"the model ends differently from batch to batch; {ONE_BATCH}")
    if any(part.groups != parts[0].groups for part in parts):
        raise ExposureRefused(
            f"the pools of one batch make other groups than those of another; {ONE_BATCH}"
        )
    mixture = _one_after_another([part.aggregate for part in parts])
    if not heads:
        return mixture
    replays, lengths = [part.replay for part in parts], [part.num_terms for part in parts]

    def replay(coefficients: Tensor) -> Tensor:
        pieces = zip(replays, coefficients.reshape(-1).split(lengths), strict=True)
        return torch.cat([run(piece) for run, piece in pieces if run is not None])

    return mixture.with_head(
        _joined_head(heads, [part.num_nodes for part in parts]),
        torch.cat([part.frozen_logits for part in parts], dim=1),
        _largest(parts),
        None if None in replays else replay,
    )


def _one_after_another(parts: Sequence[Exposure]) -> Exposure:
    """The nodes, terms and tables of all parts, numbered one part after the other."""
    first = parts[0]
    sources, names = _joined_senders(parts)
    starts = [part.graph_starts for part in parts if part.graph_starts is not None]
    tables: dict[str, Any] = {name: _side_by_side(parts, name) for name in BESIDE}
    return replace(
        first,
        recipients=_shifted(parts, "recipients", lambda part: part.num_nodes),
        segments=_chained([part.segments for part in parts]),
        rows=_shifted(parts, "rows", lambda part: part.contributions.shape[1]),
        message_rows=_shifted(parts, "message_rows", lambda part: part.messages.shape[1]),
        sources=sources,
        graph_starts=_chained(starts) if starts else None,
        n_id=None if first.n_id is None else torch.cat([part.n_id for part in parts]),  # type: ignore[misc]
        names=names if starts else first.names,
        residual=_largest(parts),
        **tables,
    )


def _joined_senders(parts: Sequence[Exposure]) -> tuple[Tensor, NodeNames]:
    """Senders numbered one kind after another, within a kind part by part; and the kinds' names."""
    counts = [dict(part.names.senders) or {"node": part.num_nodes} for part in parts]
    total = sum(map(Counter, counts), Counter[str]())
    starts = dict(zip(total, accumulate(total.values(), initial=0), strict=False))
    moved = []
    for part, own in zip(parts, counts, strict=True):
        kinds, numbers = part.names.split(part.sources.cpu().numpy())
        shift = np.array([starts.get(kind, 0) for kind in kinds], dtype=np.int64)
        moved.append(torch.from_numpy(np.where(numbers < 0, -1, numbers + shift)))
        for kind, count in own.items():
            starts[kind] += count
    sources = torch.cat(moved).to(parts[0].sources)
    return sources, replace(parts[0].names, senders=tuple(total.items()))


def _side_by_side(parts: Sequence[Exposure], name: str) -> Tensor | None:
    """Values one after the other along their second axis, for all members where any has its own."""
    values = [getattr(part, name) for part in parts]
    if any(value is None for value in values):
        return None
    members = max(value.shape[0] for value in values)
    return torch.cat([value.expand(members, *value.shape[1:]) for value in values], dim=1)


def _largest(parts: Sequence[Exposure]) -> float | None:
    return max((part.residual for part in parts if part.residual is not None), default=None)


def _chained(ends: Sequence[Tensor]) -> Tensor:
    """Where things start, one part after the other."""
    starts = accumulate((int(end[-1]) for end in ends), initial=0)
    moved = [end[1:] + start for end, start in zip(ends, starts, strict=False)]
    return torch.cat([ends[0][:1], *moved])


def _shifted(parts: Sequence[Exposure], name: str, size: Callable[[Exposure], int]) -> Tensor:
    """Numbers of rows after those of the parts before; −1, nobody, stays."""
    starts = accumulate((size(part) for part in parts), initial=0)
    pairs = [(getattr(part, name), start) for part, start in zip(parts, starts, strict=False)]
    return torch.cat([torch.where(rows < 0, rows, rows + start) for rows, start in pairs])


def _joined_head(heads: list[HeadGraph], counts: list[int]) -> HeadGraph:
    """The head of all batches' graphs; constants that differ become a row per graph."""
    shapes = {tuple((type(op), op.inputs) for op in head.operations) for head in heads}
    if len(shapes) > 1:
        raise ExposureRefused(OTHER_HEAD)
    steps = zip(*[head.operations for head in heads], strict=True)
    operations = tuple(_joined_operation(list(step), counts) for step in steps)
    return HeadGraph(heads[0].width, operations)


def _joined_operation(step: list[Operation], counts: list[int]) -> Operation:
    changed: dict[str, Any] = {}
    for field in fields(step[0]):
        values = [getattr(operation, field.name) for operation in step]
        # Rows of one batch's graphs are not those of another's, even where the numbers are.
        own = any(field.name in operation.by_node() for operation in step)
        own = own or (field.name == "fixed" and bool(values[0]))
        if not own and all(_alike(value, values[0]) for value in values):
            continue
        wide = [v for v in values if isinstance(v, Tensor) and v.dim() <= 2]
        if len(wide) < len(values):
            raise ExposureRefused(OTHER_HEAD)
        rows = [v.expand(n, wide[0].shape[-1]) for v, n in zip(wide, counts, strict=True)]
        changed[field.name] = torch.cat(rows)
    return replace(step[0], **changed)


def _alike(left: Any, right: Any) -> bool:
    """Whether settings are the same; tensors inside them are compared by their numbers."""
    if isinstance(right, Tensor):
        return isinstance(left, Tensor) and torch.equal(left, right)
    if isinstance(right, tuple | list):
        same = isinstance(left, tuple | list) and len(left) == len(right)
        return same and all(map(_alike, left, right))
    return bool(left == right)
