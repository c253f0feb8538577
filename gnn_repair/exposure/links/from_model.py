"""``expose_links``: a trained model's links as mixtures of one end's messages.

Encoder and decoder are one recorded run. The sums that feed the ends' embeddings are followed node
by node to where rows are looked up with the links, and from there link by link to the logits. What
reads embeddings in any other way (a product C z, a mean over all nodes) is held, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.calling import Forward, ModelOnData, on_data, one_graph
from gnn_repair.exposure.checks import excused, residual_limit
from gnn_repair.exposure.heads.building import Frame, Places
from gnn_repair.exposure.heads.head import affine_start, simplified
from gnn_repair.exposure.heads.logit_form import (
    TAKEN_OFF,
    ends_in_sigmoid,
    folded,
    is_affine,
    logit_of,
    without_sigmoid,
)
from gnn_repair.exposure.heads.operations import Concatenate, HeadGraph
from gnn_repair.exposure.heads.tracer import Tracer
from gnn_repair.exposure.links.assembly import by_link, link_mixture, links_after_nodes, rows_behind
from gnn_repair.exposure.links.calls import (
    SAY,
    Decoder,
    LinkCall,
    chosen_links,
    link_call,
    relation_of,
)
from gnn_repair.exposure.links.lookups import (
    Decoding,
    Lookup,
    decoding_of,
    lookups_of,
    with_others,
)
from gnn_repair.exposure.links.value import ENDS, LinkExposure
from gnn_repair.exposure.output import Reading
from gnn_repair.exposure.record.analysis import Analysis
from gnn_repair.exposure.record.exposing import (
    Captured,
    Exposing,
    Wanted,
    parts_of_sites,
    values_of_sites,
)
from gnn_repair.exposure.record.recorder import (
    KnownTensor,
    Record,
    Recorder,
    made_on,
    tensors_in,
    unfused,
)
from gnn_repair.exposure.record.replay import (
    Capture,
    CapturePlan,
    Replay,
    Substitutes,
    giving,
    random_mixed,
    relative_gap,
)
from gnn_repair.exposure.record.words import held_parts
from gnn_repair.exposure.state import emptied, refuse_compiled, resting
from gnn_repair.exposure.value import Exposure, HeldPart


def expose_links(
    model: nn.Module,
    data: Any,
    links: Tensor | None = None,
    *,
    decoder: Decoder | None = None,
    vary: Literal["source", "target"] = "source",
    forward: Forward | None = None,
    hops: Literal["paths", "last"] = "paths",
    tolerance: float | None = None,
    relation: tuple[str, str, str] | None = None,
) -> LinkExposure:
    """Write a model's logit of every link as a mixture of the messages of one of its ends.

    Args:
        model: a trained model of links: with ``encode`` and ``decode``, with a forward that takes
            the links (such as ``edge_label_index``) beside the graph, or an encoder alone.
        data: the PyG data the model runs on.
        links: [2, L] the links to expose; ``data.edge_label_index`` unless given.
        decoder: with an encoder alone, what gives the logits: ``decoder(z, links)`` or
            ``decoder(z_source, z_target)``.
        vary: whose messages are reweighted; the other end stays as it is.
        forward: how the encoder is called, ``forward(model, data) -> z [N, d]``.
        hops: as for :func:`expose`.
        tolerance: the largest certified residual to accept; 1e-5 for float32 models and 1e-12
            for float64 unless given.
        relation: in a graph of several node types (HeteroData) the relation whose links are
            predicted; not needed where only one holds ``edge_label_index``.

    Returns:
        The links, certified by running encoder and decoder on randomly reweighted messages. What
        of an end's embedding enters in other ways than by its own row is held, by name
        (``exposure.mixture.held``).

    Raises:
        ExposureRefused: embeddings are no mixture of messages, or ends cannot be told apart.
        InputError: the model cannot be called as it is meant to be; the message says what to pass.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; pass a torch module")
    if hops not in ("paths", "last"):
        raise InputError(f"hops is {hops!r}; choose 'paths' or 'last'")
    if vary not in ENDS:
        raise InputError(
            f"vary is {vary!r}; choose 'source' or 'target' (with both ends reweighted a logit is "
            "a product of two mixtures, which no linear program decides)"
        )
    refuse_compiled(model)
    data = one_graph(data, model, forward)
    kind = relation_of(data, relation)
    chosen, end = chosen_links(data, links, kind), ENDS.index(vary)
    with resting(model), torch.no_grad():
        call = link_call(model, data, decoder, forward, chosen, kind)
        subject = on_data(model, data, lambda *_: None, None if kind is None else kind[2 * end])
        known = [links, getattr(data if kind is None else data[kind], "edge_label_index", None)]
        exposing = _LinkExposing(subject, Wanted(hops, tolerance), call, chosen, end)
        exposing.known = [t for t in known if isinstance(t, Tensor) and torch.equal(t, chosen)]
        exposing.exposed()
        return exposing.made


