"""The pipeline: record a run, analyse it, run again to capture, build the mixture, certify it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.arguments import Outputs
from gnn_repair.exposure.calling import ModelOnData, check_expected
from gnn_repair.exposure.checks import EXACT, excused, residual_limit
from gnn_repair.exposure.data import count_classes, field, field_names
from gnn_repair.exposure.heads.head import Extracted, affine_start, simplified
from gnn_repair.exposure.heads.logit_form import folded, is_affine
from gnn_repair.exposure.heads.operations import HeadGraph, Operation, Softmax
from gnn_repair.exposure.names import NodeNames
from gnn_repair.exposure.output import Reading, check_numbers, graphs_told, read_output
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, Parts, parts_of, site_of
from gnn_repair.exposure.record.build import (
    Block,
    Mixture,
    Words,
    assemble,
    blocks_of,
    context_of,
    frame_of_site,
    graph_starts,
    joined_blocks,
    mixtures_of,
    of_sender_type,
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
    CapturePlan,
    DivergedError,
    Replay,
    captured,
    certify,
    mixture_in,
    random_admissible,
    redone,
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


@dataclass(frozen=True, eq=False)
class Exposed:
    """The exposure, and the model itself run with reweighted messages."""

    exposure: Exposure
    replay: Replay


def expose_subject(subject: ModelOnData, wanted: Wanted) -> Exposed:
    """Expose a model on data."""
    return Exposing(subject, wanted).exposed()


def parts_of_sites(analysis: Analysis, sites: Sequence[FinalSite]) -> list[Parts | None]:
    products = [s.reduction.matrix is not None or s.members for s in sites]
    return [
        None if product else parts_of(analysis, s.reduction)
        for s, product in zip(sites, products, strict=True)
    ]


class Exposing:
    """One model on the way to its exposure."""

    def __init__(self, subject: ModelOnData, wanted: Wanted) -> None:
        self.subject, self.wanted, self.model = subject, wanted, subject.model
        self.read: Reading | None = None
        self.graphs: int | None = None
        self.modules = dict(self.model.named_modules())
        self.caches: list[KeptTable] = []
        self.stored: dict[int, Tensor] = {}
        """What the recorded run has kept."""
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
                classes = count_classes(subject.data, rows) or subject.classes

        about = subject.labelled if self.graphs is None else subject.data
        return read_output(output, rows, classes, self.wanted.outputs, about)

    def _leaves(self) -> dict[int, KnownTensor]:
        found: dict[int, KnownTensor] = {}
        for name, value in self.model.named_buffers():
            found[id(value)] = self._leaf(name, value, False)
        for name, parameter in self.model.named_parameters():
            found[id(parameter)] = KnownTensor(name, True)
        for name, value, space, ends in self._fields():
            if isinstance(value, Tensor):
                leaf = replace(self._leaf(name, value, True, space, ends), field=True)
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
            if not any(value is edges for edges in graph.edges.values()):
                yield name, value, order.index(kind) if kind in order else None, None

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
            self.stored = recorder.store.values
            assert self.read is not None
            check_numbers(logits, self.model, self.subject.fields)
            residual_limit(self.wanted.tolerance, logits.dtype)
            self._check_expected(logits)
            first = logits if first is None else first
            gap = _gap(logits, first)
            if not gap <= 10 * EXACT[logits.dtype]:
                raise ExposureRefused(changing(self.model, self.run, first, gap))
            try:
                embedding = head.embedding(logits, self.read.binary)
                return self._from_record(record, logits, embedding)
            except DivergedError as diverged:
                if last:  # caches were filled by the first run
                    told = changing(self.model, self.run, logits, diverged.gap)
                    raise ExposureRefused(told) from None
        raise AssertionError

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
        analysis = self.analysis_of(record)
        with made_on(self.device):
            sites, parts = self._analysed(analysis, len(logits))
        try:
            held = analysis.mixing_after(sites)
            plan = CapturePlan.of(analysis, sites, parts, len(logits), held)
            found = self._captured(analysis, plan, logits)
        except ExposureRefused:
            for told in no_sums(analysis, self.modules):
                raise ExposureRefused(told) from None
            raise
        self.stored.clear()
        if not self.wanted.gradients:
            return self._built(analysis, sites, parts, found, logits, embedding)
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
            return self._built(analysis, sites, parts, found, found.kept[record.output], embedding)

    def analysis_of(self, record: Record) -> Analysis:
        """A record with what depends on what."""
        kinds = tuple(WHOLE_MESSAGES)
        whole = {name for name, module in self.modules.items() if isinstance(module, kinds)}
        return Analysis(record, self.graphs is not None, whole)

    def _analysed(
        self, analysis: Analysis, size: int
    ) -> tuple[list[FinalSite], list[Parts | None]]:
        """The final sums, and what their messages are made of."""
        sites = self._final_sites(analysis, self._sites(analysis, size), size)
        analysis.refuse_branches(sites, self.where)
        return sites, parts_of_sites(analysis, sites)

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

    def _captured(self, analysis: Analysis, plan: CapturePlan, logits: Tensor) -> Captured:
        record, device = analysis.record, logits.device
        capture, output = captured(self.run, record, plan, device, self.where, self.stored)
        self.check_same(output, logits)
        builder = capture.tracer.builder
        value, _ = builder.flat(capture.tracer.output(output))
        operations = simplified(builder.operations, builder.widths, value)
        operations, shifted = _without_shift(operations, plan.width, logits.shape[1])
        extracted = affine_start(operations, plan.width, device)
        return Captured(capture.kept, plan.offsets, extracted, shifted, capture.beside)

    @staticmethod
    def check_same(output: Tensor, logits: Tensor) -> None:
        """Raise ``DivergedError`` where another run gives other logits."""
        gap = _gap(output, logits)
        if not gap <= 10 * EXACT[logits.dtype]:
            raise DivergedError(gap)

    def _built(
        self, analysis: Analysis, sites: Sequence[FinalSite], parts: Sequence[Parts | None],
        found: Captured, logits: Tensor, embedding: Tensor | None,
    ) -> Exposed:  # fmt: skip
        with made_on(self.device):
            exposure, replay = self._assembled(analysis, sites, parts, found, logits, embedding)
        if self.wanted.certified:
            with torch.no_grad():
                residual = self._certified(exposure, replay, logits, found.shifted)
            object.__setattr__(exposure, "residual", residual)  # validated a moment ago
        if self.wanted.gradients:
            exposure.__dict__.pop("mass", None)  # worked out by the certificate, without gradients
        assert self.read is not None
        return Exposed(self.read.finished(exposure), replay)

    def _assembled(
        self, analysis: Analysis, sites: Sequence[FinalSite], parts: Sequence[Parts | None],
        found: Captured, logits: Tensor, embedding: Tensor | None,
    ) -> tuple[Exposure, Replay]:  # fmt: skip
        extracted, head = found.extracted, found.extracted.head
        channels = extracted.aggregate(values_of_sites(found, sites)) if head.operations else logits
        mixture, replay = self._mixture(
            analysis,
            sites,
            parts,
            found,
            (channels, logits),
            embedding,
            analysis.mixing_after(sites),
        )
        exposure: Exposure
        if head.operations and not is_affine(head):
            try:
                frozen = logits.double().unsqueeze(0)
                exposure = mixture.with_head(head, frozen, replay=replay)
            except InputError as error:
                raise ExposureRefused(
                    f"{error}: the same sums in another order change them, for {logits.dtype} is "
                    "too coarse for what the model computes; pass model.double() and double data"
                ) from error
        elif head.operations:
            exposure = folded(mixture, head, None)
            # The model's own logits: apart by rounding, or by a shift common to a node's classes.
            frozen = logits.double().unsqueeze(0)
            fixed = exposure.fixed_logits + (frozen - exposure.frozen_logits)
            exposure = replace(exposure, frozen_logits=frozen, fixed_logits=fixed)
        else:
            exposure = mixture
        return exposure, replay

    def _mixture(
        self, analysis: Analysis, sites: Sequence[FinalSite], parts: Sequence[Parts | None],
        found: Captured, values: tuple[Tensor, Tensor], embedding: Tensor | None,
        still: Sequence[int],
    ) -> tuple[Exposure, Replay]:  # fmt: skip
        """The mixture in the channels that what follows reads, and the model run with it.

        Args:
            analysis: the record.
            sites: the final sums.
            parts: what their messages are made of.
            found: what the second run showed.
            values: the channels [n, D] as they are, and the model's output.
            embedding: what the last linear layer reads.
            still: operations after the sums whose results are held.
        """
        channels, logits = values
        recipients, modules = len(channels), self.modules
        read = _read_by_head(found, analysis, sites)
        pairs = [(s, p) for s, p in zip(sites, parts, strict=True) if s.value in read]
        blocks = self._blocks(analysis, modules, pairs, found)
        mixtures, counts = list[Mixture](), list[int]()
        named = group_words(analysis, modules, blocks, self.subject.graph, self.graphs is not None)
        for block, about in named:
            columns = [found.offsets[p.site.value] + p.channels for p in block.pieces]
            weight = found.extracted.weight[:, torch.cat(columns)]
            step = analysis.record.steps[block.pieces[0].site.step]
            given = values_of(step.given, found.kept)
            context = context_of(
                block, recipients, given, self.graphs is not None, self.subject.graph
            )
            made = mixtures_of(block, about.group, weight, recipients, context, self.spaces.total)
            counts.append(len(made))
            mixtures += made
        if self.subject.graph is not None:
            mixtures = with_shared_contexts(mixtures)
        own = {site.step for site, _ in pairs}.union(*(site.hops for site, _ in pairs))
        behind = [analysis.sum_behind(a.value) for site, _ in pairs for a in site.after]
        own |= {place for place in behind if place is not None}  # denominators are in α
        held = self._held(analysis, own)
        names, starts = self.subject.names, None
        if self.graphs is not None:
            assert self.subject.nodes is not None
            names = NodeNames("graph", (("node", self.subject.nodes),))
            starts = graph_starts(
                blocks, self.subject.nodes, self.graphs, field(self.subject.data, "batch")
            )
        words = Words(
            type(self.model).__name__, fixed_words(found.shifted),
            has_root(analysis, modules, [s for s, _ in pairs]), embedding, self.called,
            fingerprint_of_model(self.model, self.wanted.hops, logits.shape[1] - self.anchored),
            names, starts, held,
        )  # fmt: skip
        mixture, order = assemble(mixtures, channels, words)
        replay = Replay.of(
            self.model,
            self.run,
            analysis.record,
            zip(blocks, _split(mixtures, counts), strict=True),
            found.kept,
            order,
            logits,
            still,
            found.beside,
        )
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

    def _blocks(
        self, analysis: Analysis, modules: Mapping[str, nn.Module],
        pairs: Sequence[tuple[FinalSite, Parts | None]], found: Captured,
    ) -> list[Block]:  # fmt: skip
        """The blocks of all sites; sums of one convolution with the same coefficients are one."""
        blocks: list[Block] = []
        known: list[tuple[str, tuple[FinalSite, Parts | None], int]] = []
        for site, part in pairs:
            several = blocks_of(analysis, site, part, found.kept)
            holder = holder_of(modules, analysis.record.steps[site.step].module)[0]
            alike = isinstance(modules.get(holder), MessagePassing | Aggregation)
            alike = alike and site.powers is None and len(several) == 1 and not site.members
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
        blocks = [block for block in blocks if len(block.recipients)] or blocks[:1]
        graph = self.subject.graph
        return blocks if graph is None else [of_sender_type(block, graph) for block in blocks]

    @property
    def anchored(self) -> bool:
        assert self.read is not None
        return self.read.outputs != "classes"

    def where(self, module: str) -> str:
        """Such as ```conv1` (GCNConv)``."""
        return titled(self.modules, module).text

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


@dataclass(frozen=True, eq=False)
class Captured:
    """What the second run showed."""

    kept: dict[int, Tensor]
    offsets: dict[int, int]
    extracted: Extracted
    shifted: bool
    """Whether a log_softmax at the end was left out: a shift common to a node's classes."""
    beside: Mapping[int, Tensor]
    """What enters behind the sums and does not depend on them, by value."""


def _split(mixtures: Sequence[Mixture], counts: Sequence[int]) -> Iterator[Sequence[Mixture]]:
    """So many groups of the first block, so many of the second, …."""
    for count in counts:
        yield mixtures[:count]
        mixtures = mixtures[count:]


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


def values_of_sites(found: Captured, sites: Sequence[FinalSite]) -> Tensor:
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


def _read_by_head(found: Captured, analysis: Analysis, sites: Sequence[FinalSite]) -> set[int]:
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
