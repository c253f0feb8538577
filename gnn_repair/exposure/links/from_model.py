"""``expose_links``: a trained model's links as mixtures of one end's messages.

Encoder and decoder are one recorded run. The sums that feed the ends' embeddings are followed node
by node to where rows are looked up with the links, and from there link by link to the logits. What
reads embeddings in any other way (a product C z, a mean over all nodes) is held, and named.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from gnn_repair.errors import ExposureRefused, InputError, kind_of
from gnn_repair.exposure.calling import (
    GRAPHS,
    LOGITS,
    Argument,
    Forward,
    Invocation,
    ModelOnData,
    Parameter,
    Reading,
    Relation,
    agree,
    choose_arguments,
    counts_of,
    explaining_misfits,
    invocation,
    is_typed,
    listed_graphs,
    model_on_data,
    named_parameters,
    one_graph,
    tensors_of,
    typed_field,
    untyped_field,
)
from gnn_repair.exposure.from_model import (
    ExposeOptions,
    Exposer,
    FrozenRun,
    held_parts,
    operation_of,
    unwrap,
)
from gnn_repair.exposure.heads.building import Frame, Places
from gnn_repair.exposure.heads.head import affine_start, simplify
from gnn_repair.exposure.heads.logit_form import (
    SIGMOID_OFF,
    ends_in_sigmoid,
    fold_affine,
    is_affine,
    logit_of,
    without_last,
)
from gnn_repair.exposure.heads.operations import Concatenate, HeadGraph, Opaque, Operation
from gnn_repair.exposure.heads.tracer import Tracer
from gnn_repair.exposure.links.value import ENDS, LinkExposure
from gnn_repair.exposure.pieces import cut_terms
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, gather_parts
from gnn_repair.exposure.record.recorder import (
    GATHERS,
    LINKS,
    KnownTensor,
    Record,
    RecordedStep,
    Recorder,
    Ref,
    default_device,
    tensors_in,
)
from gnn_repair.exposure.record.replay import (
    Capture,
    CapturedRun,
    CapturePlan,
    Replay,
    Substitutes,
    largest_gap,
    random_admissible,
    relative_gap,
    residual_advice,
    residual_limit,
    return_fixed,
)
from gnn_repair.exposure.record.spelled import unfused
from gnn_repair.exposure.state import caches_emptied, refuse_compiled, resting
from gnn_repair.exposure.value import Exposure, HeldPart

LINK = re.compile(r"edge_label_index|link|pair|(label|target|query|pred)_?edge")
"""Names of a forward's parameter for the links to predict."""
TRUE = re.compile(r"pos(itive)?_?edge")
"""Names of a parameter for true links, or for the graph where no other parameter takes it."""
SAMPLED = re.compile(r"^neg|negative")
"""Names of a parameter for links that are sampled and are none."""
INDEX = re.compile(r"edge|index|link|pair")
"""Names of a decoder's second parameter when it looks the ends up itself."""
SAY = "pass the encoder, and decoder=lambda z, links: ... that gives one logit per link"
TWO_COLUMNS = "; of the two columns “no link” and “link” the difference is the logit"

Decoder = Callable[..., Any]
Score = Callable[[Any, Tensor], Any]


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
        raise InputError(f"model is {kind_of(model)}; pass a torch module")
    if hops not in ("paths", "last"):
        raise InputError(f"hops is {hops!r}; choose 'paths' or 'last'")
    if vary not in ENDS:
        raise InputError(
            f"vary is {vary!r}; choose 'source' or 'target' (with both ends reweighted a logit is "
            "a product of two mixtures, which no linear program decides)"
        )
    model = unwrap(model)
    refuse_compiled(model)
    data = one_graph(listed_graphs(data), model, forward)
    kind = relation_of(data, relation)
    chosen, end = chosen_links(data, links, kind), ENDS.index(vary)
    with resting(model), torch.no_grad(), explaining_misfits(model, data):
        call = link_call(model, data, decoder, forward, chosen, kind)
        subject = model_on_data(
            model, data, lambda *_: None, None if kind is None else kind[2 * end]
        )
        named = [links, _links_of(data, kind)]
        same = [t for t in named if isinstance(t, Tensor) and torch.equal(t, chosen)]
        exposer = _LinkExposer(subject, ExposeOptions(hops, tolerance), call, chosen, end, same)
        return LinkExposure(exposer.exposed(), chosen, vary)


# How a model is asked about links ----------------------------------------------------------------
#
# Models have a forward of their own, encode and decode, or are an encoder beside a decoder.
# Whatever the form, a call takes links [2, L] and gives their logits [L, 1].


