"""The pipeline: record a run, analyse it, run again to capture, build the mixture, certify it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.assembly import Words, assemble
from gnn_repair.exposure.certification import random_admissible
from gnn_repair.exposure.embedding import last_linear
from gnn_repair.exposure.fingerprint import fingerprint_of_model
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.model_arguments import field, field_names
from gnn_repair.exposure.model_call import check_expected
from gnn_repair.exposure.model_on_data import ModelOnData
from gnn_repair.exposure.model_output import Reading, check_numbers, count_classes, read_output
from gnn_repair.exposure.model_state import changing, forget_propagations
from gnn_repair.exposure.names import NodeNames
from gnn_repair.exposure.outputs import Outputs
from gnn_repair.exposure.probes import EXACT, Tail, centre
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, Parts, parts_of, site_of
from gnn_repair.exposure.record.build import (
    Block,
    blocks_of,
    frame_of_site,
    graph_starts,
    joined_blocks,
    mixtures_of,
    wanted_values,
)
from gnn_repair.exposure.record.capture import DivergedError, captured
from gnn_repair.exposure.record.filters import Filters, same_entries
from gnn_repair.exposure.record.held import HeldPart, held_parts
from gnn_repair.exposure.record.recorder import KnownTensor, Record, Spaces, record_run
from gnn_repair.exposure.record.replay import Replay
from gnn_repair.exposure.record.words import fixed_words, group_words, has_root, holder_of
from gnn_repair.exposure.sites import Site as Place
from gnn_repair.exposure.tails.builder import Unfollowed
from gnn_repair.exposure.tails.certification import random_vertex
from gnn_repair.exposure.tails.extraction import Extracted, affine_start
from gnn_repair.exposure.tails.logit_form import AFFINE, TAKEN_OFF, folded, is_affine
from gnn_repair.exposure.tails.operations import Activation, Operation, Softmax, TailGraph
from gnn_repair.exposure.tails.simplify import simplified
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure

UNREADABLE = (
    ExposureRefused, DivergedError, RuntimeError, ValueError, IndexError, KeyError, TypeError,
    AttributeError, AssertionError, Unfollowed,
)  # fmt: skip
"""What a record that cannot be read to its end raises: then nothing is said from it."""
LARGE = 1 << 20
"""Terms beyond which one draw is enough: it gives every recipient random coefficients."""
ROUNDINGS = 16
"""Roundings of the largest logit that a certificate allows beside what moved."""


@dataclass(frozen=True)
class RecordWanted:
    """How a model is exposed."""

    hops: str = "paths"
    tolerance: float | None = None
    expected: Any = None
    outputs: Outputs | None = None
    certified: bool = True
    """Whether the model is run on reweighted messages; otherwise nothing is claimed."""


@dataclass(frozen=True, eq=False)
class Exposed:
    """The exposure, and the model itself run with reweighted messages."""

    exposure: Exposure | TailedExposure
    replay: Replay


def expose_subject(subject: ModelOnData, wanted: RecordWanted) -> Exposed:
    """Expose a model on data."""
    return _Exposing(subject, wanted).exposed()


def second_opinion(
    subject: ModelOnData,
    wanted: RecordWanted,
    found: Exposure | TailedExposure,
    known: Collection[str],
) -> Exposed | tuple[HeldPart, ...]:
    """What the record of a run says of an exposure that was found by probing.

    Args:
        subject: the model on data.
        wanted: how it is exposed.
        found: the exposure.
        known: the modules whose sums it reweights.

    Returns:
        The exposure that the record gives, where it is of another kind (a nonlinear head that
        probes took for affine, hops that they did not see); else what mixes nodes and is held.

    Raises:
        ExposureRefused: Python looks at numbers that the messages reach.
    """
    return _Exposing(subject, wanted).judged(found, known)


def _parts(analysis: Analysis, sites: Sequence[FinalSite]) -> list[Parts | None]:
    return [
        None if s.reduction.matrix is not None else parts_of(analysis, s.reduction) for s in sites
    ]


class _Exposing:
    """One model on the way to its exposure."""

    def __init__(self, subject: ModelOnData, wanted: RecordWanted) -> None:
        self.subject, self.wanted, self.model = subject, wanted, subject.model
        self.read: Reading | None = None
        self.graphs: int | None = None

    # Running -----------------------------------------------------------------------------------

    def run(self) -> Tensor:
        """The logits [n, C]; the first time, what of the output they are is found out."""
        output = self.subject.call()
        if self.read is None:
            with _disable_current_modes():
                self.read = self._reading(output)
        return self.read(output)

    def _reading(self, output: Any) -> Reading:
        from gnn_repair.exposure.diagnosis import why_rows
        from gnn_repair.exposure.pooling.from_model import graphs_told

        subject = self.subject
        rows, classes = subject.nodes, subject.classes
        if subject.graph is None:
            self.graphs = graphs_told(subject.data, output, subject.nodes)
            if self.graphs is not None:
                rows = self.graphs
                classes = count_classes(subject.data, rows) or subject.classes

        def why(tensor: Tensor, count: int) -> str:
            return why_rows(self.model, subject.call, tensor, count)

        about = subject.labelled if self.graphs is None else subject.data
        return read_output(output, rows, why, classes, self.wanted.outputs, about)

    def _leaves(self) -> dict[int, KnownTensor]:
        found: dict[int, KnownTensor] = {}
        for name, value in self.model.named_buffers():
            found[id(value)] = self._leaf(name, value, False)
        for name, parameter in self.model.named_parameters():
            found[id(parameter)] = KnownTensor(name, True)
        for name, value, space, ends in self._fields():
            if isinstance(value, Tensor):
                leaf = self._leaf(name, value, True, space, ends)
                relation = self._relations.get(id(value))
                found[id(value)] = leaf if relation is None else replace(leaf, relation=relation)
        return found

    def _leaf(
        self, name: str, value: Tensor, features: bool, space: int | None = None,
        ends: tuple[int, int] | None = None,
    ) -> KnownTensor:  # fmt: skip
        counts = self.spaces.counts
        shape = tuple(value.shape)
        square = len(shape) == 2 and shape[0] == shape[1] and shape[0] in counts
        named = name == "x" or name.endswith(".x")
        matrix = value.layout != torch.strided or (square and not named)
        if value.layout == torch.strided and not value.is_floating_point():
            return KnownTensor(name, False, space, ends)
        plain = name.rpartition(".")[2]
        edges = plain.startswith("edge") or plain in ("adj", "adj_t")
        rows = bool(shape) and shape[0] in counts and not matrix and not edges
        space = space if space is not None else self.spaces.only(shape[0]) if rows else None
        return KnownTensor(name, rows, space if rows else None, both=square and matrix)

    def _fields(self) -> Iterator[tuple[str, Any, int | None, tuple[int, int] | None]]:
        subject = self.subject
        if subject.graph is None:
            for name in field_names(subject.fields):
                value = field(subject.fields, name)
                edges = name == "edge_index" and isinstance(value, Tensor)
                yield name, value, None, (0, 0) if edges else None
            return
        graph = subject.graph
        order = graph.order
        for relation, index in graph.edges.items():
            yield (
                " ".join(relation),
                index,
                None,
                (order.index(relation[0]), order.index(relation[2])),
            )
        for name, value in subject.fields.items():
            kind = name.rpartition(".")[0]
            if kind in order:
                yield name, value, order.index(kind), None

    @cached_property
    def _relations(self) -> dict[int, int]:
        """The number of the relation whose edge list a tensor is."""
        graph = self.subject.graph
        return {} if graph is None else {id(e): n for n, e in enumerate(graph.edges.values())}

    @cached_property
    def spaces(self) -> Spaces:
        """The node types, the classified one first."""
        graph = self.subject.graph
        if graph is not None:
            return Spaces(tuple(graph.counts[kind] for kind in graph.order))
        nodes = self.subject.nodes
        return Spaces((nodes,) if nodes is not None else ())

    # Stages ------------------------------------------------------------------------------------

    def exposed(self) -> Exposed:
        forget_propagations(self.model)
        if self.subject.nodes is None:  # data does not say: as many as the output has rows
            self.subject = replace(self.subject, nodes=len(self.run()))
        for last in (False, True):
            with last_linear(self.model) as head:
                record, logits = record_run(self.model, self.run, self.spaces, self._leaves())
            assert self.read is not None
            check_numbers(logits, self.model, self.subject.fields)
            self._check_expected(logits)
            try:
                return self._from_record(record, logits, head.embedding(logits, self.read.binary))
            except DivergedError:
                if last:  # caches were filled by the first run
                    raise ExposureRefused(
                        changing(self.model, self.run, logits, float("inf"))
                    ) from None
        raise AssertionError

    def judged(
        self, found: Exposure | TailedExposure, known: Collection[str]
    ) -> Exposed | tuple[HeldPart, ...]:
        """See :func:`second_opinion`."""
        try:
            record, logits = record_run(self.model, self.run, self.spaces, self._leaves())
            analysis = Analysis(record)
            sites = self._sites(analysis, len(logits))
        except UNREADABLE:
            return ()
        analysis.refuse_branches(sites)
        modules, steps = dict(self.model.named_modules()), record.steps
        mixture = found.aggregate if isinstance(found, TailedExposure) else found
        filters = any("sparse product" in group.coefficients_from for group in mixture.groups)
        hops = any(site.powers is not None for site in sites)
        missed = hops and not filters
        names = {holder_of(modules, steps[site.step].module)[0] for site in sites}
        known = {holder_of(modules, name)[0] for name in known}
        unseen = [name for name in names - known if f"`{name}`" not in mixture.fixed]
        unseen = [] if hops and filters else unseen  # a filter's last hop may be any of its modules
        if not missed and not unseen:
            sites = [s for s in sites if holder_of(modules, steps[s.step].module)[0] in known]
        try:
            parts = _parts(analysis, sites)
            seen = self._captured(analysis, sites, parts, logits)
            if missed or unseen or (isinstance(found, Exposure) and _is_bent(seen, found)):
                return self._built(analysis, sites, parts, seen, logits, None)
            held = held_parts(analysis, modules, [site.step for site in sites])
            # The other hops of a filter are in its polynomial.
            return tuple(part for part in held if not hops or part.module not in names)
        except UNREADABLE:
            return ()

    def _check_expected(self, logits: Tensor) -> None:
        assert self.read is not None
        if self.wanted.expected is not None:
            shown = logits[:, int(self.read.outputs != "classes") :]
            noun = "node" if self.graphs is None else "graph"
            check_expected(self.wanted.expected, shown, self.read.binary, self.called, noun)

    @property
    def called(self) -> str:
        assert self.read is not None
        text = self.read.text
        return self.subject.call.text + (
            text if self.graphs is None else text.replace("z a node", "z a graph")
        )

    def _from_record(self, record: Record, logits: Tensor, embedding: Tensor | None) -> Exposed:
        analysis = Analysis(record)
        sites = self._sites(analysis, len(logits))
        analysis.refuse_branches(sites)
        parts = _parts(analysis, sites)
        found = self._captured(analysis, sites, parts, logits)
        return self._built(analysis, sites, parts, found, logits, embedding)

    def _sites(self, analysis: Analysis, size: int) -> list[FinalSite]:
        final, reached = analysis.final(size)
        if not final:
            from gnn_repair.exposure.record.refusals import why_nothing

            raise ExposureRefused(why_nothing(analysis, self.model, self.subject, size))
        if self.wanted.hops == "paths" and self.graphs is None:
            modules, steps = dict(self.model.named_modules()), analysis.record.steps

            def holder(place: int) -> str:
                name, module = holder_of(modules, steps[place].module)
                return name or "forward" if isinstance(module, MessagePassing) else ""

            return Filters(analysis, size, holder).sites(final, reached)
        return [site_of(analysis, place, size) for place in final]

    def _captured(
        self,
        analysis: Analysis,
        sites: Sequence[FinalSite],
        parts: Sequence[Parts | None],
        logits: Tensor,
    ) -> _Captured:
        held = analysis.statistics(sites)
        wanted: set[int] = {out for place in held for out in analysis.record.steps[place].outs}
        followed, offsets, width = {}, dict[int, int](), 0
        for site, part in zip(sites, parts, strict=True):
            wanted |= wanted_values(analysis, site, part) | {site.value}
            frame = frame_of_site(analysis.value(site.value).shape, site, len(logits))
            followed[site.value], offsets[site.value] = (frame, site.readers), width
            width += frame.width
        kept, tracer, output, inputs = captured(
            self.model, self.run, analysis.record, wanted, width, len(logits), followed, offsets,
            [site.step for site in sites], set(held), logits.device,
        )  # fmt: skip
        if output.shape != logits.shape or not _close(output, logits):
            raise DivergedError
        value, _ = tracer.builder.flat(tracer.output(output))
        operations = simplified(tracer.builder.operations, tracer.builder.widths, value)
        operations, shifted = _without_shift(operations, width, logits.shape[1])
        extracted = affine_start(operations, width, logits.device)
        return _Captured(kept, inputs, offsets, extracted, shifted)

    def _built(
        self, analysis: Analysis, sites: Sequence[FinalSite], parts: Sequence[Parts | None],
        found: _Captured, logits: Tensor, embedding: Tensor | None,
    ) -> Exposed:  # fmt: skip
        modules = dict(self.model.named_modules())
        read = _read_by_tail(found, analysis, sites)
        pairs = [(s, p) for s, p in zip(sites, parts, strict=True) if s.value in read]
        blocks = self._blocks(analysis, modules, pairs, found)
        mixtures, tails = list[Mixture](), dict[Place, Tail]()
        named = group_words(analysis, modules, blocks, self.subject.graph)
        for number, (block, about) in enumerate(named):
            site = block.pieces[0].site
            place = Place("aggregate", about.module, number)
            columns = [found.offsets[p.site.value] + p.channels for p in block.pieces]
            tails[place] = Tail(
                found.extracted.weight[:, torch.cat(columns)].unsqueeze(1), centred=False
            )
            mixtures += mixtures_of(
                place, block, about.group, len(logits), found.inputs.get(site.step),
                self.graphs is not None, self.subject.graph,
            )  # fmt: skip
        finished = self.subject.finished(mixtures)
        held = held_parts(analysis, modules, [site.step for site, _ in pairs])
        names, starts = self.subject.names, None
        if self.graphs is not None:
            assert self.subject.nodes is not None
            names = NodeNames("graph", (("node", self.subject.nodes),))
            starts = graph_starts(
                blocks, self.subject.nodes, self.graphs, field(self.subject.data, "batch")
            )
        words = Words(
            type(self.model).__name__, fixed_words(held, found.shifted),
            has_root(analysis, modules, [s for s, _ in pairs]), embedding, self.called,
            fingerprint_of_model(self.model, self.wanted.hops, logits.shape[1] - self.anchored),
            names, starts,
        )  # fmt: skip
        extracted, tail = found.extracted, found.extracted.tail
        channels = logits
        if tail.operations:
            channels = extracted.aggregate(_values(found, sites))
        mixture, order = assemble(finished, tails, channels, words)
        replay = Replay.of(
            self.model,
            self.run,
            analysis.record,
            blocks,
            mixtures,
            found.kept,
            order,
            logits,
            analysis.statistics(sites),
        )
        exposure: Exposure | TailedExposure
        if tail.operations and not is_affine(tail):
            exposure = TailedExposure(mixture, tail, logits.double().unsqueeze(0), None, replay)
        elif tail.operations:
            exposure = folded(mixture, tail, None)
        else:
            exposure = mixture
        if self.wanted.certified:
            residual = certify(exposure, replay, logits, found.shifted)
            self._check(residual, logits, mixture.groups)
            object.__setattr__(exposure, "residual", residual)  # validated a moment ago
        assert self.read is not None
        return Exposed(self.read.finished(exposure), replay)

    def _blocks(
        self, analysis: Analysis, modules: Mapping[str, nn.Module],
        pairs: Sequence[tuple[FinalSite, Parts | None]], found: _Captured,
    ) -> list[Block]:  # fmt: skip
        """The blocks of all sites; sums of one convolution with the same coefficients are one."""
        blocks: list[Block] = []
        known: list[tuple[str, tuple[FinalSite, Parts | None], int]] = []
        for site, part in pairs:
            shape = analysis.value(site.reduction.message).shape
            several = blocks_of(site, part, shape, found.kept)
            holder = holder_of(modules, analysis.record.steps[site.step].module)[0]
            alike = isinstance(modules.get(holder), MessagePassing | Aggregation)
            alike = alike and site.powers is None and len(several) == 1
            twins = [
                first
                for name, other, first in known
                if alike and name == holder and same_entries(analysis, other, (site, part))
            ]
            if twins:
                blocks[twins[0]] = joined_blocks(blocks[twins[0]], several[0])
                continue
            if alike:
                known.append((holder, (site, part), len(blocks)))
            blocks += several
        return [block for block in blocks if len(block.recipients)] or blocks[:1]

    @property
    def anchored(self) -> bool:
        assert self.read is not None
        return self.read.outputs != "classes"

    def _check(self, residual: float, logits: Tensor, groups: Sequence[Any]) -> None:
        tolerance = self.wanted.tolerance
        limit = EXACT[logits.dtype] if tolerance is None else tolerance
        if not residual <= limit:
            names = ", ".join(f"`{group.name}`" for group in groups[:3])
            advice = (
                "pass model.double() and double data"
                if logits.dtype == torch.float32
                else ("the model computes something that its operations do not show")
            )
            raise ExposureRefused(
                f"run with reweighted messages in {names} the model differs from what was read off "
                f"it by {residual:.1e} of what they move, more than {limit:.0e}; {advice}"
            )


@dataclass(frozen=True, eq=False)
class _Captured:
    """What the second run showed."""

    kept: dict[int, Tensor]
    inputs: dict[int, Any]
    """By sum: what the convolution around it was given."""
    offsets: dict[int, int]
    extracted: Extracted
    shifted: bool
    """Whether a log_softmax at the end was left out: a shift common to a node's classes."""


