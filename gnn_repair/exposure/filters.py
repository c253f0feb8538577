"""Filters of several hops that a model writes itself, found by probing.

A chain of aggregations a_k = Â_k x_k is a filter when, with all of them held fixed, every input
is x_k = c_k x_1 + Σ_j m_kj a_j with plain numbers c and m, and the logits are affine in every a_k.
Then each a_k is a polynomial in the operators applied to x_1, and where the logits read all a_k
through one map (W_k = w_k W) so is their sum: one operator Σ w_k a_k / x_1, one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from gnn_repair.exposure.mixtures import (
    Context,
    Mixture,
    Split,
    Terms,
    is_sum_or_mean,
    mixtures_of,
)
from gnn_repair.exposure.probes import Tail, centre, deviation, find_tail, perturbation
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.rules import filter_for, rules_for, split_by
from gnn_repair.exposure.rules.hops import matrix_entries, one_hop
from gnn_repair.exposure.rules.nodes import sender
from gnn_repair.exposure.rules.sizes import estimated_terms, refuse_too_large
from gnn_repair.exposure.sites import Call, Site
from gnn_repair.exposure.slices import slices
from gnn_repair.exposure.value import Group


@dataclass(frozen=True, eq=False)
class Hop:
    """One aggregation whose messages are weight × source."""

    call: Call
    split: Split
    inputs: dict[int, float]
    """m: which earlier hops its input reads, and how much of each."""
    start: float
    """c: how much of the chain's first input its input reads."""

    @property
    def site(self) -> Site:
        """Where its aggregate passes."""
        return self.call.site

    @property
    def states(self) -> Tensor:
        """x_k [N, D], as traced."""
        return self.split.states[:, 0]


@dataclass(frozen=True, eq=False)
class FoundFilter:
    """A chain of hops as groups, and what follows them."""

    sites: tuple[Site, ...]
    mixtures: list[Mixture]
    tails: dict[Site, Tail]


class Held:
    """A model run with some sites held fixed."""

    def __init__(self, watch: Watch, values: Mapping[Site, Tensor]) -> None:
        self.watch, self.values = watch, values

    def run(self, replaced: Mapping[Site, Tensor]) -> Tensor:
        """The logits with these sites replaced and the others as they are held."""
        return self.watch.run({**self._copies(), **replaced})

    def inputs(self, replaced: Mapping[Site, Tensor], hops: Sequence[Hop]) -> list[Tensor]:
        """What each hop reads in such a run."""
        seen: dict[Site, Mapping[str, Any]] = {}
        self.watch.run({**self._copies(), **replaced}, seen=seen)
        return [sender(seen[hop.site][hop.split.argument]) for hop in hops]

    def _copies(self) -> dict[Site, Tensor]:
        """Copies, since what follows may change them in place."""
        return {site: value.clone() for site, value in self.values.items()}


def chained(watch: Watch, trace: Trace, limit: float) -> list[Hop]:
    """The hops at the end of a run that read each other's aggregates by plain numbers."""
    return _connected(watch, trace, _candidates(trace.calls), limit)


def find_filter(watch: Watch, trace: Trace, hops: list[Hop], limit: float) -> FoundFilter | None:
    """The longest end of a chain of hops that is a filter; None: there is none."""
    while len(hops) > 1:
        if not any(hop.inputs for hop in hops):
            return None  # side by side, such as relations: each is an aggregation of its own
        if started := _started(hops, limit):
            return _found(watch, trace, started, limit)
        hops = [_later(hop, 1) for hop in hops[1:]]
    return None


def _candidates(calls: Sequence[Call]) -> list[Hop]:
    """The last aggregations of a run that could belong to one filter, in order."""
    found: list[Hop] = []
    for call in reversed(calls):
        if filter_for(call.conv) is not None or call.value.shape != calls[-1].value.shape:
            break
        if not is_sum_or_mean(call.conv.aggr_module) or not call.within:
            break
        if call.value.dim() != 2 or call.value.shape[1] != call.value.numel() // call.num_nodes:
            break
        split = split_by(rules_for(call)[0], call)
        if split is None or not split.argument:
            break
        if split.states.shape[1] != 1 or split.coefficients.dim() != 1:
            break
        hop = Hop(call, split, {}, 0.0)
        if found and not _together(hop, found[0]):
            break
        found.insert(0, hop)
    return found


