"""One weight per sender in all groups that weigh the same senders alike.

Where pools stand at every layer, each is a group and a node may have another weight in each. Groups
with the same senders, whose coefficients differ by one factor per recipient at most, can share it:

    Σ_g Σ_a f_{v,g} λ_a ℓ_{v,g,a} = Σ_a λ_a (Σ_g f_{v,g} ℓ_{v,g,a}),   α_{v,g,a} = f_{v,g} α_{v,1,a}

so that the groups are one, with the mass of the first and the contributions in brackets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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


def alike_groups(exposure: Exposure) -> tuple[list[list[int]], list[Tensor]]:
    """Groups by number, those together that can share their weights; and every group's terms.

    The terms come by recipient and within one by sender, so that those of alike groups match.
    """
    count = exposure.num_groups
    lengths = exposure.segments.diff()
    slot = torch.repeat_interleave(lengths)
    senders = exposure.sources[exposure.rows.long()].long()
    order = torch.argsort(slot * (exposure.num_sources + 1) + senders + 1, stable=True)
    terms = [order[slot % count == group] for group in range(count)]
    # Clusters and edges have numbers by which those of another pool may be called, too.
    pooled = exposure.graph_starts is not None and exposure.names.typed
    known = exposure.names.senders[0][1] if pooled else exposure.num_sources
    close = EXACT.get(exposure.coefficients.dtype, RECONSTRUCTION)
    classes, first = list[list[int]](), dict[int, tuple[Tensor, Tensor]]()
    for group, own in enumerate(terms):
        mass = torch.repeat_interleave(exposure.mass[:, :, group], lengths[group::count], 1)
        key = torch.stack([slot[own] // count, senders[own]])
        shares = exposure.coefficients[:, own].double() / mass
        named = bool(((senders[own] >= 0) & (senders[own] < known)).all())
        for members in classes:
            other, weights = first.get(members[0], (key[:0], shares))
            if named and torch.equal(key, other) and torch.allclose(shares, weights, close, 0.0):
                members.append(group)
                break
        else:
            classes.append([group])
            first |= {group: (key, shares)} if named else {}
    return classes, terms


def tie_groups(exposure: Exposure) -> Exposure:
    """The exposure in which groups that weigh the same senders alike are one."""
    classes, terms = alike_groups(exposure)
    if exposure.num_groups == 1:
        return exposure
    if len(classes) == exposure.num_groups:
        raise InputError(
            "no two groups of this exposure can share their weights: that needs the same nodes as "
            "senders at every recipient, with coefficients that differ by one factor at most"
        )
    mixture, rows = exposure.aggregate, exposure.rows.long()
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)
    counts = lengths[:, [members[0] for members in classes]].reshape(-1)
    slot = torch.repeat_interleave(counts)
    first, shared = torch.empty_like(slot), torch.empty_like(rows)
    factors = torch.empty_like(exposure.coefficients, dtype=torch.float64)
    for number, members in enumerate(classes):
        places = (slot % len(classes) == number).nonzero().view(-1)
        first[places] = terms[members[0]]
        for group in members:
            ratio = exposure.mass[:, :, group] / exposure.mass[:, :, members[0]]
            factors[:, terms[group]] = ratio[:, slot[places] // len(classes)]
            shared[terms[group]] = places  # the term that it is now
    numbers = torch.arange(len(slot), dtype=torch.int32, device=slot.device)
    alpha = exposure.coefficients[:, first]
    table = mixture.contributions.new_zeros(exposure.num_members, len(slot), mixture.num_classes)
    table.index_add_(1, shared, factors.unsqueeze(2) * mixture.contributions[:, rows])
    read = torch.stack([shared, exposure.message_rows[rows].long()]).unique(dim=1)
    messages = exposure.messages.new_zeros(
        len(exposure.messages), len(slot), exposure.state.shape[2]
    ).index_add_(1, read[0], exposure.messages[:, read[1]])
    segments, fixed = exposure.segments.new_zeros(len(counts) + 1), mixture.fixed_logits.clone()
    segments[1:] = counts.cumsum(0)
    pattern = Pattern(segments[:: len(classes)], numbers, len(slot))
    fixed[:, exposure.recipients] += mixture.mixture() - mixture_of(pattern, alpha, table)
    made = replace(
        mixture,
        groups=tuple(_joined([exposure.groups[g] for g in members]) for members in classes),
        segments=segments,
        rows=numbers,
        coefficients=alpha,
        contributions=table,
        fixed_logits=fixed,
        messages=messages,
        message_rows=numbers,
        sources=exposure.sources[rows[first]],
        fingerprint=tuple(digest + MARK for digest in exposure.fingerprint),
    )
    replay = exposure.replay
    if exposure.head is None:
        return made
    run = None if replay is None else lambda lam: replay(lam.reshape(-1)[shared] * factors[0])
    return made.with_head(exposure.head, exposure.frozen_logits, exposure.residual, run)


def _joined(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    name = " + ".join(group.name for group in groups)
    return replace(groups[0], name=name, rule=f"{groups[0].rule}; {TIED}")