def _is_bent(seen: _Captured, found: Exposure) -> bool:
    """Whether a nonlinear head follows, beside what was taken off: a shift, or a last sigmoid."""
    left = [op for op in seen.extracted.tail.operations if not isinstance(op, AFFINE)]
    if "log_softmax head" in found.fixed:
        return False
    if TAKEN_OFF in found.called:
        left = [op for op in left if not (isinstance(op, Activation) and op.name == "sigmoid")]
    return bool(left)


def _close(left: Tensor, right: Tensor) -> bool:
    limit = 10 * EXACT[right.dtype]
    return bool(((left - right).abs().amax() <= limit * right.abs().amax().clamp(min=1e-30)).all())


def _without_shift(
    operations: list[Operation], width: int, classes: int
) -> tuple[list[Operation], bool]:
    """The operations without a log_softmax over all classes at the end."""
    last = operations[-1] if operations else None
    whole = isinstance(last, Softmax) and last.log and last.size == classes
    if last is None or not whole or last.inputs[0] != len(operations) - 1:
        return operations, False
    rest = operations[:-1]
    return (rest, True) if is_affine(TailGraph(width, tuple(rest))) else (operations, False)


def _values(found: _Captured, sites: Sequence[FinalSite]) -> Tensor:
    """What the sites hold, side by side, [n, Σ widths]."""
    flat = []
    for site in sites:
        value = found.kept[site.value]
        value = value.unsqueeze(0) if site.axis is None else value.movedim(site.axis, 0)
        value = value.reshape(len(value), -1)
        flat.append(
            value
            if site.rows is None
            else value[torch.argsort(site.rows)[-int((site.rows >= 0).sum()) :]]
        )
    return torch.cat(flat, dim=1)