class _LinkExposing(Exposing):
    """One model's links on the way to their exposure."""

    def __init__(
        self, subject: ModelOnData, wanted: Wanted, call: LinkCall, links: Tensor, end: int
    ) -> None:
        super().__init__(subject, wanted)
        self.call, self.links, self.end = call, links, end
        self.given = links.clone(memory_format=torch.contiguous_format)
        """What the model is given, and nobody else: whatever is looked up with it is an end."""
        self.known: list[Tensor] = []
        """Other tensors that hold the same links."""
        self.decoding: Decoding | None = None
        self.read = Reading(outputs="labels")

    def run(self, recorder: Recorder | None = None) -> Tensor:
        with emptied(self.caches):
            return self.call.run(self.given, None if recorder is None else recorder.mark)

    def _leaves(self) -> dict[int, KnownTensor]:
        mine = {id(t): KnownTensor("links", False, links=True) for t in (self.given, *self.known)}
        return super()._leaves() | mine

    @cached_property
    def called(self) -> str:
        return self.call.words(self.given)

    def _held(self, analysis: Analysis, own: set[int]) -> tuple[HeldPart, ...]:
        assert self.decoding is not None
        looked_up = self.decoding.other | {lookup.step for lookup in self.decoding.varied}
        cut = own | looked_up | self.decoding.second_ways
        beside = set(analysis.beside(cut)) - self.decoding.linked

        def where(module: str) -> str:
            return self.where(module) if module or not self.call.encode else "the decoder"

        return held_parts(analysis, where, own, beside | self.decoding.second_ways)

    def _from_record(self, record: Record, logits: Tensor, embedding: Tensor | None) -> Any:
        analysis, nodes = self.analysis_of(record), self.subject.nodes
        assert nodes is not None
        lookups = lookups_of(analysis, self.links.shape[1])
        tables = [one.table for one in lookups.values() if self.end in one.ends]
        self.outputs = _embeddings(analysis, [t for t in tables if analysis.value(t).live])
        if not self.outputs:
            raise ExposureRefused(self._no_rows)
        with made_on(self.device):
            sites = self._final_sites(analysis, self._sites(analysis, nodes), nodes)
            decoding = decoding_of(analysis, sites, lookups, self.end)
            analysis.refuse_branches(sites, self.where)
            parts = parts_of_sites(analysis, sites)
        if not decoding.varied:
            raise ExposureRefused(self._no_rows)
        held = analysis.mixing_after(sites, self.outputs)
        plan = CapturePlan.of(analysis, sites, parts, nodes, {*held, *decoding.elsewhere})
        plan.wanted.update(*decoding.elsewhere.values(), {x.table for x in decoding.still})
        plan.wanted.update(x.table for x in decoding.varied)
        found, head, across = self._followed(analysis, plan, decoding, logits)
        self.decoding = decoding = replace(decoding, across=across)
        channels = found.extracted.aggregate(values_of_sites(found, sites))
        with made_on(self.device):
            mixture, replay = self._mixture(
                analysis, sites, parts, found, (channels, logits), None, held
            )
            ends = [self._nodes_at(analysis, end) for end in (self.end, 1 - self.end)]
            cut = _Cut(mixture, ends[0], ends[1], decoding, self._still(found, record))
            self.made = self._joined(cut, found.extracted.head, head, replay, logits)

    @property
    def _no_rows(self) -> str:
        return (
            f"{self.call.text} looks up no rows of its embeddings for the {ENDS[self.end]}s of "
            f"links, so what follows cannot be told from what came before; {SAY}"
        )

    # The second run ----------------------------------------------------------------------------

    def _followed(
        self, analysis: Analysis, plan: CapturePlan, decoding: Decoding, logits: Tensor
    ) -> tuple[Captured, HeadGraph, dict[int, list[Tensor]]]:
        """What leads to the ends' embeddings, node by node, and from there on, link by link.

        Also what mixes links.
        """
        offsets, width = dict[int, int](), 0
        for lookup in decoding.varied:
            if lookup.table not in offsets:
                offsets[lookup.table] = width
                shape = analysis.value(lookup.table).shape
                width += torch.Size(shape).numel() // max(shape[lookup.axis], 1)
        counted: list[Capture] = []

        def now() -> str:
            return self.where(analysis.record.steps[counted[0].count - 1].module)

        device = logits.device
        nodes = Tracer.of_width(plan.width, plan.recipients, device, now)
        links = Tracer.of_width(width, self.links.shape[1], device, now)
        capture = _LinkCapture(analysis.record, plan, nodes, links, decoding, self.end, offsets)
        counted.append(capture)
        with unfused(), nodes, links, capture:
            output = self.run()
        self.check_same(output, logits)
        values = [capture.values[table] for table in offsets]
        builder = nodes.builder
        value = values[0] if len(values) == 1 else builder.emit(Concatenate(tuple(values)), width)
        before = simplified(builder.operations, builder.widths, value)
        extracted = affine_start(before, plan.width, device)
        last, _ = links.builder.flat(links.output(output))
        after = simplified(links.builder.operations, links.builder.widths, last)
        found = Captured(capture.kept, plan.offsets, extracted, False, {})
        return found, HeadGraph(width, tuple(after)), capture.across

    def _nodes_at(self, analysis: Analysis, end: int) -> Tensor:
        """[L] the node at one end of every link, as the lookups show it."""
        assert self.decoding is not None
        nodes = self.links[end].clone()
        seen = torch.zeros_like(nodes, dtype=torch.bool)
        for lookup in (*self.decoding.varied, *self.decoding.still):
            rows = analysis.value(analysis.record.steps[lookup.step].result).rows
            if end not in lookup.ends or len(rows) != 1:
                continue
            ids = lookup.part(rows[0].ids, lookup.ends.index(end)).movedim(lookup.axis, 0)
            ids = ids.reshape(len(lookup.links), -1)[:, 0]
            if bool((seen[lookup.links] & (nodes[lookup.links] != ids)).any()):
                raise ExposureRefused(
                    f"{self.call.text} looks up rows of different nodes for one end of a link; "
                    "look both up with the same numbers"
                )
            nodes[lookup.links], seen[lookup.links] = ids, True
        return nodes

    # Putting it together -----------------------------------------------------------------------

    def _joined(
        self, cut: _Cut, before: HeadGraph, after: HeadGraph, replay: Replay, logits: Tensor
    ) -> LinkExposure:
        mixture, terms = link_mixture(cut.nodes, cut.ends)
        head = links_after_nodes(
            by_link(before, rows_behind(cut.count, cut.ends)),
            by_link(after, rows_behind(cut.count, torch.arange(len(cut.ends)))),
        )
        off = ends_in_sigmoid(head)
        if off:
            head = without_sigmoid(head)
            mixture = replace(mixture, called=mixture.called + TAKEN_OFF)
        if is_affine(head):
            exposure = folded(mixture, head, None)
        else:
            everyone = torch.arange(mixture.num_nodes)
            frozen = head(mixture.frozen_logits[0], everyone).unsqueeze(0)
            exposure = mixture.with_head(head, frozen)
        run = _LinkReplay(replay, cut, terms, mixture.segments[:: mixture.num_groups].diff())
        residual = self._certify_links(exposure, run, logits, off)
        if exposure.head is not None:
            exposure = replace(exposure, replay=logit_of(run) if off else run)
        exposure = replace(exposure, residual=residual)
        return LinkExposure(exposure, self.links, ENDS[self.end])

    def _still(self, found: Captured, record: Record) -> Substitutes:
        """What stays as it is while the varied end moves: the other end, and second ways."""
        assert self.decoding is not None
        decoding, instead = self.decoding, dict[int, Callable[..., Any]]()
        frozen = {one.step: frozenset({one.table}) for one in decoding.still}
        for place, numbers in {**frozen, **decoding.elsewhere}.items():
            instead[place] = _reading(record, place, {n: found.kept[n] for n in numbers})
        for lookup in decoding.varied:
            if len(lookup.ends) == 2:
                instead[lookup.step] = _half(lookup, self.end, found.kept[lookup.table])
        instead |= {place: giving(kept) for place, kept in decoding.across.items()}
        return instead

    def _certify_links(
        self, exposure: Exposure, replay: _LinkReplay, logits: Tensor, off: bool
    ) -> float:
        """Largest difference from the model, beside what moved.

        Twice with everything else as it is; where nothing is held, once more with encoder and
        decoder as a whole and nothing put in the place of what they read.
        """
        mixture = exposure.aggregate
        worst, cut = 0.0, replay.cut
        frozen = logits.double()
        everyone = torch.ones(len(cut.ends), dtype=torch.bool, device=frozen.device)
        for seed in range(2 if cut.decoding.second_ways else 3):
            drawn, tested = random_mixed(cut.nodes, seed), everyone
            if seed == 2:
                tested, moving = cut.apart()
                drawn = torch.where(moving, drawn, cut.nodes.coefficients[0].double())
            given = drawn[replay.terms].to(mixture.coefficients.dtype).unsqueeze(0)
            expected = exposure.logits(given)[0]
            expected = expected.sigmoid() if off else expected
            seen = replay.of_nodes(drawn, whole=seed == 2)
            ratio = relative_gap(seen[tested], expected[tested], frozen[tested], logits.dtype)
            worst = ratio if not ratio <= worst else worst  # NaN wins
        limit = residual_limit(self.wanted.tolerance, logits.dtype)
        if not worst <= limit:
            raise ExposureRefused(
                f"with reweighted messages of the links' {ENDS[self.end]}s the model differs from "
                f"their mixture by {worst:.1e} of what they move, more than {limit:.0e}; "
                + excused(worst, logits.dtype)
            )
        return worst