def _together(one: Hop, other: Hop) -> bool:
    """Whether two hops are one filter's: of one convolution's run, or with the same weights."""
    left, right = one.call, other.call
    same_run = (left.site.name, left.invocation) == (right.site.name, right.invocation)
    if same_run and left.site.name:
        return True
    pairs = zip((*left.entries[:2], one.split.coefficients),
                (*right.entries[:2], other.split.coefficients), strict=True)  # fmt: skip
    return left.kind == right.kind and all(torch.equal(a, b) for a, b in pairs)


def _connected(watch: Watch, trace: Trace, hops: list[Hop], limit: float) -> list[Hop]:
    """Those at the end whose inputs read each other's aggregates by plain numbers."""
    for place in range(len(hops) - 2, -1, -1):
        later = hops[place + 1 :]
        held = {hop.site: trace.values[hop.site] for hop in hops[place:]}
        site = hops[place].site
        change = perturbation(trace.values[site], seed=5)
        moved = Held(watch, held).inputs({site: trace.values[site] + change}, later)
        pairs = zip(moved, later, strict=True)
        numbers = [_number(x - hop.states, change[:, 0], limit) for x, hop in pairs]
        if None in numbers:
            return [_later(hop, place + 1) for hop in later]
        for offset, (hop, number) in enumerate(zip(later, numbers, strict=True), place + 1):
            if number:
                hops[offset] = replace(hop, inputs={**hop.inputs, place: number})
    return hops


def _later(hop: Hop, first: int) -> Hop:
    """The same hop in a chain that begins at the hop ``first``."""
    kept = {place - first: m for place, m in hop.inputs.items() if place >= first}
    return replace(hop, inputs=kept)


def _number(change: Tensor, unit: Tensor, limit: float) -> float | None:
    """m where change = m · unit; None where it is no multiple."""
    places = list(slices(unit.shape[0], unit[:1].numel()))
    size = sum(float(unit[some].double().square().sum()) for some in places)
    along = sum(float((change[some].double() * unit[some].double()).sum()) for some in places)
    number = along / size if size else 0.0
    if abs(number) <= limit:
        number = 0.0
    gaps = [(change[some].double() - number * unit[some]).abs_().max() for some in places]
    gap = float(torch.stack(gaps).max())
    return number if gap <= limit * float(unit.abs().max()) * max(1.0, abs(number)) else None


def _started(hops: Sequence[Hop], limit: float) -> list[Hop]:
    """The hops with what each reads of the first one's input; empty where it reads other things."""
    first, found = hops[0].states, [replace(hops[0], start=1.0, inputs={})]
    if hops[0].inputs:
        return []
    for hop in hops[1:]:
        rest = hop.states.double()
        for place, number in hop.inputs.items():
            rest = rest - number * hops[place].call.value.double()
        scale = max(1.0, float(hop.states.abs().max()) / (float(first.abs().max()) or 1.0))
        start = _number(rest, first, limit * scale)
        if start is None:
            return []
        found.append(replace(hop, start=start))
    return found


def _found(watch: Watch, trace: Trace, hops: list[Hop], limit: float) -> FoundFilter | None:
    values = {hop.site: trace.values[hop.site] for hop in hops}
    begin = _input_site(watch, trace, hops)
    if begin is not None:
        values[begin] = trace.values[begin]
    held = Held(watch, values)
    centred = _affine(held, values, trace.output, limit)
    if centred is None:
        return None
    tails = {s: find_tail(held, s, value, centred, False) for s, value in values.items()}
    if any(tail.by_node for tail in tails.values()):
        return None
    return _one_group(hops, begin, tails, limit) or _group_by_hop(hops, tails)


def _affine(held: Held, values: Mapping[Site, Tensor], logits: Tensor, limit: float) -> bool | None:
    """Whether the logits are affine in all sites together: None: no; True: up to log_softmax."""
    moved = torch.arange(logits.shape[0], device=logits.device) % 2 == 0
    changes = {s: perturbation(v, seed=6) * moved.view(-1, 1, 1) for s, v in values.items()}
    up = held.run({site: values[site] + change for site, change in changes.items()})
    down = held.run({site: values[site] - change for site, change in changes.items()})
    if bool((deviation(centre(up), centre(logits)) > limit)[~moved].any()):
        return None
    for centred in (False, True):
        three = [centre(z) if centred else z for z in (up, down, logits)]
        middle = three[0] / 2 + three[1] / 2
        if bool((deviation(middle, three[2], three[0], three[1]) <= limit).all()):
            return centred
    return None


