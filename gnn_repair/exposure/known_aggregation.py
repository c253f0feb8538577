"""The final aggregation of a model that was probed before, on another graph."""

from __future__ import annotations

from collections.abc import Sequence

from gnn_repair.exposure.filters import FoundFilter
from gnn_repair.exposure.final_aggregation import FinalAggregation, Finder
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.probes import ProbeResult, find_tail
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
        self.finding.tails[site] = tail
        return True


class UnplannedError(Exception):
    """A run of a model differs from the one that was probed."""


def find_known(watch: Watch, trace: Trace, mode: str, known: FinalAggregation) -> FinalAggregation:
    """The final aggregation of another run, without probing it again.

    Raises:
        UnplannedError: the run does not look like the one that ``known`` was found in.
    """
    sites = {call.site for call in trace.calls}
    if known.probed_filter or not {s for s in known.answers if s.kind == "aggregate"} <= sites:
        raise UnplannedError
    return _KnownFinder(watch, trace, mode, known).find()
