"""Finding the final aggregation: the propagates that the logits answer to node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.contributions import contributed
from gnn_repair.exposure.diagnosis import unruly
from gnn_repair.exposure.filters import FoundFilter, chained, find_filter
from gnn_repair.exposure.hetero.mixtures import mixtures_of_parts
from gnn_repair.exposure.mixtures import (
    Mixture,
    NoSumError,
    digest_of_terms,
    mixtures_of_split,
)
from gnn_repair.exposure.probes import (
    AFFINE_SLACK,
    EXACT,
    ProbeResult,
    Tail,
    find_tail,
    perturbation,
    probe,
    tail_error,
)
from gnn_repair.exposure.products import ProductCall
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.rules import filter_for, hops, rules_for, split_by
from gnn_repair.exposure.sites import Call, Site, unmoved
from gnn_repair.exposure.value import LAST_HOP

SEEN = 64
"""Graphs that are remembered: the parts of a data set that are shown in turn, 16 bytes each."""


@dataclass
class FinalAggregation:
    """The groups of the final aggregation and the affine maps that follow them."""

    mixtures: list[Mixture] = field(default_factory=list)
    tails: dict[Site, Tail] = field(default_factory=dict)
    nonlinear: list[str] = field(default_factory=list)
    """Propagates that the logits answer to node by node but not affinely; they stay in β."""

    idle: list[str] = field(default_factory=list)
    """Propagates that do not reach the logits at all."""

    nodewise: list[Mixture] = field(default_factory=list)
    """Where nothing is affine: the groups of every propagate that the logits answer to node by
    node, to be exposed together with what follows them."""

    answers: dict[Site, ProbeResult] = field(default_factory=dict)
    """What probing showed, by site."""

    splits: dict[Site, int] = field(default_factory=dict)
    """Which of its rules splits a propagate."""

    chain: frozenset[Site] = frozenset()
    """Propagates that follow one another with nothing but affine maps between."""

    probed_filter: bool = False
    """Whether several hops were found to be one filter by probing."""

    replay: Callable[[Tensor], Tensor] | None = None
    """Where asked for: λ [T] → the outputs of the model itself, run with reweighted messages."""

    left_out: list[str] = field(default_factory=list)
    """Why the logits' other node-wise propagates are no mixtures; they stay in the fixed part."""

    seen: dict[bytes, None] = field(default_factory=dict)
    """Graphs on which this was found to hold, as digests of their terms; the latest last."""

    @property
    def centred(self) -> bool:
        """Whether the model ends in log_softmax."""
        return any(tail.centred for tail in self.tails.values())

    def note(self, mixtures: Sequence[Mixture]) -> None:
        """Remember that this holds on the graph of these groups."""
        self.seen[digest_of_terms(mixtures)] = None
        if len(self.seen) > SEEN:
            del self.seen[next(iter(self.seen))]

    def is_new(self, mixtures: Sequence[Mixture]) -> bool:
        """Whether these groups' graph, or its coefficients, were not met before."""
        return digest_of_terms(mixtures) not in self.seen

    @property
    def fixed(self) -> str:
        """What sits in β, in words."""
        text = "biases, root and skip terms"
        for name in () if self.nodewise else self.nonlinear:
            text += f", {name} (not affine)"
        for reason in self.left_out:
            text += f"; left out: {reason}"
        return text + (
            "; log_softmax head: up to a shift common to a node's classes" * self.centred
        )


def find_final(watch: Watch, trace: Trace, mode: str) -> FinalAggregation:
    """Probe every convolution's aggregates, the last first, and split those that are final."""
    return Finder(watch, trace, mode).find()


