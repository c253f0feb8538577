"""How a model of links is called: its own forward, encode and decode, or an encoder and a decoder.

Whatever the form, a call takes links [2, L] and gives their logits [L].
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused, GnnRepairError, InputError
from gnn_repair.exposure.argument_choice import choose_arguments
from gnn_repair.exposure.exactness import perturbation
from gnn_repair.exposure.hetero.arguments import typed_arguments
from gnn_repair.exposure.hetero.graph import Relation, is_typed
from gnn_repair.exposure.links.gathers import Gathers
from gnn_repair.exposure.model_call import Forward, Invocation

LINK = re.compile(r"edge_label_index|link|pair|(label|target|query|pred|pos)_?edge")
"""Names of a forward's parameter for the links to predict."""
SAMPLED = re.compile(r"^neg|negative")
"""Names of a parameter for links that are sampled and are none."""
INDEX = re.compile(r"edge|index|link|pair")
"""Names of a decoder's second parameter when it looks the ends up itself."""
SAY = "pass the encoder, and decoder=lambda z, links: ... that gives one logit a link"

Decoder = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class LinkCall:
    """One way of asking a model for links' logits."""

    model: nn.Module
    encode: Callable[[], Tensor] | None
    """Gives z; None where only the whole can be run."""
    score: Callable[[Tensor | None, Tensor], Any]
    """From z (None: run the encoder, too) and links to what the model says of them."""
    text: str
    still: frozenset[int] = frozenset()
    """Where tables lie that ends are looked up in and that are no embeddings."""

    def with_still(self, links: Tensor, data: Any) -> LinkCall:
        """The same call, knowing which tables it looks up that no message reaches."""
        held = [*self.model.parameters(), *self.model.buffers(), *_tensors_in(data)]
        still = {tensor.data_ptr() for tensor in held if tensor.layout == torch.strided}
        if self.encode is not None:
            z = self.encode()
            first, moved = (self._seen(links, one) for one in (z, _moved(z)))
            alike = zip(first, moved, strict=False)
            still |= {a.data_ptr() for a, b in alike if a is b or _is_same(a, b)}
        return replace(self, still=frozenset(still))

    def _seen(self, links: Tensor, z: Any) -> list[Tensor]:
        own = links.clone(memory_format=torch.contiguous_format)
        with Gathers(own, by_value=True) as gathers:
            self._said(z, own)
        return gathers.seen

    def run(
        self, links: Tensor, rows: Sequence[Tensor] | None = None, z: Tensor | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits [L, 1], and the tables that both ends were looked up in.

        Args:
            links: [2, L].
            rows: what to put in place of the ends' embeddings, [L, d] each.
            z: the embeddings where they are known already.
        """
        own = links.clone(memory_format=torch.contiguous_format)
        if self.encode is not None and z is None:
            z = self.encode()
        by_value = self.encode is not None
        with Gathers(own, rows, by_value, self.still) as gathers:
            out = self._said(z, own)
        if len(gathers.tables) < 2:
            raise ExposureRefused(
                f"{self.text} looks up no rows of its embeddings for the two ends of a link, so "
                f"what follows cannot be told from what came before; {SAY}"
            )
        return _column(out, own.shape[1]), gathers.tables

    def _said(self, z: Tensor | None, links: Tensor) -> Any:
        try:
            return self.score(z, links)
        except (GnnRepairError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise InputError(f"{self.text} raised {type(error).__name__}: {said}; {SAY}") from error


def _moved(z: Any) -> Any:
    """Other embeddings, as many and as large: what depends on them is another."""
    if isinstance(z, Mapping):
        return {key: _moved(value) for key, value in z.items()}
    return z + perturbation(z, seed=2) if isinstance(z, Tensor) else z


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and torch.equal(one, other)


def _tensors_in(data: Any) -> list[Tensor]:
    """The tensors that a graph holds."""
    stores = data.stores if hasattr(data, "stores") else [data if isinstance(data, dict) else {}]
    return [v for store in stores for v in store.values() if isinstance(v, Tensor)]


def _column(out: Any, count: int) -> Tensor:
    if isinstance(out, tuple | list) and len(out) and isinstance(out[0], Tensor):
        out = out[0]
    if not isinstance(out, Tensor) or not out.is_floating_point():
        raise InputError(f"the decoder gives {type(out).__name__}, not one logit a link; {SAY}")
    if tuple(out.shape) == (count, 2):  # of the two classes "no link" and "link"
        return out[:, 1:] - out[:, :1]
    if out.numel() != count or out.shape[:1] != (count,):
        raise InputError(
            f"the decoder gives a tensor of shape {list(out.shape)} for {count} links; {SAY}"
        )
    return out.reshape(count, 1)


def link_call(
    model: nn.Module,
    data: Any,
    decoder: Decoder | None,
    forward: Forward | None,
    relation: Relation | None = None,
) -> LinkCall:
    """How this model is asked about links.

    Args:
        model: the model.
        data: what it runs on.
        decoder: what gives logits, where the model is an encoder alone.
        forward: how the encoder is called.
        relation: of what the links are, in a graph of several node types.
    """
    has = [hasattr(model, name) for name in ("encode", "decode")]
    if decoder is None and not all(has):
        if forward is not None:
            raise InputError(
                f"forward= says how an encoder is called, and no decoder is there; {SAY}"
            )
        return _whole(model, data, relation)
    encode, text = _encoder(model, data, forward, all(has))
    score, words = _decoder(getattr(model, "decode", None) if decoder is None else decoder, encode)
    return LinkCall(model, encode, score, f"{text} and {words}")


def _whole(model: nn.Module, data: Any, relation: Relation | None) -> LinkCall:
    """A model whose forward takes the links beside the graph, or in it."""
    try:
        names = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        names = []
    named = [name for name in names if LINK.search(name)]
    if not named:
        return _of_data(model, data, relation, names)
    given, text = _arguments(model, data, named[0])

    def score(_: Tensor | None, links: Tensor) -> Any:
        # Where true and sampled links are taken apart, there are no sampled ones here.
        none = {name: links.new_zeros(2, 0) for name in names if SAMPLED.search(name)}
        return model(**{**given(), **none, named[0]: links})

    return LinkCall(model, None, score, f"{type(model).__name__}.{text}")


def _of_data(
    model: nn.Module, data: Any, relation: Relation | None, names: Sequence[str]
) -> LinkCall:
    """A model whose forward takes the graph, with the links in it."""
    held = _links_in(data, relation)
    if len(names) != 1 or held is None:
        raise InputError(
            f"{type(model).__name__}'s forward takes {', '.join(names) or 'nothing'}, none of them "
            f"links, and it has no encode and decode; {SAY}"
        )

    def score(_: Tensor | None, links: Tensor) -> Any:
        own = copy.copy(data)
        (own if relation is None else own[relation])[held] = links
        return model(own)

    return LinkCall(model, None, score, f"{type(model).__name__}.forward({names[0]})")


def _links_in(data: Any, relation: Relation | None) -> str | None:
    """The name under which a graph holds links."""
    store = data if relation is None else data[relation]
    return "edge_label_index" if getattr(store, "edge_label_index", None) is not None else None


def _arguments(
    module: nn.Module, data: Any, links: str
) -> tuple[Callable[[], dict[str, Any]], str]:
    """What a forward is called with beside its links, as ``expose`` would find it."""
    shown = copy.copy(data)
    none = [p for p in inspect.signature(module.forward).parameters if SAMPLED.search(p)]
    if is_typed(data):
        plan, text = typed_arguments(module, shown, None, (links, *none))
        return plan, text
    for name in (links, *none):
        if getattr(shown, name, None) is None:
            few = getattr(data, "edge_index", None)
            setattr(shown, name, few[:, :1] if isinstance(few, Tensor) else None)
    chosen, text = choose_arguments(module, shown)
    return lambda: {name: given.value for name, given in chosen.items() if name != links}, text


def _encoder(
    model: nn.Module, data: Any, forward: Forward | None, methods: bool
) -> tuple[Callable[[], Tensor], str]:
    if forward is not None:
        return Invocation(lambda: forward(model, data), "given by forward="), "forward="
    call: Any = model.encode if methods else model
    shown = _signed(call, getattr(model, "encoder", None)) if methods else model
    if is_typed(data):
        fresh, text = typed_arguments(shown, data, None)
    else:
        plan, text = choose_arguments(shown, data)
        arguments = {name: given.value for name, given in plan.items()}
        fresh = arguments.copy
    text = text.replace("forward", "encode" if methods else "forward")
    return Invocation(lambda: call(**fresh()), text), text


def _signed(method: Callable[..., Any], inner: Any) -> nn.Module:
    """A module with the method's signature; that of ``inner`` where it takes anything."""
    kinds = [p.kind for p in inspect.signature(method).parameters.values()]
    if isinstance(inner, nn.Module) and all(k in (2, 4) for k in map(int, kinds)):
        return inner
    shell = nn.Module()
    shell.__dict__["forward"] = method
    return shell


def _decoder(
    decoder: Decoder | None, encode: Callable[[], Tensor]
) -> tuple[Callable[[Tensor | None, Tensor], Any], str]:
    if not callable(decoder):
        raise InputError(f"decoder is a {type(decoder).__name__}; {SAY}")
    inside = getattr(getattr(decoder, "__self__", None), "decoder", None)
    parameters = _parameters(decoder, inside)
    names = [p.name for p in parameters]
    options = {"sigmoid": False} if "sigmoid" in names else {}
    rest = [p for p in parameters[2:] if p.default is p.empty and p.name not in options]
    other = [p.name for p in rest if not INDEX.search(p.name) or p.name.endswith("type")]
    if other:
        raise InputError(
            f"the decoder takes {other[0]!r}, too, which nothing here says for a link; pass the "
            f"encoder, and decoder=lambda z, links: ... that hands it its {other[0]}"
        )
    named, z = len(names) > 1 and INDEX.search(names[1]), encode()
    by_rows = not named and isinstance(z, Tensor) and not _looks_up(decoder, z)

    def score(z: Tensor | None, links: Tensor) -> Any:
        assert z is not None
        if by_rows:
            return decoder(z[links[0]], z[links[1]], **options)
        # An older way of writing it takes true and sampled links apart; here are no sampled ones.
        return decoder(z, links, *[links.new_zeros(2, 0) for _ in rest], **options)

    form = "two rows" if by_rows else "z and links"
    return score, f"a decoder of {form}" + ", without its sigmoid" * bool(options)


def _looks_up(decoder: Decoder, z: Any) -> bool:
    """Whether a decoder takes z and links, and looks the ends up itself: tried on one link."""
    links = torch.tensor([[0], [1]], device=z.device if isinstance(z, Tensor) else None)
    try:
        with Gathers(links, by_value=True) as gathers:
            decoder(z, links)
    except Exception:
        return False
    if len(gathers.tables) == 2:
        return True
    try:
        decoder(z[links[0]], z[links[1]])
    except Exception:  # it takes z and links after all, and looks up no rows: refused by name
        return True
    return False


def _parameters(decoder: Decoder, inside: Any) -> list[inspect.Parameter]:
    try:
        module = decoder.forward if isinstance(decoder, nn.Module) else decoder
        found = list(inspect.signature(module).parameters.values())
    except (TypeError, ValueError):
        return []
    plain = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not plain and isinstance(inside, nn.Module):
        return _parameters(inside, None)
    return plain