@dataclass(frozen=True, eq=False)
class LinkCall:
    """One way of asking a model for links' logits."""

    encode: Callable[[], Any] | None
    """Gives z; None where only the whole can be run."""
    score: Score
    """From z (None: run the encoder, too) and links to what the model says of them."""
    text: str

    def run(self, links: Tensor, mark: Callable[[Any], None] | None = None) -> tuple[Tensor, bool]:
        """Logits [L, 1], and whether they are the difference of two columns.

        Args:
            links: [2, L].
            mark: is shown the embeddings, where the encoder is run apart.
        """
        z = None if self.encode is None else self.encode()
        if mark is not None and z is not None:
            mark(z)
        out = Invocation(lambda: self.score(z, links), self.text, SAY)()
        return _column(out, links.shape[1])


def _column(out: Any, count: int) -> tuple[Tensor, bool]:
    held = {k: v for k, v in tensors_of(out) if v.is_floating_point()}
    rows = {k: v for k, v in held.items() if v.shape in ((count,), (count, 1), (count, 2))}
    rows = {k: v for k, v in rows.items() if k in LOGITS} or rows
    if len(rows) != 1:
        shapes = " and ".join(f"a tensor of shape {list(v.shape)}" for v in held.values())
        given = f"the decoder gives {shapes or type(out).__name__} for {count} links"
        if any(v.dim() == 2 and len(v) == count for v in held.values()) and not rows:
            given += ", and several outputs per link are unsupported"
        elif any(v.shape[:1] == (2,) for v in held.values()):
            given += " [2, L], and forwards that read them as pairs [L, 2] are unsupported"
        raise InputError(f"{given}; {SAY}")
    (logits,) = rows.values()
    if logits.shape == (count, 2):  # of the two classes "no link" and "link"
        return logits[:, 1:] - logits[:, :1], True
    return logits.reshape(count, 1), False


def link_call(
    model: nn.Module,
    data: Any,
    decoder: Decoder | None,
    forward: Forward | None,
    links: Tensor,
    relation: Relation | None = None,
) -> LinkCall:
    """How this model is asked about links.

    Args:
        model: the model.
        data: what it runs on.
        decoder: what gives logits, where the model is an encoder alone.
        forward: how the encoder is called.
        links: [2, L] what will be asked.
        relation: of what the links are, in a graph of several node types.
    """
    methods = hasattr(model, "encode") and hasattr(model, "decode")
    if decoder is None and not methods:
        if forward is not None:
            raise InputError(
                f"forward= says how an encoder is called, and no decoder is there; {SAY}"
            )
        return _whole(model, data, links, relation)
    encode, text = _encoder(model, data, forward, methods)
    chosen = getattr(model, "decode", None) if decoder is None else decoder
    score, words = _decoder(chosen, encode, links)
    return LinkCall(encode, score, f"{text} and {words}")


def _whole(model: nn.Module, data: Any, links: Tensor, relation: Relation | None) -> LinkCall:
    """A model whose forward takes the links beside the graph, or in it."""
    names = [p.name for p in _parameters(model)]
    named = sorted(filter(LINK.search, names), key="edge_label_index".__ne__)
    apart = not named and bool({name.removesuffix("_dict") for name in names} & {*GRAPHS})
    named = list(filter(TRUE.search, names)) if apart else named
    title = type(model).__name__
    if named:
        # Where true and sampled links are taken apart, there are no sampled ones here.
        sampled = [
            n for n in names if SAMPLED.search(n) and (apart or untyped_field(data, n) is None)
        ]
        none = {name: Argument(links[:, :0], "none") for name in sampled}
        preset = {**none, named[0]: Argument(links, "links")}
        fresh, text = choose_arguments(model, copy.copy(data), None, preset)

        def score(_: Any, links: Tensor) -> Any:
            return model(**{**fresh(), named[0]: links})

        call = LinkCall(None, score, f"{title}.{text}")
        # What says of one link the same without the others is no graph that messages run along.
        if not apart or agree(call.run(links)[0][:1], call.run(links[:, :1])[0]):
            return call
    if len(names) != 1 or _links_of(data, relation) is None:
        raise InputError(
            f"{title}'s forward takes {', '.join(names) or 'nothing'}, none of them links, and it "
            f"has no encode and decode; {SAY}"
        )

    def of_data(_: Any, links: Tensor) -> Any:
        graph = copy.copy(data)
        (graph if relation is None else graph[relation]).edge_label_index = links
        return model(graph)

    return LinkCall(None, of_data, f"{title}.forward({names[0]})")