class Finder:
    """Looks at a run of a model, the last propagates first."""

    def __init__(self, watch: Watch, trace: Trace, mode: str) -> None:
        self.watch, self.trace, self.mode = watch, trace, mode
        self.finding = FinalAggregation()
        self._nonlinear: set[Site] = set()
        self._final: list[Call] = []
        """Aggregations found to be final so far; looked for from the end, so later ones."""
        self.limit = AFFINE_SLACK * EXACT[trace.output.dtype]

    def find(self) -> FinalAggregation:
        found: list[list[Mixture]] = []
        several = self._find_filter()
        taken = several.sites if several else ()
        if several:
            self.finding.tails |= several.tails
            self.finding.probed_filter = True
            self._final += [call for call in self.trace.calls if call.site in taken]
            found.append(self._reaching_logits(several.mixtures, self.trace.calls[-1]))
        left = [call for call in self.trace.calls if call.site not in taken]
        for calls in reversed(_invocations(left)):
            rule = filter_for(calls[0].conv) if self.mode == "paths" else None
            if rule is None:
                found.append(self._propagates(calls))
            elif self._probe(calls[-1].site, calls[-1]).final:
                found.append(self._filter(rule, calls))
                self._final += calls
        self.finding.mixtures = [m for mixtures in reversed(found) for m in mixtures]
        if not self.finding.mixtures:
            self._split_nodewise()
        return self.finding

    def _find_filter(self) -> FoundFilter | None:
        hops = chained(self.watch, self.trace, self.limit)
        kept = {hop.site for hop in hops}
        for call in self.trace.calls:
            if call.site not in kept:
                call.forget_entries()
        # Side by side with the same weights (the two ends of a VGAE) is no chain.
        read = {place for hop in hops for place in hop.inputs}
        linked = (hop.site for place, hop in enumerate(hops) if hop.inputs or place in read)
        self.finding.chain = frozenset(linked)
        if self.mode != "paths":
            return None
        return find_filter(self.watch, self.trace, hops, self.limit)

    def _split_nodewise(self) -> None:
        for calls in _invocations(self.trace.calls):
            rule = filter_for(calls[0].conv) if self.mode == "paths" else None
            ends = [call for call in calls if call.site in self._nonlinear]
            try:
                if rule is None:
                    several = len(ends) < len(calls)
                    for call in ends:
                        self.finding.nodewise += self._split(calls, call, several)
                elif ends:
                    self.finding.nodewise += self._split_filter(rule, calls)
            except ExposureRefused as refusal:
                self.finding.left_out.append(str(refusal))
        self.finding.note(self.finding.nodewise)

    def _split_filter(self, rule: hops.Filter, calls: Sequence[Call]) -> list[Mixture]:
        mixtures = hops.mixtures_of_filter(rule, calls[0])
        for site in dict.fromkeys(mixture.site for mixture in mixtures):
            if not self._answer(site).local or self._split_error(mixtures, site) > self.limit:
                raise _no_powers(calls[0])
        return mixtures

    def _probe(self, site: Site, call: Call) -> ProbeResult:
        value, logits = self.trace.values[site], self.trace.output
        if value.shape[0] != logits.shape[0]:
            return ProbeResult(local=False, affine=False)
        answer = self._answer(site)
        if answer.local and not answer.affine:
            self.finding.nonlinear.append(call.title)
            self._nonlinear.add(site)
        return answer

    def _answer(self, site: Site) -> ProbeResult:
        if site not in self.finding.answers:
            value, logits = self.trace.values[site], self.trace.output
            answer = probe(self.watch, site, value, logits)
            if answer.local and self._feeds_final(site):
                answer = ProbeResult(local=False, affine=False)
            self.finding.answers[site] = answer
        return self.finding.answers[site]

    def _feeds_final(self, site: Site) -> bool:
        """Whether a later final aggregation reads what this one gives.

        Then other nodes' logits answer to it wherever there are edges, though the probe saw none
        do: the graph has no edges, or none between the nodes that it moved and the others. (Of
        several node types the recipients' own may send to others alone; there the probe decides.)
        """
        if not self._final or self._final[0].placement is not None:
            return False
        value, seen = self.trace.values[site], dict[Site, Mapping[str, Any]]()
        self.watch.run({site: value + perturbation(value, seed=3)}, seen=seen)
        later = ((call.arguments, seen.get(call.site, {})) for call in self._final)
        return not all(unmoved(given, again, senders=True) for given, again in later)

    def _propagates(self, calls: Sequence[Call]) -> list[Mixture]:
        """The final ones of a convolution's propagates."""
        answers = [self._probe_one(call) for call in reversed(calls)][::-1]
        # One that other nodes' logits answer to feeds a later hop.
        several = any(not answer.local for answer in answers)
        return [
            mixture
            for call, answer in zip(calls, answers, strict=True)
            if answer.final
            for mixture in self._one_propagate(calls, call, answer, several)
        ]

    def _probe_one(self, call: Call) -> ProbeResult:
        answer = self._probe(call.site, call)
        if answer.local and not answer.idle:
            self._final.append(call)
        return answer

    def _one_propagate(
        self, calls: Sequence[Call], call: Call, answer: ProbeResult, several: bool
    ) -> list[Mixture]:
        mixtures = self._split(calls, call, several)
        call.forget_entries()
        if not self._find_tail(call.site, call, answer, mixtures):
            return []
        return self._reaching_logits(mixtures, call)

    def _split(self, calls: Sequence[Call], call: Call, several: bool) -> list[Mixture]:
        names = _names(calls, call, self.trace.values[call.site].shape[1])
        why, rules = "", rules_for(call)
        for number, rule in enumerate(rules):
            split = split_by(rule, call) if self._may_split(call.site, number) else None
            if split is None:
                continue
            if several or call.site in self.finding.chain:
                split = replace(split, rule=f"{split.rule}; {LAST_HOP}, the rest is in h")
            try:
                if call.placement is not None:
                    mixtures = mixtures_of_parts(call, split)
                else:
                    mixtures = mixtures_of_split(call, split, names)
            except NoSumError as error:
                why = str(error)
                break
            if self._split_error(mixtures, call.site) <= self.limit:
                self.finding.splits[call.site] = number
                return mixtures
        return self._contributions(call, names, len(rules), why)

    def _contributions(
        self, call: Call, names: Sequence[str], number: int, why: str
    ) -> list[Mixture]:
        """The groups of a propagate that no rule describes, by what its messages add."""
        mixtures = contributed(call, names) if self._may_split(call.site, number) else []
        if not mixtures or self._split_error(mixtures, call.site) > self.limit:
            raise ExposureRefused(why or unruly(call))
        self.finding.splits[call.site] = number
        return mixtures

    def _may_split(self, site: Site, number: int) -> bool:
        return True

    def _filter(self, rule: hops.Filter, calls: Sequence[Call]) -> list[Mixture]:
        call = calls[0]
        mixtures = hops.mixtures_of_filter(rule, call)
        for site in dict.fromkeys(mixture.site for mixture in mixtures):
            answer = self._probe(site, call)
            if self._split_error(mixtures, site) > self.limit or not answer.final:
                raise _no_powers(call)
            if not self._find_tail(site, call, answer, mixtures):
                self._nonlinear.add(calls[-1].site)
                return []
        return self._reaching_logits(mixtures, call)

    def _find_tail(
        self, site: Site, call: Call, answer: ProbeResult, mixtures: Sequence[Mixture]
    ) -> bool:
        """Find the affine map from a site to the logits; False where it bends further out."""
        value, logits = self.trace.values[site], self.trace.output
        size = max(mixture.reach for mixture in mixtures if mixture.site == site)
        for by_node in (False, True):
            tail = find_tail(self.watch, site, value, answer.centred, by_node)
            if tail_error(self.watch, site, value, logits, tail, size) <= self.limit:
                self.finding.tails[site] = tail
                self.finding.note(mixtures)
                return True
        self.finding.nonlinear.append(call.title)
        self._nonlinear.add(site)
        return False

    def _reaching_logits(self, mixtures: list[Mixture], call: Call) -> list[Mixture]:
        kept = [m for m in mixtures if bool((self.finding.tails[m.site].weight != 0).any())]
        if len(kept) < len(mixtures):
            self.finding.idle.append(call.title)
        return kept

    def _split_error(self, mixtures: Sequence[Mixture], site: Site) -> float:
        """Largest relative difference between a site's value and the mixtures said to make it."""
        value = self.trace.values[site]
        made = torch.zeros_like(value)
        size = max(float(value.abs().max()), torch.finfo(value.dtype).tiny)
        for mixture in mixtures:
            if mixture.site == site:
                made[:, mixture.block] += mixture.value(mixture.coefficients)
                made += 0 if mixture.held is None else mixture.held
                size = max(size, mixture.reach)  # messages may cancel, as centred ones do
        return float((made - value).abs().max()) / size


def _no_powers(call: Call) -> ExposureRefused:
    return ExposureRefused(
        f"{call.title} does not propagate by powers of one operator; use hops='last'"
    )


def _invocations(calls: Sequence[Call]) -> list[list[Call]]:
    """Propagates grouped by the run of the convolution they belong to, in order."""
    groups: dict[tuple[str, int], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.site.name, call.invocation), []).append(call)
    return list(groups.values())


def _names(calls: Sequence[Call], call: Call, blocks: int) -> list[str]:
    name = call.site.name or call.kind
    if isinstance(call, ProductCall) and call.invocation:
        name = f"{name} {call.invocation + 1}"
    if len(calls) > 1:
        kind = "relation" if hasattr(call.conv, "num_relations") else "propagate"
        hop = kind == "propagate" and call is calls[-1]
        name = f"{name} last hop" if hop else f"{name} {kind} {calls.index(call)}"
    if blocks == 1:
        return [name]
    kind = "head" if hasattr(call.conv, "heads") else "stack"
    return [f"{name} {kind} {block}" for block in range(blocks)]