def _read_by_tail(found: _Captured, analysis: Analysis, sites: Sequence[FinalSite]) -> set[int]:
    """The sites that what follows reads at all."""
    read = set()
    for site in sites:
        first = found.offsets[site.value]
        frame = frame_of_site(analysis.value(site.value).shape, site, 0)
        if bool((found.extracted.weight[:, first : first + frame.width] != 0).any()):
            read.add(site.value)
    if not read:
        raise ExposureRefused("the logits do not depend on what the model's last sums give")
    return read


def certify(
    exposure: Exposure | TailedExposure, replay: Replay, logits: Tensor, shifted: bool
) -> float:
    """Largest difference of model and exposure over random λ and vertices, beside what moved."""
    mixture = exposure.aggregate if isinstance(exposure, TailedExposure) else exposure
    draws = [random_admissible(mixture, seed=0)]
    if mixture.num_terms < LARGE:
        draws += [random_admissible(mixture, seed=1), random_vertex(mixture, seed=2)]
    worst, frozen = 0.0, logits.double()
    kappa = ROUNDINGS * torch.finfo(logits.dtype).eps / EXACT[logits.dtype]
    frozen = centre(frozen) if shifted else frozen
    for draw in draws:
        # The model sees λ in its own precision, and so must the prediction.
        coefficients = draw.to(mixture.coefficients.dtype)
        seen = replay.run(coefficients).double()
        expected = exposure.logits(coefficients.unsqueeze(0))[0]
        if shifted:
            seen, expected = centre(seen), centre(expected)
        moved = float((expected - frozen).abs().amax())
        size = max(moved, kappa * float(torch.maximum(expected.abs().amax(), frozen.abs().amax())))
        gap = float((seen - expected).abs().amax())
        ratio = 0.0 if gap == 0 else gap / max(size, torch.finfo(torch.float64).tiny)
        worst = ratio if not ratio <= worst else worst  # NaN wins
    return worst
