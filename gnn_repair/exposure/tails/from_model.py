"""A model with a nonlinear tail as a :class:`TailedExposure`."""

from __future__ import annotations

from collections.abc import Sequence

from gnn_repair.exposure.assembly import Words, assemble
from gnn_repair.exposure.diagnosis import refuse_residual
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.probes import Tail
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Site
from gnn_repair.exposure.tails.certification import certify_tail
from gnn_repair.exposure.tails.extraction import Extracted, extract, joined_values
from gnn_repair.exposure.tails.model_replay import replay_of
from gnn_repair.exposure.tails.tailed import TailedExposure


def expose_tailed(
    watch: Watch,
    trace: Trace,
    mixtures: Sequence[Mixture],
    words: Words,
    tolerance: float | None,
    certified: bool = True,
) -> TailedExposure:
    """The mixtures of all node-wise final propagates, and what the model does to them.

    Args:
        watch: installed on the model.
        trace: its run.
        mixtures: the groups of the final propagates.
        words: what to say of the model.
        tolerance: the largest residual to accept.
        certified: whether to run the model on reweighted messages; otherwise nothing is claimed.
    """
    sites = list(dict.fromkeys(mixture.site for mixture in mixtures))
    extracted = extract(watch, trace, sites)
    read = _read_by_tail(extracted, trace, sites)
    if 0 < len(read) < len(sites):
        # The others reach the logits through the final aggregates alone, which are replaced.
        sites, mixtures = read, [mixture for mixture in mixtures if mixture.site in read]
        extracted = extract(watch, trace, sites)
    frozen = trace.output
    values = joined_values(trace, sites)
    aggregate, order = assemble(
        mixtures, _columns(extracted, trace, sites), extracted.aggregate(values), words
    )
    final = Trace(frozen, [c for c in trace.calls if c.site in sites], dict(trace.values))
    replay = replay_of(watch, mixtures, final, order)
    residual = None
    if certified:
        residual = certify_tail(aggregate, extracted.tail, frozen, replay.run)
        refuse_residual(watch, trace, sites, "the tail that was read off it", residual, tolerance)
    logits = frozen.double().unsqueeze(0)
    return TailedExposure(aggregate, extracted.tail, logits, residual, replay)


def _columns(extracted: Extracted, trace: Trace, sites: Sequence[Site]) -> dict[Site, Tail]:
    """For every site the part of W that reads it."""
    shapes = [trace.values[site].shape[1:] for site in sites]
    parts = extracted.weight.split([shape.numel() for shape in shapes], dim=1)
    return {
        site: Tail(part.reshape(-1, *shape), centred=False)
        for site, part, shape in zip(sites, parts, shapes, strict=True)
    }


def _read_by_tail(extracted: Extracted, trace: Trace, sites: Sequence[Site]) -> list[Site]:
    """The sites that what follows reads at all."""
    columns = _columns(extracted, trace, sites)
    return [site for site in sites if bool((columns[site].weight != 0).any())]
