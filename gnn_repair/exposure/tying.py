"""One weight per sender in all groups that weigh the same senders alike.

Where pools stand at every layer, each is a group and a node may have another weight in each. Groups
with the same senders, whose coefficients differ by one factor per recipient at most, can share it:

    Σ_g Σ_a f_{v,g} λ_a ℓ_{v,g,a} = Σ_a λ_a (Σ_g f_{v,g} ℓ_{v,g,a}),   α_{v,g,a} = f_{v,g} α_{v,1,a}

so that the groups are one, with the mass of the first and the contributions in brackets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import EXACT, RECONSTRUCTION, mixture_of
from gnn_repair.kernels import Pattern

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure, Group

TIED = "one weight per sender in all of these groups"
"""Said in the rule of a group that stands for several."""
MARK = " tied"
"""At the end of a tied exposure's fingerprints: its repairs fit no other exposure of the model."""


def alike_groups(exposure: Exposure) -> list[list[int]]:
    """The groups by number, those together that can share their weights."""
    return _alike(exposure, _sorted_terms(exposure))


def _sorted_terms(exposure: Exposure) -> list[Tensor]:
    """By group: its terms, by recipient and within one by sender."""
    slot = torch.repeat_interleave(exposure.segments.diff())
    senders = exposure.sources[exposure.rows.long()].long()
    order = torch.argsort(slot * (exposure.num_sources + 1) + senders + 1, stable=True)
    return [order[slot % exposure.num_groups == g] for g in range(exposure.num_groups)]


def _alike(exposure: Exposure, terms: list[Tensor]) -> list[list[int]]:
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)
    # Clusters and edges have numbers by which those of another pool may be called, too.
    kinds = exposure.names.senders[:1] if exposure.graph_starts is not None else ()
    known = exposure.names.count(exposure.num_nodes) if not kinds else kinds[0][1]
    close = EXACT.get(exposure.coefficients.dtype, RECONSTRUCTION)
    found, classes = list[tuple[Tensor, Tensor, Tensor, list[int]]](), list[list[int]]()
    for group, own in enumerate(terms):
        count, senders = lengths[:, group], exposure.sources[exposure.rows[own].long()]
        mass = torch.repeat_interleave(exposure.mass[:, :, group], count, 1)
        shares = exposure.coefficients[:, own].double() / mass
        named = bool(((senders >= 0) & (senders < known)).all())
        for other, theirs, weights, members in found if named else ():
            same = torch.equal(count, other) and torch.equal(senders, theirs)
            if same and torch.allclose(shares, weights, rtol=close, atol=0.0):
                members.append(group)
                break
        else:
            classes.append([group])
            found += [(count, senders, shares, classes[-1])] if named else []
    return classes


def tied(exposure: Exposure) -> Exposure:
    """The exposure in which groups that weigh the same senders alike are one."""
    terms = _sorted_terms(exposure)
    classes = _alike(exposure, terms)
    if len(classes) == exposure.num_groups:
        if exposure.num_groups == 1:
            return exposure
        raise InputError(
            "no two groups of this exposure can share their weights: that needs the same nodes as "
            "senders at every recipient, with coefficients that differ by one factor at most"
        )
    mixture, device = exposure.aggregate, exposure.rows.device
    firsts, lengths = [c[0] for c in classes], exposure.segments.diff()
    counts = lengths.view(-1, exposure.num_groups)[:, firsts].reshape(-1)
    segments = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    slot, total = torch.repeat_interleave(counts), int(segments[-1])
    shared = torch.empty(exposure.num_terms, dtype=torch.long, device=device)  # the term it is now
    factors = torch.empty_like(exposure.coefficients, dtype=torch.float64)
    for number, members in enumerate(classes):
        places = (slot % len(classes) == number).nonzero().view(-1)
        for group in members:
            ratio = exposure.mass[:, :, group] / exposure.mass[:, :, members[0]]
            shared[terms[group]] = places
            factors[:, terms[group]] = ratio[:, slot[places] // len(classes)]
    first = torch.empty(total, dtype=torch.long, device=device)
    for group in firsts:
        first[shared[terms[group]]] = terms[group]
    rows = exposure.rows.long()
    table = mixture.contributions.new_zeros(exposure.num_members, total, mixture.num_classes)
    table.index_add_(1, shared, factors.unsqueeze(2) * mixture.contributions[:, rows])
    pairs = torch.stack([shared, exposure.message_rows[rows].long()]).unique(dim=1)
    messages = exposure.messages.new_zeros(len(exposure.messages), total, exposure.state.shape[2])
    numbers = torch.arange(total, dtype=torch.int32, device=device)
    alpha = exposure.coefficients[:, first]
    fixed = mixture.fixed_logits.clone()
    pattern = Pattern(segments[:: len(classes)], numbers, total)
    fixed[:, exposure.recipients] += mixture.mixture() - mixture_of(pattern, alpha, table)
    changed: dict[str, Any] = {
        "groups": tuple(_joined([exposure.groups[g] for g in members]) for members in classes),
        "segments": segments,
        "rows": numbers,
        "coefficients": alpha,
        "contributions": table,
        "fixed_logits": fixed,
        "messages": messages.index_add_(1, pairs[0], exposure.messages[:, pairs[1]]),
        "message_rows": numbers,
        "sources": exposure.sources[rows[first]],
        "fingerprint": tuple(digest + MARK for digest in exposure.fingerprint),
    }
    made, replay = replace(mixture, **changed), exposure.replay
    if exposure.head is None:
        return made

    def replay_tied(coefficients: Tensor) -> Tensor:
        assert replay is not None
        return replay(coefficients.reshape(-1).double()[shared] * factors[0])

    run = None if replay is None else replay_tied
    return made.with_head(exposure.head, exposure.frozen_logits, exposure.residual, run)


def _joined(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    name = " + ".join(group.name for group in groups)
    return replace(groups[0], name=name, rule=f"{groups[0].rule}; {TIED}")