def _encoder(
    model: nn.Module, data: Any, forward: Forward | None, methods: bool
) -> tuple[Callable[[], Any], str]:
    if forward is not None or not methods:
        call = invocation(model, data, forward)
        return call, call.text if forward is None else "forward="
    fresh, text = choose_arguments(_signed(model), copy.copy(data))
    text, encode = text.replace("forward", "encode"), cast(Any, model.encode)
    return Invocation(lambda: encode(**fresh()), text), text


def _signed(model: Any) -> nn.Module:
    """A module with the signature of ``encode``; that of its encoder where it takes anything."""
    inner = getattr(model, "encoder", None)
    if isinstance(inner, nn.Module) and not _parameters(model.encode):
        return inner
    shell = nn.Module()
    shell.__dict__["forward"] = model.encode
    return shell


def _decoder(
    decoder: Decoder | None, encode: Callable[[], Any], links: Tensor
) -> tuple[Score, str]:
    if not callable(decoder):
        raise InputError(f"decoder is {kind_of(decoder)}; {SAY}")
    inside = getattr(getattr(decoder, "__self__", None), "decoder", None)
    parameters = _parameters(decoder)
    if not parameters and isinstance(inside, nn.Module):
        parameters = _parameters(inside)
    names = [p.name for p in parameters]
    options = {"sigmoid": False} if "sigmoid" in names else {}
    rest = [p for p in parameters[2:] if p.required and p.name not in options]
    other = [p.name for p in rest if not INDEX.search(p.name) or p.name.endswith("type")]
    if other:
        raise InputError(
            f"the decoder takes {other[0]!r}, too, which nothing here says for a link; pass the "
            f"encoder, and decoder=lambda z, links: ... that hands it its {other[0]}"
        )
    named = len(names) > 1 and INDEX.search(names[1])
    by_rows = not named and not _looks_up(decoder, encode(), links)

    def score(z: Any, links: Tensor) -> Any:
        if by_rows:
            return decoder(z[links[0]], z[links[1]], **options)
        # An older way of writing it takes true and sampled links apart; here are no sampled ones.
        return decoder(z, links, *[links.new_zeros(2, 0) for _ in rest], **options)

    form = "two rows" if by_rows else "z and links"
    return score, f"a decoder of {form}" + ", without its sigmoid" * bool(options)


def _looks_up(decoder: Decoder, z: Any, links: Tensor) -> bool:
    """Whether a decoder takes z and links, and looks the ends up itself, as its answer shows."""
    try:
        _column(decoder(z, links), links.shape[1])
        return True
    except Exception:
        return not isinstance(z, Tensor)


def _parameters(function: Any) -> list[Parameter]:
    """Those that a function or a module's forward names; empty where it takes anything."""
    return named_parameters(function.forward if isinstance(function, nn.Module) else function)


# Which links -------------------------------------------------------------------------------------


def relation_of(data: Any, relation: Any) -> Relation | None:
    """The relation whose links are predicted; None in a graph of one type."""
    if not is_typed(data):
        if relation is not None:
            raise InputError(
                f"relation is {relation!r:.80}, but data is {kind_of(data)} without types "
                "of nodes; leave it out, or pass a HeteroData"
            )
        return None
    if not isinstance(data, HeteroData):
        raise InputError(f"data is {kind_of(data)} with types of nodes; pass a HeteroData")
    kinds, held = list(data.edge_types), list(typed_field(data, "edge_label_index") or {})
    if relation is not None:
        if relation not in kinds:
            names = ", ".join(map(repr, kinds))
            raise InputError(f"relation is {relation!r:.80}; choose one of {names}")
        source, name, target = relation
        return (source, name, target)
    if len(held) != 1:
        which = ", ".join(map(repr, held or kinds))
        raise InputError(
            f"{len(held)} relations of data hold edge_label_index; say with relation= which links "
            f"are predicted: {which}"
        )
    only: Relation = held[0]
    return only


def _links_of(data: Any, relation: Relation | None) -> Any:
    """The links that data itself names to be predicted."""
    return getattr(data if relation is None else data[relation], "edge_label_index", None)


