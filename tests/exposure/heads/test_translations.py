"""Single operations: what a tail makes of them against PyTorch, on values it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.heads.head import simplify
from gnn_repair.exposure.heads.operations import HeadGraph, Opaque
from gnn_repair.exposure.heads.tracer import Tracer

N, D = 6, 6
"""As many nodes as channels, so that taking one axis for the other cannot go unnoticed."""
generator = torch.Generator().manual_seed(1)


def constant(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


BY_NODE, COLUMN, ROW, SQUARE = constant(N, D), constant(N, 1), constant(D), constant(D, D)
HEADS, PLACES = constant(2, 3, 4), torch.tensor([4, 0, 0, 5])
MASK = BY_NODE > 0
BILINEAR = constant(4, D, D)


def in_place(h: Tensor) -> Tensor:
    h = h.clone()
    view = h.view(N, 2, 3)
    view[:, 1] *= h[:, :3]
    h[:, 0].copy_(ROW[0].expand(N))
    h[:, 1:3].zero_()
    view.add_(1.0)
    return h


def preallocated(h: Tensor) -> Tensor:
    out = torch.full((N, 3, D), 0.3, dtype=h.dtype)
    out[:, 0] = h
    out[:, 2] = BY_NODE
    out[:, 1] += h.sin()
    return out.flatten(1)


def turned(h: Tensor) -> Tensor:
    return (SQUARE @ h.t()).t()


def rows_written(h: Tensor) -> Tensor:
    out = h.relu()
    out[:2] = BY_NODE[:2]
    out[2:4] += 1.0
    return out


def rows_divided(h: Tensor) -> Tensor:
    out = h.clone()
    out[:3] = out[:3] / BY_NODE[:3].exp()
    return out


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add by node": lambda h: torch.add(h, BY_NODE, alpha=0.3),
    "constant plus": lambda h: torch.add(BY_NODE, h, alpha=-2),
    "add a row": lambda h: h + ROW,
    "add itself": lambda h: torch.add(h, h.sin(), alpha=0.5),
    "subtract": lambda h: h - COLUMN,
    "from one": lambda h: 1 - h,
    "minus": torch.neg,
    "times by node": lambda h: h * BY_NODE,
    "times a column": lambda h: COLUMN * h,
    "divided": lambda h: h / (2 + BY_NODE.abs()),
    "dividing": lambda h: ROW / (2 + h.abs()),
    "quotient": lambda h: h / (2 + h.abs().flip(1)),
    "addcmul": lambda h: torch.addcmul(BY_NODE, h, ROW, value=0.7),
    "addcmul of two": lambda h: torch.addcmul(h, h, h.tanh(), value=-0.7),
    "addcmul of constants": lambda h: torch.addcmul(h, COLUMN, ROW, value=0.2),
    "lerp": lambda h: torch.lerp(h, h.relu(), 0.3),
    "lerp to a constant": lambda h: torch.lerp(BY_NODE, h, COLUMN.sigmoid()),
    "lerp between constants": lambda h: torch.lerp(BY_NODE, COLUMN.expand(N, D), h),
    "shaped like it": lambda h: torch.zeros_like(h) + h.relu() + h.new_ones(D),
    "masked": lambda h: h.masked_fill(MASK, 0.5),
    "square": lambda h: h**2,
    "cube": lambda h: h**3,
    "largest": lambda h: torch.maximum(h, BY_NODE),
    "smallest": lambda h: torch.minimum(h, h.flip(1)),
    "max of two": lambda h: torch.max(h, ROW.expand(N, D)),
    "max over halves": lambda h: h.view(N, 2, 3).max(1).values,
    "min over pairs": lambda h: h.view(N, 2, 3).amin(2),
    "max over all channels": lambda h: h.amax(1, keepdim=True) - h,
    "clamp": lambda h: h.clamp(-0.5, 0.7),
    "clamp below": lambda h: h.clamp(max=0.2),
    "clamp above": lambda h: h.clamp_min(0.2),
    "clamp by tensors": lambda h: h.clamp(min=BY_NODE),
    "elu": lambda h: F.elu(h, 0.6),
    "leaky": lambda h: F.leaky_relu(h, 0.3),
    "prelu": lambda h: F.prelu(h, ROW),
    "hardsigmoid": F.hardsigmoid,
    "threshold": lambda h: F.threshold(h, 0.1, 0.1),
    "threshold with a jump": lambda h: F.threshold(h, 0.1, 2.0),
    "glu by axis": lambda h: F.glu(h.view(N, 2, 3), 1).flatten(1),
    "log_sigmoid": F.logsigmoid,
    "sum over heads": lambda h: h.view(N, 2, 3).sum(1),
    "mean of all": lambda h: h - h.mean(1, keepdim=True),
    "mean over two axes": lambda h: h.view(N, 2, 3).mean((1, 2), keepdim=True).flatten(1) + h,
    "matrix": lambda h: h @ SQUARE,
    "matrix from the left": turned,
    "addmm": lambda h: torch.addmm(BY_NODE, h, SQUARE, beta=0.5, alpha=2),
    "addmm into it": lambda h: torch.addmm(h, h.relu(), SQUARE, beta=0.5),
    "vector": lambda h: (h @ ROW).unsqueeze(1) + h,
    "by heads": lambda h: torch.einsum("nhd,hde->nhe", h.view(N, 2, 3), HEADS).flatten(1),
    "shared over heads": lambda h: F.linear(h.view(N, 2, 3), HEADS[0].t(), HEADS[0, 0]).flatten(1),
    "batched": lambda h: torch.bmm(h.view(N, 2, 3), BY_NODE.view(N, 3, 2)).flatten(1),
    "batched with itself": lambda h: torch.bmm(h.view(N, 2, 3), h.view(N, 3, 2)).flatten(1),
    "baddbmm": lambda h: torch.baddbmm(
        h.view(N, 2, 3), BY_NODE.view(N, 2, 3), h.relu().view(N, 3, 2)[:, :, [0, 1, 1]]
    ).flatten(1),
    "bilinear": lambda h: F.bilinear(h, BY_NODE, BILINEAR, ROW[:4]),
    "bilinear from the right": lambda h: F.bilinear(BY_NODE, h, BILINEAR).relu(),
    "permuted": lambda h: h.view(N, 2, 3).permute(2, 0, 1).relu().permute(1, 2, 0).flatten(1),
    "chosen": lambda h: h[:, PLACES] * 2,
    "gathered": lambda h: h.gather(1, PLACES.expand(N, 4)).relu(),
    "chosen by node": lambda h: h.gather(1, BY_NODE.argsort(1)).relu(),
    "parts": lambda h: torch.cat([part * k for k, part in enumerate(h.split([1, 3, 2], 1))], 1),
    "unbound": lambda h: sum(part.tanh() for part in h.view(N, 3, 2).unbind(1)),
    "repeated": lambda h: h.repeat(1, 2).sigmoid(),
    "cat with a constant": lambda h: torch.cat([BY_NODE, h.relu(), ROW.expand(N, D)], 1),
    "stacked": lambda h: torch.stack([h, BY_NODE], 2).tanh().flatten(1),
    "layer norm": lambda h: F.layer_norm(h, (D,), ROW, BY_NODE[0], 1e-3),
    "layer norm of parts": lambda h: F.layer_norm(h.view(N, 2, 3), (3,)).flatten(1),
    "group norm": lambda h: F.group_norm(h, 3, ROW, BY_NODE[0], 1e-3),
    "batch norm": lambda h: F.batch_norm(h, ROW, ROW.square(), BY_NODE[0], BY_NODE[1], eps=1e-3),
    "batch norm of heads": lambda h: F.batch_norm(
        h.view(N, 2, 3), ROW[:2], ROW[:2].square()
    ).flatten(1),
    "normalised by axis": lambda h: F.normalize(h.view(N, 2, 3), dim=1).flatten(1),
    "norm kept": lambda h: h.norm(dim=1, keepdim=True) * h,
    "divided by its norm": lambda h: h / h.norm(dim=1, keepdim=True).clamp_min(0.1),
    "divided by another's norm": lambda h: h / h.relu().norm(dim=1, keepdim=True).clamp_min(0.1),
    "softmax of heads": lambda h: h.view(N, 2, 3).softmax(1).flatten(1),
    "log softmax": lambda h: h.log_softmax(-1),
    "logsumexp": lambda h: h.logsumexp(1, keepdim=True) + h,
    "cumulated": lambda h: h.cumsum(1),
    "cumulated over heads": lambda h: h.view(N, 2, 3).cumsum(1).flatten(1),
    "product of heads": lambda h: h.view(N, 2, 3).prod(1, keepdim=True).flatten(1) + ROW[:3],
    "sorted": lambda h: h.sort(1).values,
    "two largest": lambda h: h.topk(2, 1).values,
    "distances": lambda h: torch.cdist(h, SQUARE),
    "convolution of size one": lambda h: F.conv1d(h.unsqueeze(2), SQUARE.unsqueeze(2), SQUARE[0])[
        :, :, 0
    ],
    "where": lambda h: torch.where(MASK, h, h.exp()),
    "where, a constant": lambda h: torch.where(MASK, torch.inf, h).clamp(max=3.0),
    "masked by infinity": lambda h: h.masked_fill(MASK, -torch.inf).relu(),
    "rows of constants": lambda h: h.index_put((MASK[:, 0],), BY_NODE[MASK[:, 0]]).relu(),
    "entries of a constant": lambda h: h.index_put((MASK,), torch.tensor(0.5).double()),
    "rows copied": lambda h: h.index_copy(0, torch.tensor([3, 1]), BY_NODE[:2]),
    "rows written": rows_written,
    "rows divided": rows_divided,
    "infinity behind a mask": lambda h: torch.where(MASK, ROW, 1 / ((1 + h.abs()) * ~MASK)),
    "in place": in_place,
    "preallocated": preallocated,
}
UNKNOWN = {"cube", "clamp by tensors", "log_sigmoid", "sorted", "two largest"}
UNKNOWN |= {"threshold with a jump", "preallocated", "add itself", "chosen by node"}
"""Those that hold something without a form of its own (sin is one)."""


def tail_of(function: Callable[[Tensor], Tensor], value: Tensor, joined: bool) -> HeadGraph:
    with torch.no_grad(), Tracer(value) as tracer:
        out = function(value)
    number, frame = tracer.builder.flat(tracer.output(out))
    assert frame.axis == 0
    operations = tracer.builder.operations[:number]
    if joined:
        operations = simplify(tracer.builder.operations, tracer.builder.widths, number)
    return HeadGraph(value.shape[1], tuple(operations))


@pytest.mark.parametrize("joined", [False, True], ids=["as traced", "joined"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation_is_what_pytorch_does(name: str, joined: bool) -> None:
    function = FUNCTIONS[name]
    tail = tail_of(function, constant(N, D), joined)
    if joined:
        assert any(isinstance(op, Opaque) for op in tail.operations) == (name in UNKNOWN)
    # Messages of an isolated node are zero, and small ones are where an ε counts.
    for nodes, size in product((torch.arange(N), torch.tensor([4, 1, 1])), (2.0, 0.01, 0.0)):
        other = size * constant(N, D)
        expected = function(other).flatten(1)[nodes]
        torch.testing.assert_close(tail(other[nodes], nodes), expected, rtol=1e-12, atol=1e-12)


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "mean over nodes": lambda h: h - h.mean(0),
    "softmax over nodes": lambda h: h.softmax(0),
    "sum of all": lambda h: h * h.sum(),
    "product of all": lambda h: h * h.prod(),
    "products of nodes": lambda h: h @ h.t(),
    "matrix of nodes": lambda h: SQUARE @ h,
    "shuffled nodes": lambda h: (h[torch.tensor([1, 0, 2, 3, 4, 5])]).relu(),
    "shifted nodes": lambda h: h + h.roll(1, 0),
    "batch statistics": lambda h: F.batch_norm(h, None, None, training=True),
    "batch statistics beside running ones": lambda h: F.batch_norm(
        h, ROW.clone(), ROW.square(), training=True
    ),
    "norm over nodes": lambda h: F.normalize(h, dim=0),
    "largest node": lambda h: h - h.amax(0),
    "sorted nodes": lambda h: h.sort(0).values,
    "cumulated nodes": lambda h: h.cumsum(0),
    "place of the largest": lambda h: h * h.max(1).indices.unsqueeze(1),
    "layer norm over nodes": lambda h: F.layer_norm(h, (N, D)),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_is_not_nodewise_is_refused(name: str) -> None:
    with pytest.raises(ExposureRefused, match="after the last sum over messages"):
        tail_of(MIXING[name], constant(N, D), joined=True)


def test_checks_that_leave_the_output_alone_do_not_matter() -> None:
    def checked(h: Tensor) -> Tensor:
        assert not bool(h.isnan().any()) and float(h.abs().sum()) > 0
        return h.relu()

    assert [op.title for op in tail_of(checked, constant(N, D), joined=True).operations] == ["relu"]


def test_joining_shortens() -> None:
    fixed = constant(13, 3)

    def long(h: Tensor) -> Tensor:
        h = F.batch_norm(h @ SQUARE + BY_NODE, ROW, ROW.square()) * 2 + 1
        both = torch.cat([COLUMN, h.relu(), ROW.expand(N, D)], 1)
        return (both @ fixed)[:, [2, 0]]

    titles = [op.title for op in tail_of(long, constant(N, D), joined=True).operations]
    assert titles == ["affine", "relu", "affine"]