def _embeddings(analysis: Analysis, tables: Sequence[int]) -> tuple[int, ...]:
    """What lies between encoder and decoder: what the run pointed out, else what is looked up."""
    marked = set(analysis.record.marked)
    if not marked or not tables:
        return tuple(dict.fromkeys(tables))
    todo, seen = list(tables), set[int]()
    while todo:
        number = todo.pop()
        step = analysis.maker(number)
        if number in seen:
            continue
        seen.add(number)
        if number not in marked and step is not None and not step.mixes:
            todo += step.reads
    return tuple(sorted(seen & marked)) or tuple(analysis.record.marked)


class _LinkCapture(Capture):
    """Follows rows of nodes to the lookups and rows of links from there."""

    def __init__(
        self, record: Record, plan: CapturePlan, nodes: Tracer, links: Tracer, decoding: Decoding,
        end: int, offsets: dict[int, int],
    ) -> None:  # fmt: skip
        super().__init__(record, plan, nodes)
        self.links, self.end, self.offsets = links, end, offsets
        self.lookups = {lookup.step: lookup for lookup in decoding.varied}
        self.across: dict[int, list[Tensor]] = {}
        """By operation that mixes the rows of different links: what it gives."""
        self.values: dict[int, int] = {}
        """By table: the value of the nodes' head that it is."""

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        lookup = self.lookups.get(number)
        if lookup is None:
            out = super().handle(number, func, args, kwargs)
            results = tensors_in(out)
            if self.record.steps[number].mixes and any(map(self.links.is_lost, results)):
                self.across[number] = [result.clone() for result in results]
                for result in results:
                    self.links.forget(result)
            return out
        value = self.tracer.flat_of(args[0])
        if value is None:
            raise ExposureRefused("embeddings leave PyTorch on the way to where they are looked up")
        self.values[lookup.table] = value
        out = super().handle(number, func, args, kwargs)
        self.tracer.forget(out)
        return lookup.rebuilt(out, self.end, lambda rows: self._adopt(rows, lookup))

    def _adopt(self, rows: Tensor, lookup: Lookup) -> Tensor:
        shape, count = tuple(rows.shape), self.links.builder.num_nodes
        whole = torch.equal(lookup.links, torch.arange(count, device=lookup.links.device))
        places = None if whole else Places(lookup.links, count)
        frame = Frame(shape, lookup.axis, shape, places)
        self.links.adopt(rows, (frame, self.offsets[lookup.table]))
        return rows