def chosen_links(data: Any, links: Any, relation: Relation | None) -> Tensor:
    """[2, L]: the links that are given, or those that data holds."""
    links = _links_of(data, relation) if links is None else links
    if not isinstance(links, Tensor):
        kind = "missing" if links is None else f"a {type(links).__name__}"
        raise InputError(f"links is {kind}; give a tensor [2, L] of source and target nodes")
    if links.dim() != 2 or links.shape[0] != 2 or not links.shape[1]:
        turned = ", as links.t() is" if links.dim() == 2 and links.shape[1] == 2 else ""
        raise InputError(
            f"links has shape {list(links.shape)}; give [2, L]{turned}, at least one link"
        )
    if links.dtype not in (torch.int64, torch.int32):
        raise InputError(f"links holds {links.dtype}; give whole numbers, such as links.long()")
    if relation is None:
        sizes, nouns = [getattr(data, "num_nodes", None)] * 2, ["node", "node"]
    else:
        counts, nouns = counts_of(data), [relation[0], relation[2]]
        sizes = [counts.get(kind) for kind in nouns]
    for ends, size, noun in zip(links, sizes, nouns, strict=True):
        low, high = int(ends.min()), int(ends.max())
        if low < 0 or (size is not None and high >= size):
            raise InputError(f"links names {noun} {low if low < 0 else high}, which does not exist")
    same = (links[0] == links[1]).nonzero()
    if same.numel() and nouns[0] == nouns[1]:
        first, where = int(same[0]), "" if relation is None else f" in {' '.join(relation)}"
        raise InputError(
            f"link {first}{where} joins {nouns[0]} {int(links[0, first])} with itself: to reweight "
            "one end's messages is to reweight the other's; leave it out or, where users and items "
            "are numbered apart, number the items after the users"
        )
    return links.long()


# Where ends are looked up, and what else reads embeddings ----------------------------------------


