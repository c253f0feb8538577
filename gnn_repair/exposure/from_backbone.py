"""Exposing our own backbones: by algebra, for all members at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.backbones import Frozen, Operator
from gnn_repair.exposure.pieces import mixture_of
from gnn_repair.exposure.state import digest_of_weights
from gnn_repair.exposure.value import Exposure, Group, derived_exposure
from gnn_repair.kernels import Pattern


@torch.no_grad()
def expose_frozen(frozen: Frozen) -> Exposure:
    """z⁰ = β + Σ_g A_g (h W_g), with A_g multiplied out to one coefficient per source."""
    backbone, readout = frozen.backbone, frozen.readout
    operators = [stream.operator.expanded() for stream in readout.streams]
    terms, coefficients = interleave(operators)
    tables = readout.contributions(frozen.node_state)
    contributions = torch.cat([table.transpose(0, 1) for table in tables], dim=1).double()
    nodes = torch.arange(frozen.graph.num_nodes, device=frozen.device)
    state = frozen.state.contiguous()
    frozen_logits = frozen.logits.double()
    groups = tuple(
        Group(stream.name, f"{backbone.title}: {backbone.rule}", "the trained backbone")
        for stream in readout.streams
    )
    by_recipient = Pattern(terms.indptr[:: len(groups)], terms.indices, contributions.shape[1])
    return derived_exposure(
        groups=groups,
        recipients=nodes,
        segments=terms.indptr,
        rows=terms.indices,
        coefficients=coefficients,
        contributions=contributions,
        fixed_logits=frozen_logits - mixture_of(by_recipient, coefficients, contributions),
        frozen_logits=frozen_logits,
        state=state,
        messages=state,
        message_rows=nodes.int().repeat(len(groups)),
        sources=nodes.int().repeat(len(groups)),
        root=readout.root is not None,
        origin=f"{backbone.title} on {frozen.data.get('name') or 'a graph'}",
        fixed=backbone.fixed,
        embedding=frozen.embedding,
        fingerprint=_fingerprint(frozen),
    )


def _fingerprint(frozen: Frozen) -> tuple[str, ...]:
    """A digest of each member's parameters."""
    kind, classes = f"backbone {type(frozen.backbone).__name__}", frozen.logits.shape[2]
    return tuple(
        digest_of_weights(kind, classes, [(name, p[s]) for name, p in frozen.parameters.items()])
        for s in range(frozen.num_members)
    )


def interleave(operators: list[Operator]) -> tuple[Pattern, Tensor]:
    """The terms of several groups in one list, sorted by recipient and then by group.

    Returns a pattern whose row v·G+g is the segment of recipient v and group g, with columns
    offset by g·N, and the coefficients [S or 1, T].
    """
    count, nodes = len(operators), operators[0].pattern.num_rows
    lengths = torch.stack([operator.pattern.indptr.diff() for operator in operators], dim=1)
    segments = torch.cat([lengths.new_zeros(1), lengths.view(-1).cumsum(0)])
    members = max(_by_member(operator).shape[0] for operator in operators)
    rows = segments.new_empty(int(segments[-1]), dtype=torch.int32)
    coefficients = operators[0].coefficients.new_empty(members, rows.numel())
    for group, operator in enumerate(operators):
        pattern = operator.pattern
        shift = segments[group:-1:count] - pattern.indptr[:-1]
        place = pattern.identity + torch.repeat_interleave(shift, lengths[:, group])
        rows[place] = pattern.indices + group * nodes
        coefficients[:, place] = _by_member(operator)
    return Pattern(segments, rows, count * nodes), coefficients


def _by_member(operator: Operator) -> Tensor:
    """[S or 1, T]."""
    coefficients = operator.coefficients
    return coefficients.unsqueeze(0) if coefficients.dim() == 1 else coefficients.t()