def _reading(record: Record, place: int, others: dict[int, Tensor]) -> Callable[..., Any]:
    """An operation that reads other tensors."""
    step = record.steps[place]

    def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = with_others(step.args, args, others)
        return func(*given, **with_others(step.kwargs, kwargs, others))

    return run


def _half(lookup: Lookup, end: int, table: Tensor) -> Callable[..., Any]:
    """A lookup of both ends of which one stays as it is."""

    def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out, before = func(*args, **kwargs), func(table, *args[1:], **kwargs)
        return lookup.rebuilt(before, end, lambda _: lookup.part(out, lookup.ends.index(end)))

    return run


@dataclass(frozen=True, eq=False)
class _Cut:
    """The mixture of all nodes, and what of it links are made of."""

    nodes: Exposure
    ends: Tensor
    """[L] the node at the varied end."""
    others: Tensor
    """[L] the node at the other end, numbered through all types."""
    decoding: Decoding
    still: Substitutes
    """What stays as it is."""

    @property
    def count(self) -> int:
        """N."""
        return self.nodes.num_nodes

    def apart(self) -> tuple[Tensor, Tensor]:
        """Links whose varied end moves while no other end does, and the terms that move."""
        generator = torch.Generator().manual_seed(2)
        inside = self.others < self.count  # otherwise it is of another type
        for share in (0.5, 0.0):
            chosen = torch.rand(self.count, generator=generator).to(self.ends.device) < share
            chosen[self.ends[0]] = True
            tested = chosen[self.ends] & ~(chosen[self.others * inside] & inside)
            if bool(tested.any()):
                break
        lengths = self.nodes.segments[:: self.nodes.num_groups].diff()
        return tested, torch.repeat_interleave(chosen, lengths)


