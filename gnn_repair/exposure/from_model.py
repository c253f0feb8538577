"""``expose``: a trained model as a nonnegative mixture of its final messages.

Record a run, analyse it, run again to capture, build the mixture, certify it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.nn import DirGNNConv, MessagePassing, aggr
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.backbones import Frozen, Operator
from gnn_repair.errors import ExposureRefused, GnnRepairError, InputError, kind_of
from gnn_repair.exposure.calling import (
    Forward,
    ModelOnData,
    Reading,
    TypedGraph,
    batch_if_required,
    batch_of_one,
    batches_of,
    check_expected,
    check_numbers,
    count_classes,
    count_nodes,
    count_output_graphs,
    explaining_misfits,
    field,
    field_names,
    listed_graphs,
    model_on_data,
    name_sampled_nodes,
    one_graph,
    read_output,
)
from gnn_repair.exposure.heads.building import AS_REAL
from gnn_repair.exposure.heads.head import affine_start, simplify
from gnn_repair.exposure.heads.logit_form import (
    as_model_gives,
    fold_affine,
    is_affine,
    logit_as_two_classes,
    probabilities_as_logits,
)
from gnn_repair.exposure.heads.operations import HeadGraph, Operation, Softmax
from gnn_repair.exposure.pieces import EXACT, Outputs, check_outputs, mixture_of
from gnn_repair.exposure.record.analysis import Analysis, Filters, FinalSite, same_entries, site_of
from gnn_repair.exposure.record.build import (
    Block,
    Mixture,
    Naming,
    SortedEntries,
    assemble,
    blocks_of,
    context_of,
    frame_of_site,
    graph_starts,
    holder_of,
    join_blocks,
    keep_sender_type,
    mixtures_of,
    number_senders,
    places_of_group,
)
from gnn_repair.exposure.record.recorder import (
    KnownTensor,
    Record,
    RecordedStep,
    Recorder,
    Spaces,
    default_device,
    fill_values,
    record_run,
)
from gnn_repair.exposure.record.replay import (
    CapturedRun,
    CapturePlan,
    DivergedError,
    Replay,
    capture_run,
    certify,
    random_admissible,
    recompute_values,
    residual_advice,
    residual_limit,
)
from gnn_repair.exposure.state import (
    KeptTable,
    attributes,
    caches_emptied,
    describe_nondeterminism,
    digest_of_weights,
    fingerprint_of_model,
    forget_propagations,
    has_learned,
    holds_propagations,
    kept_tables,
    lazy_parameters,
    learned_by,
    refuse_compiled,
    refuse_untrained,
    resting,
)
from gnn_repair.exposure.value import Exposure, Group, HeldPart, derived_exposure, join_batches
from gnn_repair.kernels import Pattern

STRUCTURE = re.compile(r"edge|adj|batch|graph|type|index|idx|ptr|_id$|time|year")
"""Whole numbers of nodes that belong to the graph; others, as labels, are features."""
WHOLE_MESSAGES: set[type[nn.Module]] = set()
"""Convolutions whose messages are terms as they are, α = 1 per message, whatever multiplies them:
where the weights of a convolution of your own belong to what is sent, add its class."""


def expose(
    model: Frozen | nn.Module,
    data: Any = None,
    *,
    hops: Literal["paths", "last"] = "paths",
    forward: Forward | None = None,
    tolerance: float | None = None,
    expected: Any = None,
    node_type: str | None = None,
    outputs: Outputs | None = None,
) -> Exposure:
    """Write a trained model's logits as z⁰ = β + Σ_g A_g L_g, or as z⁰ = T(o + Σ_g A_g H_g).

    Args:
        model: a frozen backbone, or any trained PyG model that classifies nodes, or graphs.
        data: the PyG data the model runs on, or any object with such fields; for a model that
            classifies graphs a batch, a list, dataset or generator of graphs, or a loader that does
            not shuffle; not needed for a frozen backbone or a model whose forward takes nothing.
        hops: for convolutions that propagate several times (SGConv, TAGConv, APPNP, …):
            ``paths`` exposes all sources with their path sums (entries of Â^p), ``last`` only
            the last propagate.
        forward: how to call the model, ``forward(model, data) -> logits [N, C]``; by default the
            arguments are found in data by the names of the model's parameters.
        tolerance: the largest certified residual to accept; 1e-5 for float32 models and 1e-12
            for float64 unless given.
        expected: what you know the model to give, logits [N, C] or predicted classes [N]; where
            the model as it is called here differs from it, nothing is exposed.
        node_type: in a graph of several node types (HeteroData) the one that is classified; not
            needed where only one has labels, or only one has outputs.
        outputs: what the model gives: rival ``classes``, ``labels`` (each there where its own
            logit is positive) or plain ``values``. Unless given, data.y decides: several zeros
            and ones per node are labels, other real numbers are values, anything else classes.

    Returns:
        The exposure, certified by running the model on randomly reweighted messages. A model that
        does more than affine maps to a node after its last aggregation gives a
        :class:`Exposure`.

    Raises:
        ExposureRefused: the model does not end in such a mixture; the message names what is in
            the way.
        InputError: the model cannot be called as it is meant to be; the message says what to pass.
    """
    if hops not in ("paths", "last"):
        raise InputError(f"hops is {hops!r}; choose 'paths' or 'last'")
    check_outputs(outputs)
    if isinstance(model, Frozen):
        if outputs not in (None, "classes"):
            raise InputError(f"a frozen backbone's outputs are classes, not {outputs}")
        exposure = expose_frozen(model)
        if expected is not None:
            _check_result(expected, exposure, "node", "a frozen backbone")
        return exposure
    if isinstance(model, type):
        raise InputError(f"model is the class {model.__name__}; pass a trained instance of it")
    if not isinstance(model, nn.Module):
        raise InputError(f"model is {kind_of(model)}; pass a torch module or a Frozen")
    model = unwrap(model)
    refuse_compiled(model)
    data = listed_graphs(data)
    batches = batches_of(data) or [data]
    options = ExposeOptions(hops, tolerance, expected if len(batches) == 1 else None, outputs)
    lazy = lazy_parameters(model)
    parts: list[Exposure] = []
    for batch in batches:
        part = _expose_batch(model, batch, forward, node_type, options, lazy)
        if part.graph_starts is None and len(batches) > 1:
            raise InputError(
                f"{type(model).__name__} classifies nodes, and data is {len(batches)} batches "
                "of graphs; pass one of them"
            )
        parts.append(part)
        same: Any = part.outputs
        options = replace(options, outputs=same)
    exposure = join_batches(parts)
    if expected is not None and len(batches) > 1:
        _check_result(expected, exposure, "graph", exposure.called)
    return exposure if forward is None else replace(exposure, forward=forward)


def _expose_batch(
    model: nn.Module,
    data: Any,
    forward: Forward | None,
    node_type: str | None,
    options: ExposeOptions,
    lazy: list[str],
) -> Exposure:
    """The exposure on one graph or batch; a graph alone is a batch of one where that is asked."""

    def exposed(data: Any) -> Exposure:
        with resting(model), torch.no_grad(), explaining_misfits(model, data):
            subject = model_on_data(model, data, forward, node_type)
            if lazy:
                subject.call()
                refuse_untrained(model, lazy)
            return Exposer(subject, options).exposed()

    data = one_graph(data, model, forward)
    try:
        exposure = exposed(data if forward is not None else batch_if_required(data, model))
    except InputError as error:
        raised = error.__cause__ is not None and forward is None
        alone = batch_of_one(data) if raised and field(data, "batch_size") is None else None
        if alone is None:
            raise
        try:  # a graph alone, and the model reads its batch vector
            exposure = exposed(alone)
        except GnnRepairError:
            raise error from error.__cause__
    except ExposureRefused as refusal:
        refuse_dense_batch(data, refusal)
        raise
    return name_sampled_nodes(exposure, data)


def refuse_dense_batch(data: Any, refusal: ExposureRefused) -> None:
    """Say so where a model is unsupported because the rows of data are whole graphs."""
    fields = {name: field(data, name) for name in field_names(data)}
    cubes = {name: v for name, v in fields.items() if isinstance(v, Tensor) and v.dim() == 3}
    for (name, x), (other, adj) in permutations(cubes.items(), 2):
        if x.shape[:2] == adj.shape[:2] and adj.shape[1] == adj.shape[2]:
            raise ExposureRefused(
                f"data is a dense batch of graphs, {name} {list(x.shape)} and {other} "
                f"{list(adj.shape)}, and rows must be nodes; pass the graphs as a "
                "torch_geometric Batch and a forward= that makes it dense, with "
                "to_dense_batch and to_dense_adj"
            ) from refusal


def _check_result(expected: Any, exposure: Exposure, noun: str, called: str) -> None:
    """Compare what was exposed with what the user says that the model gives."""
    if exposure.num_members > 1:
        raise InputError(
            f"expected is for one model and the backbone has {exposure.num_members} members; "
            "train one split or leave it out"
        )
    logits = exposure.frozen_logits[0].float()
    binary = logits.shape[1] == 2 and not bool(logits[:, 0].any())  # (0, z) of one logit z
    logits = as_model_gives(logits, exposure.called)
    logits = logits * logits.new_tensor([0.0, 1.0]) if binary else logits
    check_expected(expected, logits, binary, called, noun)


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself where it stands in a wrapper that only spreads batches over devices."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


# Stages -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExposeOptions:
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
class FrozenRun:
    """What the recorded run of the model gave."""

    logits: Tensor
    """[n, C]."""
    embedding: Tensor | None
    """What the linear layer at the model's end read, if there is one."""
    stored: dict[int, Tensor]
    """What the run has kept, by value; emptied once it has been read."""