def _input_site(watch: Watch, trace: Trace, hops: Sequence[Hop]) -> Site | None:
    """Where the chain's first input enters the convolution that runs it, if it is one's alone."""
    runs = {(hop.site.name, hop.call.invocation) for hop in hops}
    given, states = hops[0].call.given, hops[0].states
    if len(runs) > 1 or not isinstance(given, Tensor) or given.shape != states.shape:
        return None
    if not torch.equal(given, states):
        return None
    return watch.open_input(trace, *runs.pop(), given, hops[0].site)


# Groups ---------------------------------------------------------------------------------------


def _one_group(
    hops: Sequence[Hop], begin: Site | None, tails: Mapping[Site, Tail], limit: float
) -> FoundFilter | None:
    """All hops as one operator, where the logits read them through one map."""
    sites = [hop.site for hop in hops]
    main = max(sites, key=lambda site: float(tails[site].weight.abs().max()))
    unit = tails[main].weight
    gains = {site: _number(tail.weight, unit, limit) for site, tail in tails.items()}
    own = gains.pop(begin) if begin is not None else None
    if not float(unit.abs().max()) or any(gain is None for gain in gains.values()):
        return None
    weights = [float(gains[site] or 0.0) for site in sites]
    label = f"Σ γₖ Âᵏ, K = {_order(hops)}"
    others = tuple(site for site in sites if site != main)
    silenced = others if own is None or begin is None else (*others, begin)
    mixtures = _mixtures(hops, main, label, weights, own or 0.0)
    held = [replace(m, by_value=True, silenced=silenced) for m in mixtures]
    return FoundFilter(tuple(sites), held, {main: tails[main]})


def _order(hops: Sequence[Hop]) -> int:
    """The longest way through the hops, which is the polynomial's degree."""
    lengths: list[int] = []
    for hop in hops:
        lengths.append(1 + max((lengths[place] for place in hop.inputs), default=0))
    return max(lengths)


def _group_by_hop(hops: Sequence[Hop], tails: Mapping[Site, Tail]) -> FoundFilter:
    """One group for every hop, each with its own map."""
    sites = tuple(hop.site for hop in hops)
    found: list[Mixture] = []
    for place, hop in enumerate(hops):
        weights = [float(place == other) for other in range(len(hops))]
        mixtures = _mixtures(hops, hop.site, f"hop {place + 1}", weights, 0.0)
        found += [replace(m, by_value=True, silenced=sites) for m in mixtures]
    return FoundFilter(sites, found, {site: tails[site] for site in sites})


def _mixtures(
    hops: Sequence[Hop], site: Site, label: str, weights: Sequence[float], own: float
) -> list[Mixture]:
    first = hops[0]
    states, nodes = first.states.contiguous(), first.call.num_nodes
    steps = [one_hop(hop.call, hop.split) for hop in hops]
    terms = estimated_terms(lambda rows: iter([_operator(hops, steps, rows, weights, own)]), nodes)
    refuse_too_large(terms, nodes)
    whole = _operator(hops, steps, sparse.identity(nodes, format="csr"), weights, own)
    kind = hops[-1].call.kind
    group = Group(
        f"{first.site.name} {label}".strip(),
        f"{kind}: α = entries of {label}, found by probing, h = the filter's input",
        "sparse product of its hops",
    )
    entries = Terms(*matrix_entries(whole, states), states, Context(states, states))
    return mixtures_of(site, 0, group, entries)


def _operator(
    hops: Sequence[Hop], steps: Sequence[Any], rows: Any, weights: Sequence[float], own: float
) -> Any:
    """R (w_0 I + Σ_k w_k a_k / x_1) for some rows R of the identity, from the last hop back."""
    total = own * rows
    waiting: list[Any] = [weight * rows for weight in weights]
    for place in range(len(hops) - 1, -1, -1):
        through = waiting.pop() @ steps[place]
        total = total + hops[place].start * through
        for earlier, number in hops[place].inputs.items():
            waiting[earlier] = waiting[earlier] + number * through
    total = total.tocsr()
    total.eliminate_zeros()
    return total