@dataclass(frozen=True, eq=False)
class _LinkReplay:
    """λ of the links' terms → the model's own logits of all rows, run with these messages.

    A run reweights every node once, so links that share an end take turns.
    """

    nodes: Replay
    cut: _Cut
    terms: Tensor
    """[T] the node's term behind each term of a link."""
    lengths: Tensor
    """[L] how many terms each link has."""

    def of_nodes(self, coefficients: Tensor, whole: bool = False) -> Tensor:
        """Logits [L, 1] when every node has its own λ; ``whole``: and nothing stays as it is."""
        return self.nodes(coefficients, None if whole else self.cut.still)

    def __call__(self, coefficients: Tensor) -> Tensor:
        alpha = self.cut.nodes.coefficients[0].double()
        given = coefficients.reshape(-1).double().to(alpha.device)
        turn = self._turns()
        out = alpha.new_zeros(self.cut.count + len(turn), 1)
        for number in range(int(turn.max()) + 1):
            mine = turn == number
            own = torch.repeat_interleave(mine, self.lengths)
            whole = alpha.clone()
            whole[self.terms[own]] = given[own]
            seen = self.of_nodes(whole)
            out[self.cut.count :][mine] = seen[mine]
        return out

    def _turns(self) -> Tensor:
        """[L] how many earlier links share the varied end."""
        ends = self.cut.ends
        order = torch.argsort(ends, stable=True)
        turn = torch.empty_like(order)
        first = torch.searchsorted(ends[order], ends[order])
        turn[order] = torch.arange(len(order), device=order.device) - first
        return turn