class Exposer:
    """One model on the way to its exposure."""

    def __init__(self, subject: ModelOnData, options: ExposeOptions) -> None:
        self.subject, self.options, self.model = subject, options, subject.model
        self.read: Reading | None = None
        self.graphs: int | None = None
        self.modules = dict(self.model.named_modules(remove_duplicate=False))
        self.caches: list[KeptTable] = []
        self.outputs: tuple[int, ...] = ()
        """Values that take the output's place: the embeddings of links' ends."""

    # Running -----------------------------------------------------------------------------------

    def run(self, recorder: Recorder | None = None) -> Tensor:
        """The logits [n, C]; the first time, what of the output they are is found out."""
        with caches_emptied(self.caches):
            output = self.subject.call()
        if self.read is None:
            with _disable_current_modes():
                self.read = self._reading(output)
        return self.read(output)

    def _reading(self, output: Any) -> Reading:
        subject = self.subject
        rows, classes = subject.nodes, subject.classes
        if subject.graph is None:
            self.graphs = count_output_graphs(subject.data, output, subject.nodes)
            if self.graphs is not None:
                rows = self.graphs
                classes = count_classes(field(subject.data, "y"), rows) or subject.classes

        about = subject.labelled if self.graphs is None else subject.data
        return read_output(output, rows, classes, self.options.outputs, about, self.noun)

    @property
    def noun(self) -> str:
        """What a row of the logits stands for."""
        return "node" if self.graphs is None else "graph"

    def _leaves(self) -> dict[int, KnownTensor]:
        """By identity: what the model holds and what data holds, and what is known of each."""
        tables = [(table.name, v) for table in attributes(self.model) for v in table.tensors]
        tables += self.model.named_buffers()
        leaves = {id(value): self._leaf(name, value) for name, value in tables}
        leaves |= {id(p): KnownTensor(name, True) for name, p in self.model.named_parameters()}
        for name, value, space, ends in self._fields():
            if isinstance(value, Tensor):
                leaves[id(value)] = replace(self._leaf(name, value, space, ends), is_field=True)
        if self.subject.graph is not None:
            for number, edges in enumerate(self.subject.graph.edges.values()):
                if isinstance(edges, Tensor):
                    leaves[id(edges)] = replace(leaves[id(edges)], relation=number)
        return leaves

    def _leaf(
        self, name: str, value: Tensor, space: int | None = None,
        ends: tuple[int, int] | None = None,
    ) -> KnownTensor:  # fmt: skip
        counts = self.spaces.counts
        shape = tuple(value.shape)
        square = self.spaces.is_square(value)
        named = name == "x" or name.endswith(".x")
        matrix = not named and (square or value.layout != torch.strided)
        plain = name.rpartition(".")[2]
        if value.layout == torch.strided and not value.is_floating_point():
            whole = value.dtype not in (torch.bool, torch.complex64, torch.complex128)
            numbers = whole and bool(shape) and shape[0] in counts and not STRUCTURE.search(plain)
            space = self.spaces.only(shape[0]) if numbers and space is None else space
            return KnownTensor(name, numbers and ends is None, space, ends)
        edges = plain.startswith("edge") or plain in ("adj", "adj_t")
        rows = bool(shape) and shape[0] in counts and not matrix and not edges
        space = space if space is not None else self.spaces.only(shape[0]) if rows else None
        return KnownTensor(name, rows, space if rows else None, is_square=square and matrix)

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
            pooled = field(self.subject.data, "batch") is not None
            recorder = Recorder(self.spaces, self._leaves(), self.device, pooled)
            record, logits, head = record_run(self.model, self.run, recorder)
            assert self.read is not None
            check_numbers(logits, self.model, self.subject.fields)
            residual_limit(self.options.tolerance, logits.dtype)
            self._check_expected(logits)
            first = logits if first is None else first
            gap = _gap(logits, first)
            if not gap <= 10 * EXACT[logits.dtype]:
                raise ExposureRefused(describe_nondeterminism(self.model, self.run, first, gap))
            try:
                embedding = head.embedding(logits, self.kind)
                frozen = FrozenRun(logits, embedding, recorder.store.values)
                return self._from_record(record, frozen)
            except DivergedError as diverged:
                if last:  # caches were filled by the first run
                    reason = describe_nondeterminism(self.model, self.run, logits, diverged.gap)
                    raise ExposureRefused(reason) from None
        raise AssertionError

    def _check_expected(self, logits: Tensor) -> None:
        if self.options.expected is not None:
            shown = pad(logits, (1, 0)) if self.binary else logits
            check_expected(self.options.expected, shown, self.binary, self.called, self.noun)

    @property
    def called(self) -> str:
        """How the model was run and what of its output was read, in words."""
        assert self.read is not None
        return self.subject.call.text + self.read.text

    def _from_record(self, record: Record, frozen: FrozenRun) -> Exposure:
        """The exposure that a record shows."""
        analysis = self.analysis_of(record)
        try:
            return self._from_analysis(analysis, frozen)
        except ExposureRefused:
            if not analysis.forget_attention():
                raise
        # What follows linear attention cannot be followed: it is held, as attention kernels are.
        return self._from_analysis(analysis, frozen)

    def _from_analysis(self, analysis: Analysis, frozen: FrozenRun) -> Exposure:
        sites = self._sites(analysis, len(frozen.logits))
        try:
            run = self._captured(analysis, sites, frozen)
        except ExposureRefused:
            for reason in non_sum_reasons(analysis, self.modules):
                raise ExposureRefused(reason) from None
            raise
        frozen.stored.clear()
        if not self.options.gradients:
            return self._built(run, frozen)
        filtered = any(site.powers is not None for site in sites)
        if filtered or not is_affine(run.extracted.head) or analysis.is_gated(sites):
            raise InputError(
                f"no gradient can be followed through {type(self.model).__name__}: it ends in "
                "something nonlinear, or in several hops whose weights are multiplied out; call "
                "it under torch.no_grad()"
            )
        record, embedding = analysis.record, frozen.embedding
        with torch.enable_grad():
            run = replace(run, tensors=recompute_values(record))
            if embedding is not None and record.embedding is not None:
                embedding = run.tensors[record.embedding]
            logits = run.tensors[record.output]
            return self._built(run, replace(frozen, logits=logits, embedding=embedding))

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
        """The final sums that are reweighted, of so many recipients."""
        with default_device(self.device):
            sites = self._unmixed(analysis, self._sums(analysis, size), size)
            analysis.refuse_branches(sites, self.where)
        return sites

    def _sums(self, analysis: Analysis, size: int) -> list[FinalSite]:
        final, reached = analysis.find_final_sums(size, self.outputs)
        if not final:
            self._look_behind_caches(analysis)
            raise ExposureRefused(no_mixture_reason(analysis, self.modules, self.subject, size))
        if self.options.hops == "paths" and self.graphs is None:
            steps = analysis.record.steps

            def holder(place: int) -> str:
                name, module = holder_of(self.modules, steps[place].module)
                return name or "forward" if isinstance(module, MessagePassing) else ""

            return Filters(analysis, size, holder).sites(final, reached)
        sites = [site_of(analysis, place, size) for place in final]
        if self.graphs is not None:
            return sites
        filters = Filters(analysis, size, lambda _: "")
        return [replace(site, is_last_hop=filters.is_filter(site)) for site in sites]

    def _unmixed(self, analysis: Analysis, sites: list[FinalSite], size: int) -> list[FinalSite]:
        """The sites behind which no operation mixes nodes and gives each a number of its own."""
        for site in sites:
            if analysis.value(site.value).dtype.is_complex:
                where = self.where(analysis.record.steps[site.step].module)
                raise ExposureRefused(f"{where} sums up complex numbers; {AS_REAL}")
        for place in analysis.later_mixers(sites, self.outputs):
            step = analysis.record.steps[place]
            shape = analysis.value(step.result).shape
            if len(shape) < 2 or shape[0] < size:
                continue  # a statistic that all share: it is held
            behind = analysis.ancestors(step.inputs)
            sites = [s for s in sites if analysis.value(s.value).step not in behind]
            if not sites:
                raise ExposureRefused(
                    f"{self.where(step.module)} mixes nodes by {operation_of(step)} after the last "
                    f"sum over messages, no weighted sum; {SUMS}"
                )
        return sites

    def _captured(
        self, analysis: Analysis, sites: Sequence[FinalSite], frozen: FrozenRun
    ) -> CapturedRun:
        """What a second run shows of the sums, and of what follows them."""
        record, logits = analysis.record, frozen.logits
        plan = CapturePlan.of(analysis, sites, len(logits), analysis.later_mixers(sites))
        device = logits.device
        capture, output = capture_run(self.run, record, plan, device, self.where, frozen.stored)
        self.check_same(output, logits)
        builder = capture.tracer.builder
        value, _ = builder.flat(capture.tracer.output(output))
        operations = simplify(builder.operations, builder.widths, value)
        shifted = False
        if self.kind == "classes":
            operations, shifted = _without_shift(operations, plan.width, logits.shape[1])
        extracted = affine_start(operations, plan.width, device)
        return CapturedRun(
            analysis, sites, capture.tensors, plan.offsets, extracted, shifted, capture.beside,
            capture.added,
        )  # fmt: skip

    @staticmethod
    def check_same(output: Tensor, logits: Tensor) -> None:
        """Raise ``DivergedError`` where another run gives other logits."""
        gap = _gap(output, logits)
        if not gap <= 10 * EXACT[logits.dtype]:
            raise DivergedError(gap)

    def _built(self, run: CapturedRun, frozen: FrozenRun) -> Exposure:
        with default_device(self.device):
            exposure, replay = self._assembled(run, frozen)
        if self.options.certified:
            with torch.no_grad():
                residual = self._certified(exposure, replay, frozen.logits, run.shifted)
            object.__setattr__(exposure, "residual", residual)  # validated a moment ago
        if self.options.gradients:
            exposure.__dict__.pop("mass", None)  # worked out by the certificate, without gradients
        exposure = exposure if exposure.head is None else probabilities_as_logits(exposure)
        return logit_as_two_classes(exposure) if self.binary else exposure

    def _assembled(self, run: CapturedRun, frozen: FrozenRun) -> tuple[Exposure, Replay]:
        head = run.extracted.head
        channels = run.channels if head.operations else frozen.logits
        mixture, replay = self._mixture(run, channels, frozen)
        if not head.operations:
            return mixture, replay
        logits = frozen.logits.double().unsqueeze(0)
        if is_affine(head):
            exposure = fold_affine(mixture, head, None)
            # The model's own logits: apart by rounding, or by a shift common to a node's classes.
            fixed = exposure.fixed_logits + (logits - exposure.frozen_logits)
            return replace(exposure, frozen_logits=logits, fixed_logits=fixed), replay
        try:
            return mixture.with_head(head, logits, replay=replay), replay
        except InputError as error:
            divided = "of the head holds NaN" in str(error) and INFINITE
            coarse = coarse_words(run.analysis.record)
            reason = divided or coarse or DISAGREES.format(frozen.logits.dtype)
            raise ExposureRefused(f"{error}: {reason}") from error

    def _mixture(
        self, run: CapturedRun, channels: Tensor, frozen: FrozenRun
    ) -> tuple[Exposure, Replay]:
        """The mixture in the channels [n, D] that what follows reads, and the model run with it."""
        analysis, subject, embedding = run.analysis, self.subject, frozen.embedding
        still = analysis.later_mixers(run.sites, self.outputs)
        size, pooled = len(channels), self.graphs is not None
        sites = _read_by_head(run)
        blocks, names = self._blocks(sites, run), subject.names
        naming = Naming(
            analysis, self.modules, blocks, subject.graph, pooled and analysis.centres is None
        )
        titles = list(naming.groups())  # of sums without a message as well, which count relations
        heard = [n for n, block in enumerate(blocks) if len(block.recipients)] or [0]
        blocks, titles = [blocks[n] for n in heard], [titles[n] for n in heard]
        if not self.options.gradients and not analysis.attention:
            analysis.record.forget()  # otherwise it may be analysed again
        if pooled or (subject.graph is None and any(site.sender == "cluster" for site in sites)):
            assert subject.nodes is not None
            recipient = "graph" if pooled else "node"
            blocks, names = number_senders(blocks, subject.nodes, recipient)
        senders = names.count(self.spaces.total)
        mixtures: list[list[Mixture]] = []
        sorted_entries: dict[tuple[int, int], SortedEntries] = {}  # heads share theirs
        for block, group in zip(blocks, titles, strict=True):
            key = id(block.recipients), id(block.rows)
            if key not in sorted_entries:
                sorted_entries[key] = SortedEntries.of(block, size)
            columns = [run.offsets[p.site.value] + p.channels for p in block.pieces]
            weight = run.extracted.weight[:, torch.cat(columns)]
            layer_input = analysis.record.steps[block.site.step].layer_input
            inputs = fill_values(layer_input, run.tensors)
            context = context_of(block, size, inputs, pooled, subject.graph)
            entries = sorted_entries[key]
            mixtures.append(mixtures_of(block, group, weight, context, senders, entries))
        sums = set().union(*(site.sums | analysis.normalisers(site) for site in sites))
        starts = None
        if self.graphs is not None:
            assert subject.nodes is not None
            starts = graph_starts(blocks, subject.nodes, self.graphs, field(subject.data, "batch"))
        classes, dtype = frozen.logits.shape[1] + self.binary, frozen.logits.dtype
        exposure = assemble(
            [mixture for of_block in mixtures for mixture in of_block],
            channels,
            origin=type(self.model).__name__,
            fixed="biases, root and skip terms"
            + "; log_softmax head: up to a shift common to a node's classes" * run.shifted,
            root=has_root(analysis, self.modules, sites),
            embedding=None if embedding is None else embedding.unsqueeze(0),
            called=self.called,
            fingerprint=fingerprint_of_model(self.model, self.options.hops, classes),
            outputs=self.kind,
            names=names,
            graph_starts=starts,
            held=self._held(analysis, sums),
        )
        pairs = zip(blocks, mixtures, strict=True)
        replay = Replay.of(self.model, self.run, run, pairs, exposure.segments, dtype, still)
        return exposure, replay

    def _held(self, analysis: Analysis, sums: set[int]) -> tuple[HeldPart, ...]:
        """What mixes nodes and is none of the final sums."""
        within = set(analysis.inner_mixers(sums, self.spaces.total))
        beside = {
            p for p in analysis.side_mixers(sums) if p not in within or self._is_pool(analysis, p)
        }
        beside |= set(analysis.row_movers(sums, self.spaces.total))
        beside |= set(analysis.python_reads())
        return held_parts(analysis, self.where, within - sums, beside)

    def _is_pool(self, analysis: Analysis, place: int) -> bool:
        """Whether an operation is a pool: read out beside later ones, it counts by itself."""
        reduction = analysis.record.steps[place].reduction
        return reduction is not None and reduction.size == self.graphs

    def _blocks(self, sites: Sequence[FinalSite], run: CapturedRun) -> list[Block]:
        """The blocks of all sites; sums of one convolution with the same coefficients are one."""
        blocks: list[Block] = []
        joinable: list[tuple[str, FinalSite, int]] = []
        for site in sites:
            of_site = blocks_of(run.analysis, site, run.tensors)
            steps = run.analysis.record.steps
            holder, module = holder_of(self.modules, steps[site.step].module)
            alike = site.powers is None and len(of_site) == 1 and not site.members
            of_layer = isinstance(module, MessagePassing | Aggregation)
            twins = [
                first for name, other, first in joinable
                if alike and name == holder and same_entries(run.analysis, other, site)
                and (of_layer or run.analysis.are_divided(other, site))
            ]  # fmt: skip
            if twins:
                blocks[twins[0]] = join_blocks(blocks[twins[0]], of_site[0])
                continue
            if alike:
                joinable.append((holder, site, len(blocks)))
            blocks += of_site
        graph = self.subject.graph
        return blocks if graph is None else [keep_sender_type(block, graph) for block in blocks]

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
        return module_title(self.modules, module)

    def _look_behind_caches(self, analysis: Analysis) -> None:
        """Have the model make anew what its modules keep between runs; ``DivergedError`` then.

        What it does not make anew, as an adjacency that was given to it, is no cache.
        """
        if self.caches:
            return
        whole = self.run()
        for table in kept_tables(
            self.model, set(map(id, analysis.leaves([analysis.record.output])))
        ):
            self.caches.append(table)
            with suppress(Exception):  # whatever the model raises without it
                if _gap(self.run(), whole) <= 10 * EXACT[whole.dtype]:
                    continue
            self.caches.remove(table)
        if self.caches:
            raise DivergedError(0.0)

    def _certified(
        self, exposure: Exposure, replay: Replay, logits: Tensor, shifted: bool
    ) -> float:
        names = ", ".join(f"`{group.name}`" for group in exposure.groups[:3])

        def broken() -> str:
            step = replay.first_failure(random_admissible(exposure.aggregate, seed=0))
            return "" if step is None else broken_words(step, self.where, logits.dtype)

        try:
            residual = certify(exposure, replay.run, logits, shifted)
        except InputError as error:
            reason = "; ".join(filter(None, [str(error), broken()]))
            raise ExposureRefused(f"on reweighted messages in {names}, {reason}") from error
        if residual != residual:
            raise ExposureRefused(
                f"on reweighted messages in {names} the model gives NaN or infinite logits: "
                + broken()
            )
        # A model in float64 may compute in float32 inside.
        computed = {v.dtype for v in replay.record.values if v.live and v.step >= 0}
        coarsest = torch.float32 if torch.float32 in computed else logits.dtype
        limit = residual_limit(self.options.tolerance, coarsest)
        if not residual <= limit:
            self.check_same(self.run(), logits)
            raise ExposureRefused(
                f"run with reweighted messages in {names} the model differs from what was read off "
                f"it by {residual:.1e} of what they move, more than {limit:.0e}; "
                + (coarse_words(replay.record) or residual_advice(residual, coarsest))
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


def _read_by_head(run: CapturedRun) -> list[FinalSite]:
    """The sites that what follows reads at all."""
    read = []
    for site in run.sites:
        first = run.offsets[site.value]
        frame = frame_of_site(run.analysis.value(site.value).shape, site, 0)
        if bool((run.extracted.weight[:, first : first + frame.width] != 0).any()):
            read.append(site)
    if not read:
        raise ExposureRefused("the logits do not depend on what the model's last sums give")
    return read


# In words ---------------------------------------------------------------------------------------


ROOTS = ("root_weight", "lin_root", "root", "lin3", "res", "eps", "lins_r", "combine_root")
"""Attributes by which convolutions show that a node's own input enters beside the aggregate."""


def module_title(modules: Mapping[str, nn.Module], name: str) -> str:
    """Such as ```conv1` (GCNConv)``."""
    held, module = holder_of(modules, name)
    kind = type(module).__name__
    return f"`{held}` ({kind})" if held else f"the forward of {kind}"


def held_parts(
    analysis: Analysis, where: Callable[[str], str], within: set[int], beside: set[int]
) -> tuple[HeldPart, ...]:
    """The operations that let other nodes' numbers in, by module.

    ``within``: before the final sums' messages; ``beside``: on ways to the logits that pass none.
    """
    operations: dict[tuple[str, bool], list[str]] = {}
    for place in sorted(beside | within):
        step = analysis.record.steps[place]
        names = operations.setdefault((where(step.module), place in beside), [])
        how = " ".join(a for a in step.args if isinstance(a, str))  # such as amax
        name = "item" if step.looks else f"{step.name} {how}".rstrip()
        if name not in names:
            names.append(name)
    return tuple(HeldPart(title, tuple(names), near) for (title, near), names in operations.items())


def has_root(
    analysis: Analysis, modules: Mapping[str, nn.Module], sites: Sequence[FinalSite]
) -> bool:
    """Whether a node's own input enters beside the aggregate."""
    names = [holder_of(modules, analysis.record.steps[s.step].module)[0] for s in sites]
    holders = [modules[name] for name in names if isinstance(modules.get(name), MessagePassing)]
    parents = [modules.get(name.rpartition(".")[0]) for name in names]
    holders += [parent for parent in parents if isinstance(parent, DirGNNConv)]
    marks = [getattr(holder, attribute, None) for holder in holders for attribute in ROOTS]
    return any(isinstance(m, Tensor | nn.Module) or m is True or m in ("sum", "cat") for m in marks)


NO_SUMS = dict.fromkeys(
    (aggr.SortAggregation, aggr.LSTMAggregation, aggr.GRUAggregation, aggr.MLPAggregation),
    "reads the {} in order",
) | {
    aggr.LCMAggregation: "joins the {} two by two in a learned cell",
    aggr.QuantileAggregation: "takes quantiles of the {}",
}
"""PyG's aggregations that are no weighted sums, and what they do."""
ADDING = {"mm", "mv", "bmm", "addmm", "baddbmm", "sum", "mean", "scatter_add", "index_add"}
"""Operations that add up rows."""
SUMS = "only sums, means and attention can be reweighted"
AS_ONE_SUM = "write it as one sum over messages"
BY_ITSELF = "multiply that part by itself, as a product with an N × N matrix, and add the rest"


def no_mixture_reason(
    analysis: Analysis, modules: Mapping[str, nn.Module], subject: ModelOnData, size: int
) -> str:
    """What stands in the way of a mixture."""
    name = type(subject.model).__name__
    mixing = analysis.side_mixers([])
    noun = "node" if subject.graph is not None or size == subject.nodes else "graph"
    for reason in non_sum_reasons(analysis, modules):
        return reason
    read = analysis.value(analysis.record.output).rows
    if analysis.pooled and mixing and len(read) > 1:
        return (
            f"{name} reads rows of {len(read)} nodes per graph, each a sum of its own, and joins "
            "them; read one node's row, pool them by a sum or mean, or, where they are the ends of "
            "a link, use expose_links"
        )
    if mixing:
        several = [analysis.record.steps[place] for place in mixing]
        named = [step for step in several if not analysis.is_layer(step)]
        sums = [(step, step.reduction.size) for step in several if step.reduction is not None]
        every = size if subject.graph is None else sum(subject.graph.counts.values())
        stacks = [(step, rows // every) for step, rows in sums if rows > every and not rows % every]
        if stacks and not analysis.pooled:
            step, count = stacks[-1]
            return (
                f"{module_title(modules, step.module)} sums by {operation_of(step)} into {count} × "
                f"{every} rows, as for {count} relations one above the other; lay them out right "
                f"behind the sum with nodes on an axis of their own, as .view({count}, {every}, -1)"
            )
        last = (named or several)[-1]
        what = f"{module_title(modules, last.module)} mixes nodes by {operation_of(last)}"
        if any(analysis.value(number).dtype.is_complex for number in (*last.inputs, *last.outs)):
            return f"{what} of complex numbers; {AS_REAL}"
        if last.reduction is None and "batch_norm" in last.name:
            return f"{what}, whose statistics are those of all nodes; give it running statistics"
        if last.reduction is None and last.name in ("add", "sub", "mul"):
            return f"{what}, one row at a time; {AS_ONE_SUM}"
        if last.name in ADDING and not analysis.value(last.outs[0]).dtype.is_floating_point:
            return f"{what} of whole numbers, which have no shares; add up real ones, as .double()"
        if last.reduction is None and analysis.is_layer(last):
            return f"{what} of columns that stand for {noun}s, as an adjacency's do; {BY_ITSELF}"
        if last.reduction is None and last.name in ADDING:
            return f"{what} into rows that stand for no {noun} (clusters, attention heads); {SUMS}"
        if "linalg_solve" in last.name:
            return f"{what}; multiply by the inverse matrix, as torch.linalg.inv(a) @ h"
        if "avg_pool" in last.name:
            return f"{what}, a mean over windows; write a mean over all of them as x.mean(dim)"
        if last.reduction is None:
            return f"{what}, no weighted sum of messages; {SUMS}"
        layers = [step for step in several if analysis.is_layer(step)]
        if analysis.pooled and layers:
            return (
                f"{module_title(modules, layers[-1].module)} reads the rows of all nodes of a "
                "graph side by side (flattened), and multiplies each by a matrix of its own; "
                "multiply first and add up then, as torch.einsum('bnd,ndc->bnc', h, w).sum(1)"
            )
        if analysis.pooled and last.name == "bmm":
            return (
                f"{what} for every row of a graph; give the row that is read as the only query, as "
                "attention of x[:, :1] over all rows"
            )
        return (
            f"{what}, and the result has no row for every {noun}: it sums for one {noun} at a "
            f"time, or rows that are no nodes; {AS_ONE_SUM}"
        )
    graph = subject.graph
    if graph is not None:
        into = sorted(_types_reached(analysis, graph))
        where = f"; sums go to {', '.join(map(repr, into))}" if into else ""
        return f"{name} sends no messages to {graph.node_type!r} nodes{where}"
    if any(step.reduction is not None for step in analysis.record.steps):
        return (
            f"what {name} sums up leaves PyTorch on the way to the logits (numpy, Python numbers), "
            "or does not reach them, so it cannot be followed"
        )
    for place in analysis.row_movers([], size):
        step = analysis.record.steps[place]
        what = f"{module_title(modules, step.module)} puts rows of other {noun}s into a {noun}'s by"
        return f"{what} {operation_of(step)}; {AS_ONE_SUM}"
    reason = (
        f"no aggregation over {size} {noun}s happens in {name}'s forward: none of its PyTorch "
        f"operations lets one {noun}'s numbers into another's"
    )
    for field_name in field_names(subject.data):
        if _holds_graph(field(subject.data, field_name), subject.data, size):
            return (
                f"{reason}; the graph's adjacency matrix stands among the columns of "
                f"data.{field_name}, which it reads as features: {BY_ITSELF}"
            )
    counted = count_nodes(subject.data) is not None
    remedy = (
        "" if counted else f"set data.num_nodes where it has more nodes than these {size}, or, "
    )
    passed = "where features were propagated beforehand, pass a forward= that propagates"
    return f"{reason}; {remedy}{passed}"


def non_sum_reasons(analysis: Analysis, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """What to say of the aggregations that ran last, or as pools, and are no sums."""
    steps, pooled = analysis.record.steps, analysis.pooled
    last = 0 if pooled else max(analysis.side_mixers([]), default=0)
    ran = {steps[place].module for place in analysis.needed if place >= last}
    for name, module in modules.items():
        what = next((words for kind, words in NO_SUMS.items() if isinstance(module, kind)), "")
        inside = holder_of(modules, name)[0] != name  # of a convolution, so that it is no pool
        if any(f"{at}.".startswith(f"{name}.") for at in ran) and what and not (pooled and inside):
            what = what.format("nodes of a graph" if pooled else "messages of a node")
            yield f"{module_title(modules, name)} {what}, no weighted sum of them; {SUMS}"


def _types_reached(analysis: Analysis, graph: TypedGraph) -> set[str]:
    """The types of node that the model's sums go to."""
    rows = [
        rows for step in analysis.record.steps if step.reduction is not None
        for out in step.outs for rows in analysis.value(out).rows
    ]  # fmt: skip
    return {graph.kind_of(int(one.ids.min())) for one in rows if one.ids.numel()}


def operation_of(step: RecordedStep) -> str:
    """Such as ```scatter_reduce` (amax)``."""
    how = next((a for a in step.args if isinstance(a, str)), "")
    return f"`{step.name}`" + f" ({how})" * bool(how)


def broken_words(step: RecordedStep, where: Callable[[str], str], dtype: torch.dtype) -> str:
    """What to say of the first operation that gives NaN or infinite numbers."""
    return (
        f"{where(step.module)} leaves the numbers that `{step.name}` is made for, or overflows "
        f"{dtype}; clamp what it reads, or pass model.double() and double data"
    )


INFINITE = (
    "what follows the sums divides by zero at some nodes, as those without messages; clamp it"
)
DISAGREES = (
    "the same sums in another order change them, for {} is too coarse for what the model computes; "
    "pass model.double() and double data"
)


def coarse_words(record: Record) -> str:
    """What to say of a model that computes in half precision inside."""
    half = {v.dtype for v in record.values if v.live} & {torch.float16, torch.bfloat16}
    return "".join(
        f"it computes in {t} inside; have it compute in float32 or float64" for t in half
    )


def _holds_graph(value: object, data: object, rows: int) -> bool:
    """Whether the first or the last N columns of a wider table are the graph's adjacency."""
    edges = field(data, "edge_index")
    if not isinstance(value, Tensor) or not isinstance(edges, Tensor) or edges.dim() != 2:
        return False
    wide = value.layout == torch.strided and value.dim() == 2 and value.shape[1] > rows
    if not wide or value.shape[0] != rows or not edges.numel():
        return False
    graph = torch.zeros(rows, rows, dtype=torch.bool, device=value.device)
    graph[edges[0], edges[1]] = True
    parts = (value[:, :rows] != 0, value[:, -rows:] != 0)
    return any(bool((part == one).all()) for part in parts for one in (graph, graph.t()))


# Our own backbones, by algebra, for all members at once -------------------------------------------


@torch.no_grad()
def expose_frozen(frozen: Frozen) -> Exposure:
    """z⁰ = β + Σ_g A_g (h W_g), with A_g multiplied out to one coefficient per source."""
    backbone, readout = frozen.backbone, frozen.readout
    terms, coefficients = _interleaved([s.operator.expanded() for s in readout.streams])
    tables = readout.contributions(frozen.node_state)
    contributions = torch.cat([table.transpose(0, 1) for table in tables], dim=1).double()
    nodes = torch.arange(frozen.graph.num_nodes, device=frozen.device)
    state = frozen.state.contiguous()
    frozen_logits = frozen.logits.double()
    groups = tuple(
        Group(stream.name, f"{backbone.title}: {backbone.rule}", "the trained backbone")
        for stream in readout.streams
    )
    by_recipient = Pattern(terms.indptr[:: len(groups)], terms.indices, contributions.shape[1])
    return derived_exposure(
        groups=groups,
        recipients=nodes,
        segments=terms.indptr,
        rows=terms.indices,
        coefficients=coefficients,
        contributions=contributions,
        fixed_logits=frozen_logits - mixture_of(by_recipient, coefficients, contributions),
        frozen_logits=frozen_logits,
        state=state,
        messages=state,
        message_rows=nodes.int().repeat(len(groups)),
        sources=nodes.int().repeat(len(groups)),
        root=readout.root is not None,
        origin=f"{backbone.title} on {frozen.data.get('name') or 'a graph'}",
        fixed=backbone.fixed,
        embedding=frozen.embedding,
        fingerprint=_fingerprint(frozen),
    )


def _fingerprint(frozen: Frozen) -> tuple[str, ...]:
    """A digest of each member's parameters."""
    kind, classes = f"backbone {type(frozen.backbone).__name__}", frozen.logits.shape[2]
    return tuple(
        digest_of_weights(kind, classes, [(name, p[s]) for name, p in frozen.parameters.items()])
        for s in range(frozen.num_members)
    )


def _interleaved(operators: list[Operator]) -> tuple[Pattern, Tensor]:
    """The terms of several groups in one list, sorted by recipient and then by group.

    Returns a pattern whose row v·G+g is the segment of recipient v and group g, with columns
    offset by g·N, and the coefficients [S or 1, T].
    """
    count, nodes = len(operators), operators[0].pattern.num_rows
    lengths = torch.stack([operator.pattern.indptr.diff() for operator in operators], dim=1)
    segments = torch.cat([lengths.new_zeros(1), lengths.view(-1).cumsum(0)])
    members = max(_by_member(operator).shape[0] for operator in operators)
    rows = segments.new_empty(int(segments[-1]), dtype=torch.int32)
    coefficients = operators[0].coefficients.new_empty(members, rows.numel())
    for group, operator in enumerate(operators):
        places = places_of_group(segments, group, count)
        rows[places] = operator.pattern.indices + group * nodes
        coefficients[:, places] = _by_member(operator)
    return Pattern(segments, rows, count * nodes), coefficients


def _by_member(operator: Operator) -> Tensor:
    """[S or 1, T]."""
    coefficients = operator.coefficients
    return coefficients.unsqueeze(0) if coefficients.dim() == 1 else coefficients.t()


# The same model on many graphs -------------------------------------------------------------------


class ExposurePlan:
    """How a model is exposed. On the first graph it is certified as by ``expose``.

    On further graphs it is only read off what the model does there, until its weights change.
    """

    def __init__(
        self,
        model: nn.Module,
        hops: str = "paths",
        node_type: str | None = None,
        outputs: Outputs = "classes",
        classes: int | None = None,
    ) -> None:
        """Plan how a model is exposed.

        Args:
            model: the model.
            hops: as for ``expose``.
            node_type: as for ``expose``.
            outputs: what the model gives.
            classes: how many outputs, where data has no labels to tell them from other tensors.
        """
        refuse_compiled(model)
        self.model, self.node_type, self.classes = model, node_type, classes
        self._options = ExposeOptions(hops, outputs=outputs)
        self._weights: list[Tensor] | None = None

    def __call__(self, data: Any, forward: Forward, gradients: bool = False) -> Exposure:
        """The exposure of the model on data, called by ``forward(model, data)``.

        Args:
            data: what the model is given.
            forward: calls it.
            gradients: whether the exposure's numbers carry gradients for what the model is given;
                its own weights stay frozen.
        """
        certified = self._weights is None or not has_learned(self.model, self._weights)
        options = replace(self._options, certified=certified, gradients=gradients)
        with resting(self.model), torch.no_grad():
            subject = model_on_data(self.model, data, forward, self.node_type, self.classes)
            exposure = Exposer(subject, options).exposed()
        if certified:
            self._weights = learned_by(self.model)
        return exposure
