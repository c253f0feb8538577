"""The pipeline: record, analyse, capture, build, certify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.assembly import Words, assemble
from gnn_repair.exposure.certification import random_admissible
from gnn_repair.exposure.mixtures import Context, Mixture
from gnn_repair.exposure.probes import Tail
from gnn_repair.exposure.record.analysis import Analysis, Site, parts_of, site_of
from gnn_repair.exposure.record.build import Block, blocks_of, frame_of_site, wanted_values
from gnn_repair.exposure.record.capture import DivergedError, captured, replaced
from gnn_repair.exposure.record.filters import Filters
from gnn_repair.exposure.record.recorder import Leaf, Record, Spaces, record_run
from gnn_repair.exposure.sites import Site as Place
from gnn_repair.exposure.tails.extraction import _affine_start
from gnn_repair.exposure.tails.logit_form import folded, is_affine
from gnn_repair.exposure.tails.operations import Softmax, TailGraph
from gnn_repair.exposure.tails.simplify import simplified
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure, Group


def expose_record(
    model: nn.Module, run: Callable[[], Tensor], spaces: Spaces, leaves: Mapping[int, Leaf], words: Words, hops: str = "paths",
    again: bool = False
) -> Exposure | TailedExposure:
    record, logits = record_run(model, run, spaces, leaves)
    analysis = Analysis(record)
    final, reached = analysis.final(logits.shape[0])
    if not final:
        raise ExposureRefused("no sum over messages reaches the logits")
    if hops == "paths":
        sites = Filters(analysis, logits.shape[0]).sites(final, reached)
    else:
        sites = [site_of(analysis, place) for place in final]
    parts = [None if s.reduction.matrix is not None else parts_of(analysis, s.reduction) for s in sites]
    wanted = set[int]()
    for site, part in zip(sites, parts, strict=True):
        wanted |= wanted_values(analysis, site, part) | {site.value}
    followed, offsets, width = {}, {}, 0
    for site in sites:
        frame = frame_of_site(analysis.value(site.value).shape, site.axis)
        followed[site.value], offsets[site.value] = frame, width
        width += frame.width
    try:
        kept, tracer, output = captured(
            run, record, wanted, width, logits.shape[0], followed, offsets, logits.device
        )
    except DivergedError:
        if again:
            raise
        return expose_record(model, run, spaces, leaves, words, hops, again=True)  # caches are filled now
    value, frame = tracer.builder.flat(tracer.output(output))
    operations = simplified(tracer.builder.operations, tracer.builder.widths, value)
    last = operations[-1] if operations else None
    centred = False
    if isinstance(last, Softmax) and last.log and last.size == logits.shape[1]:
        rest = operations[:-1]
        if last.inputs[0] == len(rest) and is_affine(TailGraph(width, tuple(rest))):
            operations, centred = rest, True
    extracted = _affine_start(list(operations), width, logits.device)
    mixtures, tails = [], {}
    modules = dict(model.named_modules())
    for order, (site, part) in enumerate(zip(sites, parts, strict=True)):
        first = offsets[site.value]
        for number, block in enumerate(blocks_of(site, part, analysis.value(site.reduction.message).shape, kept)):
            place = Place("aggregate", f"{record.steps[site.step].module}.{number}", site.step)
            columns = extracted.weight[:, first + block.channels]
            tails[place] = Tail(columns.unsqueeze(1), centred=False)
            mixtures += _mixtures(place, block, logits.shape[0], record.steps[site.step].module)
    affine = is_affine(extracted.tail)
    values = torch.cat(
        [_rows(kept[s.value], s.axis) for s in sites], dim=1
    )
    channels = logits if not extracted.tail.operations else extracted.aggregate(values)
    exposure, order = assemble(mixtures, tails, channels, words)
    if extracted.tail.operations and affine:
        return folded(exposure, extracted.tail, None)
    if affine:
        return exposure
    return TailedExposure(exposure, extracted.tail, logits.double().unsqueeze(0), None, None)


def _rows(value: Tensor, axis: int | None) -> Tensor:
    return value.reshape(1, -1) if axis is None else value.movedim(axis, 0).reshape(value.shape[axis], -1)


def _mixtures(place: Place, block: Block, nodes: int, name: str) -> list[Mixture]:
    found = []
    signed = bool((block.coefficients < 0).any())
    for sign in (1, -1) if signed else (1,):
        keep = (block.coefficients * sign > 0).nonzero().view(-1)
        if not keep.numel() and signed:
            continue
        order = keep[torch.argsort(block.recipients[keep], stable=True)]
        counts = torch.bincount(block.recipients[order], minlength=nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        sources = block.sources[order].int()
        behind = torch.full((block.states.shape[0],), -1, dtype=torch.int32)
        behind[block.rows] = block.sources.int()
        found.append(Mixture(
            site=place, block=0, group=Group(name, "", ""), indptr=indptr,
            rows=block.rows[order].int(), sources=sources,
            coefficients=block.coefficients[order] * sign, sign=sign, states=block.states,
            state_sources=behind, context=Context(block.states, block.states.new_zeros(nodes, block.states.shape[1])),
            entries=order,
        ))
    return found
