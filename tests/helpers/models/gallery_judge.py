"""The gallery's models under other coefficients, without anything of the package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.exposure import Exposure
from tests.helpers.models.gallery import Entry, graph
from tests.helpers.models.terms import dense


def drawn(exposure: Exposure, seed: int) -> Tensor:
    """Shares of each group's mass from a Dirichlet draw, one at a time, [T]."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.zeros(exposure.num_terms, dtype=torch.float64)
    ends, alpha = exposure.segments.tolist(), exposure.coefficients[0].double()
    for start, stop in pairwise(ends):
        shares = torch.rand(stop - start, generator=generator, dtype=torch.float64).log().neg()
        shares = shares / shares.sum().clamp(min=1e-300)
        out[start:stop] = shares * alpha[start:stop].sum()
    return out


@contextmanager
def reweighted(model: nn.Module, final: Sequence[str], ratios: Tensor) -> Iterator[None]:
    """While open, every message of the final convolutions' last runs is multiplied by λ / α.

    Heads are the second axis of a message; groups follow the order of convolutions and heads. A
    convolution named k times has its last k propagates reweighted.
    """
    modules, handles = dict(model.named_modules()), []
    totals = {name: _propagates(model, modules[name]) for name in final}
    for name in dict.fromkeys(final):
        conv, seen = modules[name], [0]
        first = sum(_heads(modules[other]) for other in final[: final.index(name)])

        def change(
            module: Any, inputs: Any, out: Tensor, *, seen: Any, first: int, skip: int
        ) -> Tensor:
            place = seen[0] - skip
            seen[0] += 1
            if place < 0:
                return out
            index = module.__dict__["_last_index"]
            heads = _heads(module)
            own = ratios[first + place * heads :][:heads]
            scale = own[:, index[1], index[0]].t().to(out)
            if hasattr(module, "num_stacks"):  # [stacks, entries, channels]
                return out * scale.t().unsqueeze(2)
            return out * (scale.unsqueeze(2) if out.dim() == 3 else scale)

        def note(module: Any, inputs: Any) -> None:
            module.__dict__["_last_index"] = inputs[0]

        skip = totals[name] - list(final).count(name)
        handles.append(conv.register_propagate_forward_pre_hook(note))
        handles.append(
            conv.register_message_forward_hook(
                lambda m, i, o, s=seen, f=first, k=skip: change(m, i, o, seen=s, first=f, skip=k)
            )
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _heads(conv: Any) -> int:
    return int(getattr(conv, "heads", None) or getattr(conv, "num_stacks", None) or 1)


def _propagates(model: nn.Module, conv: Any) -> int:
    """How often a convolution propagates in one run."""
    counted: list[int] = []
    handle = conv.register_propagate_forward_pre_hook(lambda *_: counted.append(1))
    run(model, graph(next(model.parameters()).dtype))
    handle.remove()
    return len(counted)


@torch.no_grad()
def run(model: nn.Module, data: Any) -> Tensor:
    if "edge_type" in model.forward.__code__.co_varnames:
        return model(data.x, data.edge_index, data.edge_type)
    return model(data.x, data.edge_index)


def judged(entry: Entry, model: nn.Module, exposure: Exposure, lam: Tensor) -> Tensor:
    """The model's own logits under λ, without anything of the package."""
    data = graph(next(model.parameters()).dtype)
    if entry.by_hand is not None:
        with torch.no_grad():
            return entry.by_hand(model, data, [*dense(exposure, lam).to(data.x)])
    if not entry.final:
        assert exposure.replay is not None
        return exposure.replay(lam)
    alpha = dense(exposure)
    ratios = torch.where(alpha > 0, dense(exposure, lam) / alpha, 1.0)
    with reweighted(model, entry.final, ratios):
        return run(model, data)
