"""The pipeline: record a run, analyse it, run again to capture, build the mixture, certify it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.calling import (
    ModelOnData,
    Reading,
    check_expected,
    check_numbers,
    count_classes,
    field,
    field_names,
    graphs_told,
    read_output,
)
from gnn_repair.exposure.heads.head import affine_start, simplified
from gnn_repair.exposure.heads.logit_form import as_two_classes, folded, in_logits, is_affine
from gnn_repair.exposure.heads.operations import HeadGraph, Operation, Softmax
from gnn_repair.exposure.pieces import EXACT, Outputs
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, site_of
from gnn_repair.exposure.record.build import (
    Block,
    Mixture,
    assemble,
    blocks_of,
    context_of,
    frame_of_site,
    graph_starts,
    joined_blocks,
    mixtures_of,
    of_sender_type,
    with_senders,
    with_shared_contexts,
)
from gnn_repair.exposure.record.filters import Filters, same_entries
from gnn_repair.exposure.record.recorder import (
    KnownTensor,
    Record,
    Recorder,
    Spaces,
    made_on,
    record_run,
    values_of,
)
from gnn_repair.exposure.record.replay import (
    Captured,
    CapturePlan,
    DivergedError,
    Replay,
    captured,
    certify,
    excused,
    mixture_in,
    random_admissible,
    redone,
    residual_limit,
)
from gnn_repair.exposure.record.words import (
    SUMS,
    broken_words,
    fixed_words,
    group_words,
    has_root,
    held_parts,
    holder_of,
    no_sums,
    operation_of,
    titled,
    why_nothing,
)
from gnn_repair.exposure.state import (
    KeptTable,
    changing,
    emptied,
    fingerprint_of_model,
    forget_propagations,
    holds_propagations,
    kept_tables,
)
from gnn_repair.exposure.value import Exposure, HeldPart

WHOLE_MESSAGES: set[type[nn.Module]] = set()
"""Convolutions whose messages are terms as they are, α = 1 per message, whatever multiplies them:
where the weights of a convolution of your own belong to what is sent, add its class."""


@dataclass(frozen=True)
class Wanted:
    """How a model is exposed."""

    hops: str = "paths"
    tolerance: float | None = None
    expected: Any = None
    outputs: Outputs | None = None
    certified: bool = True
    """Whether the model is run on reweighted messages; otherwise nothing is claimed."""
    gradients: bool = False
    """Whether the exposure carries gradients for what the model is given."""


def expose_subject(subject: ModelOnData, wanted: Wanted) -> Exposure:
    """Expose a model on data."""
    return Exposing(subject, wanted).exposed()


class Exposing:
    """One model on the way to its exposure."""

    def __init__(self, subject: ModelOnData, wanted: Wanted) -> None:
        self.subject, self.wanted, self.model = subject, wanted, subject.model
        self.read: Reading | None = None
        self.graphs: int | None = None
        self.modules = dict(self.model.named_modules())
        self.caches: list[KeptTable] = []
        self.outputs: tuple[int, ...] = ()
        """Values that take the output's place: the embeddings of links' ends."""

    # Running -----------------------------------------------------------------------------------

    def run(self, recorder: Recorder | None = None) -> Tensor:
        """The logits [n, C]; the first time, what of the output they are is found out."""
        with emptied(self.caches):
            output = self.subject.call()
        if self.read is None:
            with _disable_current_modes():
                self.read = self._reading(output)
        return self.read(output)

    def _reading(self, output: Any) -> Reading:
        subject = self.subject
        rows, classes = subject.nodes, subject.classes
        if subject.graph is None:
            self.graphs = graphs_told(subject.data, output, subject.nodes)
            if self.graphs is not None:
                rows = self.graphs
                classes = count_classes(field(subject.data, "y"), rows) or subject.classes

        about = subject.labelled if self.graphs is None else subject.data
        return read_output(output, rows, classes, self.wanted.outputs, about)

    def _leaves(self) -> dict[int, KnownTensor]:
        found: dict[int, KnownTensor] = {}
        for name, value in self.model.named_buffers():
            found[id(value)] = self._leaf(name, value)
        for name, parameter in self.model.named_parameters():
            found[id(parameter)] = KnownTensor(name, True)
        relations = {} if self.subject.graph is None else self.subject.graph.edges
        for name, value, space, ends in self._fields():
            if isinstance(value, Tensor):
                same = [n for n, edges in enumerate(relations.values()) if edges is value]
                leaf = self._leaf(name, value, space, ends)
                found[id(value)] = replace(leaf, field=True, relation=same[-1] if same else None)
        return found

    def _leaf(
        self, name: str, value: Tensor, space: int | None = None,
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
        graph, order = subject.graph, subject.graph.order
        for relation, index in graph.edges.items():
            ends = order.index(relation[0]), order.index(relation[2])
            yield " ".join(relation), index, None, ends
        for name, value in subject.fields.items():
            kind = name.rpartition(".")[0]
            if not any(value is edges for edges in graph.edges.values()):
                yield name, value, order.index(kind) if kind in order else None, None

    @cached_property
    def spaces(self) -> Spaces:
        """The node types, the classified one first."""
        graph = self.subject.graph
        if graph is not None:
            return Spaces(tuple(graph.counts[kind] for kind in graph.order))
        nodes = self.subject.nodes
        return Spaces((nodes,) if nodes is not None else ())

    # Stages ------------------------------------------------------------------------------------

    def exposed(self) -> Exposure:
        """The exposure; what the first run has filled is seen by the second."""
        cached = holds_propagations(self.model)
        before = self.run() if cached else None
        forget_propagations(self.model)
        if before is not None and not _gap(self.run(), before) <= 10 * EXACT[before.dtype]:
            raise ExposureRefused(
                "a convolution's cached propagation gives other logits than this graph does; "
                "pass the data it was cached on, or clear the cache"
            )
        if self.subject.nodes is None:  # data does not say: as many as the output has rows
            self.subject = replace(self.subject, nodes=len(self.run()))
        first: Tensor | None = None
        for last in (False, False, True):
            recorder = Recorder(self.spaces, self._leaves(), self.device)
            record, logits, head = record_run(self.model, self.run, recorder)
            assert self.read is not None
            check_numbers(logits, self.model, self.subject.fields)
            residual_limit(self.wanted.tolerance, logits.dtype)
            self._check_expected(logits)
            first = logits if first is None else first
            gap = _gap(logits, first)
            if not gap <= 10 * EXACT[logits.dtype]:
                raise ExposureRefused(changing(self.model, self.run, first, gap))
            try:
                embedding = head.embedding(logits, self.kind)
                return self._from_record(record, logits, embedding, recorder.store.values)
            except DivergedError as diverged:
                if last:  # caches were filled by the first run
                    told = changing(self.model, self.run, logits, diverged.gap)
                    raise ExposureRefused(told) from None
        raise AssertionError

    def _check_expected(self, logits: Tensor) -> None:
        assert self.read is not None
        if self.wanted.expected is not None:
            shown = pad(logits, (1, 0)) if self.read.binary else logits
            noun = "node" if self.graphs is None else "graph"
            check_expected(self.wanted.expected, shown, self.read.binary, self.called, noun)

    @property
    def called(self) -> str:
        assert self.read is not None
        text = self.read.text
        return self.subject.call.text + (
            text if self.graphs is None else text.replace("z a node", "z a graph")
        )

    def _from_record(
        self, record: Record, logits: Tensor, embedding: Tensor | None, stored: dict[int, Tensor]
    ) -> Exposure:
        """The exposure that a record shows; ``stored``: what its run has kept."""
        analysis = self.analysis_of(record)
        with made_on(self.device):
            sites = self._final_sites(analysis, self._sites(analysis, len(logits)), len(logits))
            analysis.refuse_branches(sites, self.where)
        try:
            plan = CapturePlan.of(analysis, sites, len(logits), analysis.mixing_after(sites))
            found = self._captured(analysis, sites, plan, logits, stored)
        except ExposureRefused:
            for told in no_sums(analysis, self.modules):
                raise ExposureRefused(told) from None
            raise
        stored.clear()
        if not self.wanted.gradients:
            return self._built(found, logits, embedding)
        filtered = any(site.powers is not None for site in sites)
        if filtered or not is_affine(found.extracted.head) or analysis.is_gated(sites):
            raise InputError(
                f"no gradient can be followed through {type(self.model).__name__}: it ends in "
                "something nonlinear, or in several hops whose weights are multiplied out; call "
                "it under torch.no_grad()"
            )
        with torch.enable_grad():
            found = replace(found, kept=redone(record))
            if embedding is not None and record.embedding is not None:
                embedding = found.kept[record.embedding]
            return self._built(found, found.kept[record.output], embedding)

    def analysis_of(self, record: Record) -> Analysis:
        """A record with what depends on what."""
        kinds = tuple(WHOLE_MESSAGES)
        whole = {name for name, module in self.modules.items() if isinstance(module, kinds)}
        return Analysis(record, self.graphs is not None, whole)

    @cached_property
    def device(self) -> torch.device:
        """Where the model computes."""
        fields = (value for _, value, _, _ in self._fields() if isinstance(value, Tensor))
        tensors = (*self.model.parameters(), *self.model.buffers(), *fields)
        return next((t.device for t in tensors), torch.device("cpu"))

    def _sites(self, analysis: Analysis, size: int) -> list[FinalSite]:
        final, reached = analysis.final(size, self.outputs)
        if not final:
            self._look_behind_caches(analysis)
            raise ExposureRefused(why_nothing(analysis, self.modules, self.subject, size))
        if self.wanted.hops == "paths" and self.graphs is None:
            steps = analysis.record.steps

            def holder(place: int) -> str:
                name, module = holder_of(self.modules, steps[place].module)
                return name or "forward" if isinstance(module, MessagePassing) else ""

            return Filters(analysis, size, holder).sites(final, reached)
        sites = [site_of(analysis, place, size) for place in final]
        if self.graphs is not None:
            return sites
        found = Filters(analysis, size, lambda _: "")
        return [replace(site, shortened=found.is_filter(site)) for site in sites]

    def _final_sites(
        self, analysis: Analysis, sites: list[FinalSite], size: int
    ) -> list[FinalSite]:
        """The sites behind which no operation mixes nodes and gives each a number of its own."""
        for place in analysis.mixing_after(sites, self.outputs):
            step = analysis.record.steps[place]
            shape = analysis.value(step.result).shape
            if len(shape) < 2 or shape[0] < size:
                continue  # a statistic that all share: it is held
            behind = analysis.above(step.reads)
            sites = [s for s in sites if analysis.value(s.value).step not in behind]
            if not sites:
                raise ExposureRefused(
                    f"{self.where(step.module)} mixes nodes by {operation_of(step)} after the last "
                    f"sum over messages, no weighted sum; {SUMS}"
                )
        return sites

    def _captured(
        self, analysis: Analysis, sites: Sequence[FinalSite], plan: CapturePlan, logits: Tensor,
        stored: Mapping[int, Tensor],
    ) -> Captured:  # fmt: skip
        record, device = analysis.record, logits.device
        capture, output = captured(self.run, record, plan, device, self.where, stored)
        self.check_same(output, logits)
        builder = capture.tracer.builder
        value, _ = builder.flat(capture.tracer.output(output))
        operations = simplified(builder.operations, builder.widths, value)
        shifted = False
        if self.kind == "classes":
            operations, shifted = _without_shift(operations, plan.width, logits.shape[1])
        extracted = affine_start(operations, plan.width, device)
        return Captured(
            analysis, sites, capture.kept, plan.offsets, extracted, shifted, capture.beside
        )

    @staticmethod
    def check_same(output: Tensor, logits: Tensor) -> None:
        """Raise ``DivergedError`` where another run gives other logits."""
        gap = _gap(output, logits)
        if not gap <= 10 * EXACT[logits.dtype]:
            raise DivergedError(gap)

    def _built(self, found: Captured, logits: Tensor, embedding: Tensor | None) -> Exposure:
        with made_on(self.device):
            exposure, replay = self._assembled(found, logits, embedding)
        if self.wanted.certified:
            with torch.no_grad():
                residual = self._certified(exposure, replay, logits, found.shifted)
            object.__setattr__(exposure, "residual", residual)  # validated a moment ago
        if self.wanted.gradients:
            exposure.__dict__.pop("mass", None)  # worked out by the certificate, without gradients
        exposure = in_logits(exposure) if self.kind == "labels" else exposure
        return as_two_classes(exposure) if self.binary else exposure

    def _assembled(
        self, found: Captured, logits: Tensor, embedding: Tensor | None
    ) -> tuple[Exposure, Replay]:
        head, still = found.extracted.head, found.analysis.mixing_after(found.sites)
        channels = found.channels if head.operations else logits
        mixture, replay = self._mixture(found, (channels, logits), embedding, still)
        if not head.operations:
            return mixture, replay
        frozen = logits.double().unsqueeze(0)
        if is_affine(head):
            exposure = folded(mixture, head, None)
            # The model's own logits: apart by rounding, or by a shift common to a node's classes.
            fixed = exposure.fixed_logits + (frozen - exposure.frozen_logits)
            return replace(exposure, frozen_logits=frozen, fixed_logits=fixed), replay
        try:
            return mixture.with_head(head, frozen, replay=replay), replay
        except InputError as error:
            raise ExposureRefused(
                f"{error}: the same sums in another order change them, for {logits.dtype} is "
                "too coarse for what the model computes; pass model.double() and double data"
            ) from error

    def _mixture(
        self, found: Captured, values: tuple[Tensor, Tensor], embedding: Tensor | None,
        still: Sequence[int],
    ) -> tuple[Exposure, Replay]:  # fmt: skip
        """The mixture in the channels that what follows reads, and the model run with it.

        Args:
            found: what the second run showed.
            values: the channels [n, D] as they are, and the model's output.
            embedding: what the last linear layer reads.
            still: operations after the sums whose results are held.
        """
        (channels, logits), analysis, subject = values, found.analysis, self.subject
        size, pooled = len(channels), self.graphs is not None
        sites = _read_by_head(found)
        blocks, names = self._blocks(sites, found), subject.names
        if pooled:
            assert subject.nodes is not None
            blocks, names = with_senders(blocks, subject.nodes)
        made: list[list[Mixture]] = []
        orders: dict[int, Tensor] = {}  # heads share their entries
        named = group_words(analysis, self.modules, blocks, subject.graph, pooled)
        for block, group in zip(blocks, named, strict=True):
            if id(block.recipients) not in orders:
                orders[id(block.recipients)] = torch.argsort(block.recipients, stable=True)
            columns = [found.offsets[p.site.value] + p.channels for p in block.pieces]
            weight = found.extracted.weight[:, torch.cat(columns)]
            given = analysis.record.steps[block.pieces[0].site.step].given
            context = context_of(block, size, values_of(given, found.kept), pooled, subject.graph)
            order = orders[id(block.recipients)]
            senders = names.count(self.spaces.total)
            made.append(mixtures_of(block, group, weight, context, senders, order))
        if subject.graph is not None:
            made = with_shared_contexts(made)
        own = set().union(*(site.sums for site in sites))
        behind = [analysis.sum_behind(a.value) for site in sites for a in site.after]
        own |= {place for place in behind if place is not None}  # denominators are in α
        starts = None
        if self.graphs is not None:
            assert subject.nodes is not None
            starts = graph_starts(blocks, subject.nodes, self.graphs, field(subject.data, "batch"))
        mixture, order_of_terms = assemble(
            [mixture for several in made for mixture in several],
            channels,
            origin=type(self.model).__name__,
            fixed=fixed_words(found.shifted),
            root=has_root(analysis, self.modules, sites),
            embedding=None if embedding is None else embedding.unsqueeze(0),
            called=self.called,
            fingerprint=fingerprint_of_model(
                self.model, self.wanted.hops, logits.shape[1] + self.binary
            ),
            outputs=self.kind,
            names=names,
            graph_starts=starts,
            held=self._held(analysis, own),
        )
        pairs = zip(blocks, made, strict=True)
        replay = Replay.of(self.model, self.run, found, pairs, order_of_terms, logits.dtype, still)
        return mixture, replay

    def _held(self, analysis: Analysis, own: set[int]) -> tuple[HeldPart, ...]:
        """What mixes nodes and is none of the final sums."""
        within = set(analysis.within(own))
        beside = {p for p in analysis.beside(own) if p not in within or self._is_pool(analysis, p)}
        beside |= set(analysis.moved_in(own, self.spaces.total))
        return held_parts(analysis, self.where, own, beside)

    def _is_pool(self, analysis: Analysis, place: int) -> bool:
        """Whether an operation is a pool: read out beside later ones, it counts by itself."""
        reduction = analysis.record.steps[place].reduction
        return reduction is not None and reduction.size == self.graphs

    def _blocks(self, sites: Sequence[FinalSite], found: Captured) -> list[Block]:
        """The blocks of all sites; sums of one convolution with the same coefficients are one."""
        blocks: list[Block] = []
        known: list[tuple[str, FinalSite, int]] = []
        for site in sites:
            several = blocks_of(found.analysis, site, found.kept)
            steps = found.analysis.record.steps
            holder, module = holder_of(self.modules, steps[site.step].module)
            alike = isinstance(module, MessagePassing | Aggregation)
            alike = alike and site.powers is None and len(several) == 1 and not site.members
            twins = [
                first for name, other, first in known
                if alike and name == holder and same_entries(found.analysis, other, site)
            ]  # fmt: skip
            if twins:
                blocks[twins[0]] = joined_blocks(blocks[twins[0]], several[0])
                continue
            if alike:
                known.append((holder, site, len(blocks)))
            blocks += several
        blocks = [block for block in blocks if len(block.recipients)] or blocks[:1]
        graph = self.subject.graph
        return blocks if graph is None else [of_sender_type(block, graph) for block in blocks]

    @property
    def binary(self) -> bool:
        """Whether one logit stands for two classes."""
        assert self.read is not None
        return self.read.binary

    @property
    def kind(self) -> str:
        """What outputs are while the model is exposed: of two classes the second is a label."""
        assert self.read is not None
        return "labels" if self.read.binary else self.read.outputs

    def where(self, module: str) -> str:
        """Such as ```conv1` (GCNConv)``."""
        return titled(self.modules, module)

    def _look_behind_caches(self, analysis: Analysis) -> None:
        """Have the model make anew what its modules keep between runs; ``DivergedError`` then."""
        if not self.caches:
            self.caches = kept_tables(self.model, analysis.leaves_above([analysis.record.output]))
            if self.caches:
                raise DivergedError(0.0)

    def _certified(
        self, exposure: Exposure, replay: Replay, logits: Tensor, shifted: bool
    ) -> float:
        names = ", ".join(f"`{group.name}`" for group in exposure.groups[:3])
        try:
            residual = certify(exposure, replay.run, logits, shifted)
        except InputError as error:
            broken = replay.first_broken(random_admissible(mixture_in(exposure), seed=0))
            told = "" if broken is None else f"; {broken_words(broken, self.where, logits.dtype)}"
            raise ExposureRefused(f"on reweighted messages in {names}, {error}{told}") from error
        if residual != residual:
            broken = replay.first_broken(random_admissible(mixture_in(exposure), seed=0))
            told = "" if broken is None else broken_words(broken, self.where, logits.dtype)
            raise ExposureRefused(
                f"on reweighted messages in {names} the model gives NaN or infinite logits: {told}"
            )
        limit = residual_limit(self.wanted.tolerance, logits.dtype)
        if not residual <= limit:
            self.check_same(self.run(), logits)
            raise ExposureRefused(
                f"run with reweighted messages in {names} the model differs from what was read off "
                f"it by {residual:.1e} of what they move, more than {limit:.0e}; "
                + excused(residual, logits.dtype)
            )
        return residual


def _gap(left: Tensor, right: Tensor) -> float:
    """How far two runs are apart, beside the largest logit."""
    if left.shape != right.shape:
        return float("inf")
    return float((left - right).abs().amax() / right.abs().amax().clamp(min=1e-30))


def _without_shift(
    operations: list[Operation], width: int, classes: int
) -> tuple[list[Operation], bool]:
    """The operations without a log_softmax over all classes at the end."""
    last = operations[-1] if operations else None
    whole = isinstance(last, Softmax) and last.log and last.size == classes
    if last is None or not whole or last.inputs[0] != len(operations) - 1:
        return operations, False
    rest = operations[:-1]
    return (rest, True) if is_affine(HeadGraph(width, tuple(rest))) else (operations, False)


def _read_by_head(found: Captured) -> list[FinalSite]:
    """The sites that what follows reads at all."""
    read = []
    for site in found.sites:
        first = found.offsets[site.value]
        frame = frame_of_site(found.analysis.value(site.value).shape, site, 0)
        if bool((found.extracted.weight[:, first : first + frame.width] != 0).any()):
            read.append(site)
    if not read:
        raise ExposureRefused("the logits do not depend on what the model's last sums give")
    return read