@dataclass(frozen=True, eq=False)
class Lookup:
    """An operation that looks up rows with the links themselves."""

    step: int
    table: int
    axis: int
    """The result's axis that counts rows; with both ends in one the first of two."""
    ends: tuple[int, ...]
    """Which ends its rows are of, 0: source, 1: target; of both in the order that they stand in."""
    links: Tensor
    """[n] the number of the link behind every row of one end."""
    along: int | None = None
    """With both ends in one: the result's axis that tells them apart; None: one after the other."""

    def part(self, out: Tensor, end: int) -> Tensor:
        """The rows of one end."""
        if len(self.ends) == 1:
            return out
        place = self.ends.index(end)
        return (
            out.chunk(2, self.axis)[place] if self.along is None else out.select(self.along, place)
        )

    def rebuilt(self, out: Tensor, end: int, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The result with other rows for one end, laid out in memory as before."""
        if len(self.ends) == 1:
            return change(out)
        parts = [self.part(out, one).clone() for one in self.ends]
        parts[self.ends.index(end)] = change(parts[self.ends.index(end)])
        if self.along is None:
            return torch.stack(parts, self.axis).view(out.shape)
        strides = out.stride()
        order = sorted(range(out.dim()), key=lambda axis: -strides[axis])
        inner = [a - (a > self.along) for a in order if a != self.along]
        laid = torch.stack([part.permute(inner) for part in parts], order.index(self.along))
        return laid.permute([order.index(axis) for axis in range(out.dim())])


def lookups_of(analysis: Analysis, count: int) -> dict[int, Lookup]:
    """By operation: the lookups with numbers of the L links."""
    steps = enumerate(analysis.record.steps)
    lookups = {place: _lookup(analysis, place, step, count) for place, step in steps}
    return {place: lookup for place, lookup in lookups.items() if lookup is not None}


def _lookup(analysis: Analysis, place: int, step: RecordedStep, count: int) -> Lookup | None:
    gathered = gather_parts(analysis, step) if step.name in GATHERS else None
    if step.name == "gather":  # one number per row, repeated for every channel
        gathered = (step.args[0].number, step.args[1], step.args[2].number)
    if gathered is None or not analysis.value(gathered[0]).floating:
        return None
    table, axis, index = gathered
    rows = analysis.value(index).rows
    if len(rows) != 1 or not rows[0].ids.numel() or bool((rows[0].ids < LINKS).any()):
        return None
    ids = rows[0].ids if step.name != "gather" else rows[0].along(axis)
    if ids is None:
        return None
    ids = ids - LINKS
    end, link = ids // count, ids % count
    if bool((end == end.reshape(-1)[0]).all()):
        alone = ids.dim() == 1 and link.unique().numel() == link.numel()
        return Lookup(place, table, axis, (int(end[0]),), link) if alone else None
    everyone = torch.arange(count, device=ids.device)
    split = ids.view(2, count) if ids.shape == (2 * count,) else ids
    for along in range(2) if split.dim() == 2 else ():
        parts = split.movedim(along, 0)
        if parts.shape == (2, count) and bool((parts % count == everyone).all()):
            ends = (int(parts[0, 0]) // count, int(parts[1, 0]) // count)
            if bool((parts // count == torch.tensor(ends, device=ids.device)[:, None]).all()):
                where = None if ids.dim() == 1 else axis + along
                return Lookup(place, table, axis, ends, everyone, where)
    return None


@dataclass(frozen=True, eq=False)
class Decoding:
    """From the sums of an encoder to the logits of links with one end reweighted."""

    varied: tuple[Lookup, ...]
    """The lookups of the varied end, alone or with the other one."""
    still: tuple[Lookup, ...]
    """The lookups of the other end alone, in tables that the sums reach."""
    other: frozenset[int]
    """All lookups of the other end alone: it stays as it is."""
    elsewhere: dict[int, frozenset[int]]
    """By operation: embeddings that it reads otherwise than by the ends of its own link."""
    linked: frozenset[int]
    """Operations on rows of links."""
    across: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    """By operation that mixes the rows of different links, as a run shows: what it gives."""

    @property
    def second_ways(self) -> set[int]:
        """What is held: all that reads embeddings or links otherwise than end by end."""
        return {*self.elsewhere, *self.across}


def decoding_of(
    analysis: Analysis, sites: Sequence[FinalSite], lookups: Mapping[int, Lookup], end: int
) -> Decoding:
    """Follow the sums node by node to the lookups, and from there link by link to the logits."""
    by_node = {site.value for site in sites if not site.readers}
    read_by = {place: site.value for site in sites for place in site.readers}
    hops = set().union(*(site.sums for site in sites))
    linked, of_links = set[int](), set[int]()
    elsewhere: dict[int, frozenset[int]] = {}
    varied, still = list[Lookup](), list[Lookup]()
    for place, step in enumerate(analysis.record.steps):
        reads, results = set(step.inputs), set(step.outs)
        tables = reads & by_node | ({read_by[place]} if place in read_by else set())
        if place in hops or not (tables or reads & linked):
            continue
        lookup = lookups.get(place)
        if lookup is not None and tables and end in lookup.ends:
            varied.append(lookup)
            linked |= results
        elif lookup is not None and tables:
            still.append(lookup)
        elif not reads & linked and not step.mixes and len(analysis.value(step.result).rows) == 1:
            by_node |= results
        elif place in analysis.needed:
            if tables:
                elsewhere[place] = frozenset(tables)
            if reads & linked:
                linked |= results
                of_links.add(place)
    orders = [lookup.links for lookup in varied]
    strange = [x for x in still if not any(torch.equal(x.links, order) for order in orders)]
    elsewhere |= {x.step: frozenset({x.table}) for x in strange}  # an end of another link
    other = {place for place, x in lookups.items() if end not in x.ends} - set(elsewhere)
    of_other = tuple(lookup for lookup in still if lookup.step in other)
    return Decoding(tuple(varied), of_other, frozenset(other), elsewhere, frozenset(of_links))


# The stages --------------------------------------------------------------------------------------


BETWEEN = (
    "; its outputs all lie between 0 and 1: if they are probabilities, which cannot turn negative, "
    "pass a decoder= that subtracts 0.5"
)


class _LinkExposer(Exposer):
    """One model's links on the way to their exposure."""

    decoding: Decoding
    two_columns = False

    def __init__(
        self,
        subject: ModelOnData,
        options: ExposeOptions,
        call: LinkCall,
        links: Tensor,
        end: int,
        same_links: Sequence[Tensor],
    ) -> None:
        super().__init__(subject, options)
        self.call, self.links, self.end = call, links, end
        self.argument = links.clone(memory_format=torch.contiguous_format)
        """What the model is given, and nobody else: whatever is looked up with it is an end."""
        self.same_links = same_links
        """Other tensors that hold the same links."""
        self.read = Reading(outputs="labels")

    def run(self, recorder: Recorder | None = None) -> Tensor:
        with caches_emptied(self.caches):
            mark = None if recorder is None else recorder.mark
            logits, self.two_columns = self.call.run(self.argument, mark)
            return logits

    def _leaves(self) -> dict[int, KnownTensor]:
        links = KnownTensor("links", False, is_links=True)
        return super()._leaves() | {id(t): links for t in (self.argument, *self.same_links)}

    @property
    def called(self) -> str:
        return self.call.text + TWO_COLUMNS * self.two_columns

    def _held(self, analysis: Analysis, sums: set[int]) -> tuple[HeldPart, ...]:
        decoding = self.decoding
        looked_up = decoding.other | {lookup.step for lookup in decoding.varied}
        other = sums | looked_up | decoding.second_ways
        beside = set(analysis.side_mixers(other)) - decoding.linked

        def where(module: str) -> str:
            return self.where(module) if module or not self.call.encode else "the decoder"

        within = set(analysis.inner_mixers(sums, self.spaces.total)) - sums
        return held_parts(analysis, where, within, (beside | decoding.second_ways) - sums)

    def _from_record(self, record: Record, frozen: FrozenRun) -> Exposure:
        analysis, nodes, logits = self.analysis_of(record), self.subject.nodes, frozen.logits
        assert nodes is not None
        lookups = lookups_of(analysis, self.links.shape[1])
        tables = [one.table for one in lookups.values() if self.end in one.ends]
        self.outputs = _embeddings(analysis, [t for t in tables if analysis.value(t).live])
        if not self.outputs:
            raise ExposureRefused(self._no_rows)
        sites = self._sites(analysis, nodes)
        decoding = decoding_of(analysis, sites, lookups, self.end)
        if not decoding.varied:
            if any(analysis.value(one.table).dtype.is_complex for one in lookups.values()):
                raise ExposureRefused(
                    f"{self.call.text} looks up complex numbers; keep the real and imaginary parts "
                    "as real tensors"
                )
            raise ExposureRefused(self._no_rows)
        held = analysis.later_mixers(sites, self.outputs)
        plan = CapturePlan.of(analysis, sites, nodes, {*held, *decoding.elsewhere})
        plan.values.update(*decoding.elsewhere.values())
        plan.values.update(x.table for x in (*decoding.varied, *decoding.still))
        nodes_run, after, across = self._followed(analysis, sites, plan, decoding, logits)
        self.decoding = replace(decoding, across=across)
        with default_device(self.device):
            frozen = replace(frozen, embedding=None)  # which is of links, and these are nodes
            mixture, replay = self._mixture(nodes_run, nodes_run.channels, frozen)
            ends, others = (self._nodes_at(analysis, end) for end in (self.end, 1 - self.end))
            run = _LinkReplay(replay, mixture, ends, others, self._still(nodes_run, record))
            return self._joined(run, nodes_run.extracted.head, after, logits)

    @property
    def _no_rows(self) -> str:
        return (
            f"{self.call.text} looks up no rows of its embeddings for the {ENDS[self.end]}s of "
            "links, so what follows cannot be told from what came before; look both ends up with "
            "the links' own numbers, as z[links[0]] and z[links[1]]"
        )

    def _followed(
        self, analysis: Analysis, sites: Sequence[FinalSite], plan: CapturePlan,
        decoding: Decoding, logits: Tensor,
    ) -> tuple[CapturedRun, HeadGraph, dict[int, list[Tensor]]]:  # fmt: skip
        """What leads to the ends' embeddings, node by node, and from there on, link by link.

        Also what mixes links.
        """
        offsets, width = dict[int, int](), 0
        for lookup in decoding.varied:
            if lookup.table not in offsets:
                offsets[lookup.table] = width
                shape = analysis.value(lookup.table).shape
                width += torch.Size(shape).numel() // max(shape[lookup.axis], 1)
        device = logits.device
        capture = _LinkCapture(analysis.record, plan, device, self.where)
        links = Tracer.of_width(width, self.links.shape[1], device, capture.now)
        capture.follow(links, decoding, self.end, offsets)
        with unfused(analysis.record.counts), capture.tracer, links, capture:
            output = self.run()
        self.check_same(output, logits)
        if capture.across and links.flat_of(output) is None:
            step = analysis.record.steps[min(capture.across)]
            raise ExposureRefused(
                f"{self.where(step.module)} reads rows of different links by {operation_of(step)}; "
                "give every link one row of its own, as decoder(z[links[0]], z[links[1]]) has"
            )
        values = [capture.values[table] for table in offsets]
        builder = capture.tracer.builder
        value = values[0] if len(values) == 1 else builder.emit(Concatenate(tuple(values)), width)
        before = simplify(builder.operations, builder.widths, value)
        extracted = affine_start(before, plan.width, device)
        last, _ = links.builder.flat(links.output(output))
        after = simplify(links.builder.operations, links.builder.widths, last)
        run = CapturedRun(analysis, sites, capture.tensors, plan.offsets, extracted)
        return run, HeadGraph(width, tuple(after)), capture.across

    def _nodes_at(self, analysis: Analysis, end: int) -> Tensor:
        """[L] the node at one end of every link, as the lookups show it."""
        nodes = self.links[end].clone()
        seen = torch.zeros_like(nodes, dtype=torch.bool)
        for lookup in (*self.decoding.varied, *self.decoding.still):
            rows = analysis.value(analysis.record.steps[lookup.step].result).rows
            if end not in lookup.ends or len(rows) != 1:
                continue
            ids = lookup.part(rows[0].ids, end).movedim(lookup.axis, 0)
            ids = ids.reshape(len(lookup.links), -1)[:, 0]
            if bool((seen[lookup.links] & (nodes[lookup.links] != ids)).any()):
                raise ExposureRefused(
                    f"{self.call.text} looks up rows of different nodes for one end of a link; "
                    "look both up with the same numbers"
                )
            nodes[lookup.links], seen[lookup.links] = ids, True
        return nodes

    def _still(self, found: CapturedRun, record: Record) -> Substitutes:
        """What stays as it is while the varied end moves: the other end, and second ways."""
        decoding, instead = self.decoding, dict[int, Callable[..., Any]]()
        frozen = {one.step: frozenset({one.table}) for one in decoding.still}
        for place, numbers in {**frozen, **decoding.elsewhere}.items():
            instead[place] = _reading(record, place, {n: found.tensors[n] for n in numbers})
        for lookup in decoding.varied:
            if len(lookup.ends) == 2:
                instead[lookup.step] = _half(lookup, self.end, found.tensors[lookup.table])
        instead |= {place: return_fixed(kept) for place, kept in decoding.across.items()}
        return instead

    def _joined(
        self, run: _LinkReplay, before: HeadGraph, after: HeadGraph, logits: Tensor
    ) -> Exposure:
        mixture, everyone = run.mixture(), torch.arange(len(run.ends), device=run.ends.device)
        shift = len(before.operations)
        later = [
            replace(op, inputs=tuple(number + shift for number in op.inputs))
            for op in _by_row(after, run.behind(everyone))
        ]
        operations = (*_by_row(before, run.behind(run.ends)), *later)
        head = HeadGraph(before.width, operations)
        off = ends_in_sigmoid(head)
        if off:
            head = without_last(head)
            mixture = replace(mixture, called=mixture.called + SIGMOID_OFF)
        if is_affine(head):
            exposure = fold_affine(mixture, head, None)
        else:
            if not off and bool(((logits > 0) & (logits < 1)).all()):
                mixture = replace(mixture, called=mixture.called + BETWEEN)
            frozen = head(mixture.frozen_logits[0], torch.arange(mixture.num_nodes)).unsqueeze(0)
            replay = logit_of(run) if off else run
            exposure = mixture.with_head(head, frozen, replay=replay)
        return replace(exposure, residual=self._certify_links(exposure, run, logits, off))

    def _certify_links(
        self, exposure: Exposure, replay: _LinkReplay, logits: Tensor, off: bool
    ) -> float:
        """Largest difference from the model, beside what moved.

        Twice with everything else as it is; where nothing is held, once more with encoder and
        decoder as a whole and nothing put in the place of what they read.
        """
        gaps, frozen, nodes = list[float](), logits.double(), replay.nodes
        for seed in range(2 if self.decoding.second_ways else 3):
            drawn = random_admissible(nodes, seed, corners=0.5)
            tested = torch.ones(len(frozen), dtype=torch.bool)
            if seed == 2:
                tested, moving = replay.apart()
                drawn = torch.where(moving, drawn, nodes.coefficients[0])
            given = drawn[replay.terms].unsqueeze(0)
            expected = exposure.logits(given)[0]
            expected = expected.sigmoid() if off else expected
            seen = replay.of_nodes(drawn, whole=seed == 2)
            gaps.append(relative_gap(seen[tested], expected[tested], frozen[tested], logits.dtype))
        worst, limit = largest_gap(gaps), residual_limit(self.options.tolerance, logits.dtype)
        if not worst <= limit:
            raise ExposureRefused(
                f"with reweighted messages of the links' {ENDS[self.end]}s the model differs from "
                f"their mixture by {worst:.1e} of what they move, more than {limit:.0e}; "
                + residual_advice(worst, logits.dtype)
            )
        return worst


def _embeddings(analysis: Analysis, tables: Sequence[int]) -> tuple[int, ...]:
    """What lies between encoder and decoder: what the run pointed out, else what is looked up."""
    marked = set(analysis.record.marks)
    if not marked or not tables:
        return tuple(dict.fromkeys(tables))

    def follow(place: int) -> Sequence[int]:
        step = analysis.record.steps[place]
        return () if step.mixes or not marked.isdisjoint(step.outs) else step.inputs

    seen = set(analysis.record.walk_back(tables, follow))
    return tuple(sorted(seen & marked)) or analysis.record.marks


class _LinkCapture(Capture):
    """Follows rows of nodes to the lookups and rows of links from there."""

    def follow(self, links: Tracer, decoding: Decoding, end: int, offsets: dict[int, int]) -> None:
        """Say what is looked up of which end, and where its channels lie."""
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


def _reading(record: Record, place: int, others: Mapping[int, Tensor]) -> Callable[..., Any]:
    """An operation that reads other tensors in the place of some values."""
    step = record.steps[place]

    def put(shown: Any, given: Any) -> Any:
        if isinstance(shown, Ref):
            return others.get(shown.number, given)
        if isinstance(shown, list | tuple):
            return [put(s, g) for s, g in zip(shown, given, strict=True)]
        return given

    def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        named = {name: put(step.kwargs[name], value) for name, value in kwargs.items()}
        return func(*put(step.args, args), **named)

    return run


def _half(lookup: Lookup, end: int, table: Tensor) -> Callable[..., Any]:
    """A lookup of both ends of which one stays as it is."""

    def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out, before = func(*args, **kwargs), func(table, *args[1:], **kwargs)
        lookup.part(before, end).copy_(lookup.part(out, end))
        return before

    return run


def _by_row(head: HeadGraph, behind: Tensor) -> list[Operation]:
    """A head's operations with the constants of other rows: that of row behind[i] for row i."""
    by_row: list[Operation] = []
    for operation in head.operations:
        moved: dict[str, Any] = {
            name: value[behind]
            for name, value in operation.constants()
            if value.dim() == 2 and name != "weight"  # weights are shared, and so are vectors
        }
        if isinstance(operation, Opaque):
            moved = {"fixed": tuple(rows[behind] for rows in operation.fixed)}
        by_row.append(replace(operation, **moved) if moved else operation)
    return by_row


@dataclass(frozen=True, eq=False)
class _LinkReplay:
    """λ of the links' terms → the model's own logits of all rows, run with these messages.

    The N nodes of the graph keep their numbers, so that senders do, and have no terms; link i is
    row N + i. A run reweights every node once, so links that share an end take turns.
    """

    run: Replay
    nodes: Exposure
    """The mixture of all nodes, in the channels of the embedding (or before a head)."""
    ends: Tensor
    """[L] the node at the varied end."""
    others: Tensor
    """[L] the node at the other end, numbered through all types."""
    still: Substitutes
    """What stays as it is."""

    def behind(self, ends: Tensor) -> Tensor:
        """[N + L] what stands in each row: the first link's, which nobody reads, then each's."""
        return torch.cat([ends[:1].expand(self.nodes.num_nodes), ends])

    @cached_property
    def _cut(self) -> tuple[Tensor, Tensor]:
        return cut_terms(self.nodes.segments.view(-1), self.nodes.num_groups, self.ends)

    @property
    def terms(self) -> Tensor:
        """[T] the node's term behind each term of a link."""
        return self._cut[1]

    def mixture(self) -> Exposure:
        """The mixture of each link's varied end, beside the nodes."""
        nodes, behind = self.nodes, self.behind(self.ends)
        changed: dict[str, Any] = {
            "recipients": torch.arange(len(self.ends), device=behind.device) + nodes.num_nodes,
            "segments": self._cut[0],
            "rows": nodes.rows[self.terms],
            "coefficients": nodes.coefficients[:, self.terms],
            "fixed_logits": nodes.fixed_logits[:, behind],
            "frozen_logits": nodes.frozen_logits[:, behind],
            "state": nodes.state[:, behind],
            "embedding": None,
            "outputs": "labels",
        }
        return replace(nodes, **changed)

    def apart(self) -> tuple[Tensor, Tensor]:
        """Links whose varied end moves while no other end does, and the terms that move."""
        generator, count = torch.Generator().manual_seed(2), self.nodes.num_nodes
        inside = self.others < count  # otherwise it is of another type
        for share in (0.5, 0.0):
            chosen = torch.rand(count, generator=generator).to(self.ends.device) < share
            chosen[self.ends[0]] = True
            tested = chosen[self.ends] & ~(chosen[self.others * inside] & inside)
            if bool(tested.any()):
                break
        lengths = self.nodes.segments[:: self.nodes.num_groups].diff()
        return tested, torch.repeat_interleave(chosen, lengths)

    def of_nodes(self, coefficients: Tensor, whole: bool = False) -> Tensor:
        """Logits [L, 1] when every node has its own λ; ``whole``: and nothing stays as it is."""
        return self.run(coefficients, None if whole else self.still)

    def __call__(self, coefficients: Tensor) -> Tensor:
        alpha = self.nodes.coefficients[0].double()
        given = coefficients.reshape(-1).double().to(alpha.device)
        lengths = self._cut[0][:: self.nodes.num_groups].diff()
        out = alpha.new_zeros(self.nodes.num_nodes + len(self.ends), 1)
        order = torch.argsort(self.ends, stable=True)
        turn = torch.empty_like(order)  # how many earlier links share the varied end
        first = torch.searchsorted(self.ends[order], self.ends[order])
        turn[order] = torch.arange(len(order), device=order.device) - first
        for number in range(int(turn.max()) + 1):
            rows = turn == number
            in_turn = torch.repeat_interleave(rows, lengths)
            whole = alpha.clone()
            whole[self.terms[in_turn]] = given[in_turn]
            out[self.nodes.num_nodes :][rows] = self.of_nodes(whole)[rows]
        return out
