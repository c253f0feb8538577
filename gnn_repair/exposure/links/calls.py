"""Which links are asked about, and how a model is asked about them.

Models have a forward of their own, encode and decode, or are an encoder beside a decoder. Whatever
the form, a call takes links [2, L] and gives their logits [L, 1].
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from gnn_repair.errors import InputError
from gnn_repair.exposure.calling import (
    GRAPHS,
    LOGITS,
    CallPlan,
    Forward,
    Given,
    Invocation,
    Relation,
    agree,
    choose_arguments,
    counts_of,
    invocation,
    is_typed,
    tensors_of,
    typed_arguments,
    typed_field,
    untyped_field,
)

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
        none = {name: Given(links[:, :0], "none") for name in sampled}
        given, text = _arguments(model, data, {**none, named[0]: Given(links, "links")})

        def score(_: Any, links: Tensor) -> Any:
            return model(**{**given(), named[0]: links})

        call = LinkCall(None, score, f"{title}.{text}")
        # What says of one link the same without the others is no graph that messages run along.
        if not apart or agree(call.run(links)[0][:1], call.run(links[:, :1])[0]):
            return call
    store = data if relation is None else data[relation]
    if len(names) != 1 or getattr(store, "edge_label_index", None) is None:
        raise InputError(
            f"{title}'s forward takes {', '.join(names) or 'nothing'}, none of them links, and it "
            f"has no encode and decode; {SAY}"
        )

    def of_data(_: Any, links: Tensor) -> Any:
        own = copy.copy(data)
        (own if relation is None else own[relation]).edge_label_index = links
        return model(own)

    return LinkCall(None, of_data, f"{title}.forward({names[0]})")


def _arguments(
    module: nn.Module, data: Any, known: CallPlan | None = None
) -> tuple[Callable[[], dict[str, Any]], str]:
    """What a forward is called with, as ``expose`` would find it beside what is known."""
    if is_typed(data):
        return typed_arguments(module, copy.copy(data), None, known)
    chosen, text = choose_arguments(module, copy.copy(data), known)
    return lambda: {name: given.value for name, given in chosen.items()}, text


def _encoder(
    model: nn.Module, data: Any, forward: Forward | None, methods: bool
) -> tuple[Callable[[], Any], str]:
    if forward is not None:
        return invocation(model, data, forward), "forward="
    call: Any = model.encode if methods else model
    fresh, text = _arguments(_signed(model) if methods else model, data)
    text = text.replace("forward", "encode") if methods else text
    return Invocation(lambda: call(**fresh()), text), text


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
        raise InputError(f"decoder is a {type(decoder).__name__}; {SAY}")
    inside = getattr(getattr(decoder, "__self__", None), "decoder", None)
    parameters = _parameters(decoder)
    if not parameters and isinstance(inside, nn.Module):
        parameters = _parameters(inside)
    names = [p.name for p in parameters]
    options = {"sigmoid": False} if "sigmoid" in names else {}
    rest = [p for p in parameters[2:] if p.default is p.empty and p.name not in options]
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


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Those that a function or a module's forward names; empty where it takes anything."""
    try:
        whole = function.forward if isinstance(function, nn.Module) else function
        parameters = inspect.signature(whole).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


# Which links -------------------------------------------------------------------------------------


def relation_of(data: Any, relation: Any) -> Relation | None:
    """The relation whose links are predicted; None in a graph of one type."""
    if not is_typed(data):
        if relation is not None:
            raise InputError(
                f"relation is {relation!r:.80}, but data is a {type(data).__name__} without types "
                "of nodes; leave it out, or pass a HeteroData"
            )
        return None
    if not isinstance(data, HeteroData):
        raise InputError(f"data is a {type(data).__name__} with types of nodes; pass a HeteroData")
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


def chosen_links(data: Any, links: Any, relation: Relation | None) -> Tensor:
    """[2, L]: the links that are given, or those that data holds."""
    store = data if relation is None else data[relation]
    links = getattr(store, "edge_label_index", None) if links is None else links
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
