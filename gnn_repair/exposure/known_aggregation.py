"""The final aggregation of a model that was probed before, on another graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gnn_repair.exposure.filters import FoundFilter
from gnn_repair.exposure.final_aggregation import FinalAggregation, Finder
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.probes import ProbeResult, find_tail, probe, tail_error
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Call, Site


class _KnownFinder(Finder):
    """The same on another run of the same model: what was probed then is taken as known."""

    def __init__(self, watch: Watch, trace: Trace, mode: str, known: FinalAggregation) -> None:
        super().__init__(watch, trace, mode)
        self.known = known
        self.finding.answers, self.finding.chain = dict(known.answers), known.chain

    def _find_filter(self) -> FoundFilter | None:
        return None

    def _answer(self, site: Site) -> ProbeResult:
        if site not in self.finding.answers:
            raise UnplannedError
        return self.finding.answers[site]

    def _split_nodewise(self) -> None:
        super()._split_nodewise()
        mixtures = self.finding.nodewise
        if not mixtures or not self.known.is_new(mixtures):
            return
        for site in dict.fromkeys(mixture.site for mixture in mixtures):
            value, logits = self.trace.values[site], self.trace.output
            if not probe(self.watch, site, value, logits).local:
                raise UnplannedError
        self.known.note(mixtures)

    def _may_split(self, site: Site, number: int) -> bool:
        return self.known.splits.get(site) == number

    def _split_error(self, mixtures: Sequence[Mixture], site: Site) -> float:
        return 0.0

    def _find_tail(
        self, site: Site, call: Call, answer: ProbeResult, mixtures: Sequence[Mixture]
    ) -> bool:
        tail = self.known.tails.get(site)
        if tail is None:
            self.finding.nonlinear.append(call.title)
            self._nonlinear.add(site)
            return False
        if tail.by_node:
            tail = find_tail(self.watch, site, self.trace.values[site], answer.centred, True)
        else:
            check_tail(self, self.known, site, mixtures)
        self.finding.tails[site] = tail
        return True


class UnplannedError(Exception):
    """A run of a model differs from the one that was probed."""


@torch.no_grad()
def check_tail(
    finder: Finder, known: FinalAggregation, site: Site, mixtures: Sequence[Mixture]
) -> None:
    """Run a graph that is new once more, to see that its logits follow the map that is known.

    After a division by degrees, say, the map of a graph whose nodes are all alike is no other's.

    Raises:
        UnplannedError: they do not.
    """
    if not known.is_new(mixtures):
        return
    value, logits, tail = finder.trace.values[site], finder.trace.output, known.tails[site]
    size = max(mixture.reach for mixture in mixtures if mixture.site == site)
    if not tail_error(finder.watch, site, value, logits, tail, size) <= finder.limit:
        raise UnplannedError
    known.note(mixtures)


def find_known(watch: Watch, trace: Trace, mode: str, known: FinalAggregation) -> FinalAggregation:
    """The final aggregation of another run, without probing it again.

    Raises:
        UnplannedError: the run does not look like the one that ``known`` was found in.
    """
    sites = {call.site for call in trace.calls}
    if known.probed_filter or not {s for s in known.answers if s.kind == "aggregate"} <= sites:
        raise UnplannedError
    return _KnownFinder(watch, trace, mode, known).find()
