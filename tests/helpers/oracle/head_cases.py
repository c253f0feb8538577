"""Small models with tails, by hand: the exposure from algebra, the replay in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnn_repair.exposure.heads.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    HeadGraph,
    LayerNorm,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    Scale,
    Select,
    Softmax,
)
from gnn_repair.exposure.value import Exposure
from tests.helpers.hand_made import hand_made

HIDDEN, CLASSES, NODES = 8, 4, 24


@dataclass(frozen=True, eq=False)
class Opaque(Operation):
    """An operation nothing is known about."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return functional.softplus(values[0])

    @property
    def title(self) -> str:
        return "softplus"


def draw(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


class Builder:
    """Operations one after another."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def __call__(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations)

    def relu(self, value: int) -> int:
        return self.act(value, "relu")

    def act(self, value: int, name: str, parameter: float = 0.0) -> int:
        return self(Activation((value,), name, torch.tensor(parameter, dtype=torch.float64)))


def tail_of(kind: str, seed: int = 0, hidden: int = HIDDEN) -> HeadGraph:
    """A tail of one of the KINDS with random constants."""
    normal, add, h = draw(seed), Builder(), hidden
    zero = torch.zeros(h, dtype=torch.float64)
    head = (normal(CLASSES, h) / h**0.5, 0.1 * normal(CLASSES))
    start = add(Scale((0,), 1.0 + 0.1 * normal(h), 0.3 * normal(h)))
    if kind == "affine":
        last = start
    elif kind in ("relu", "elu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"):
        last = add.act(start, kind, 1.0 if kind == "elu" else 0.0)
    elif kind == "leaky_relu":
        slopes = torch.rand(h, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        last = add(Activation((start,), "leaky_relu", 1.5 * slopes - 0.25))
    elif kind == "bn_residual":
        skip = add(Constant((), normal(NODES, h)))
        last = add.relu(add(Add((start, skip), (1.0, 1.0))))
    elif kind == "jk_cat":
        first = add(Constant((), normal(NODES, h)))
        last = add(Concatenate((first, add.relu(start))))
        head = (normal(CLASSES, 2 * h) / h**0.5, 0.1 * normal(CLASSES))
    elif kind == "jk_max":
        first = add(Constant((), normal(NODES, h)))
        second = add(Select((start,), torch.arange(h).flip(0)))
        last = add(Maximum((first, start, second)))
    elif kind in ("layer_norm", "layer_norm_jk", "layer_norm_gelu"):
        weight, bias = 1.0 + 0.2 * normal(h), 0.3 * normal(h)
        norm = add(LayerNorm((start,), h, weight, bias, 1e-5))
        last = add.act(norm, "gelu" if kind.endswith("gelu") else "relu")
        if kind.endswith("jk"):
            last = add(Add((last, add(Constant((), normal(NODES, h)))), (1.0, 0.5)))
    elif kind == "group_norm":
        norm = add(LayerNorm((start,), h // 2, 1.0 + 0.2 * normal(h), 0.3 * normal(h), 1e-5))
        last = add.relu(norm)
    elif kind == "normalize":
        last = add.relu(add(Normalize((start,), h, 1e-12)))
    elif kind == "mlp":
        inner = add(Affine((add.relu(start),), normal(h, h) / h**0.5, 0.3 * normal(h)))
        last = add.relu(inner)
    elif kind == "gin":
        inner = add(Affine((start,), normal(h, h) / h**0.5, 0.3 * normal(h)))
        last = add.relu(inner)
    elif kind == "gate":
        gate = add.act(add(Affine((start,), normal(h, h) / h**0.5, zero)), "sigmoid")
        last = add(Multiply((gate, start)))
    elif kind == "softmax_gate":
        scores = add(Affine((start,), normal(2, h) / h**0.5, torch.zeros(2, dtype=torch.float64)))
        gate = add(Softmax((scores,), 2, False))
        spread = add(Select((gate,), (torch.arange(h) % 2)))
        last = add(Multiply((spread, start)))
    elif kind == "by_node":
        last = add.relu(add(Scale((start,), normal(NODES, h).abs() + 0.3, normal(NODES, h))))
    elif kind in ("softmax", "log_softmax"):
        logits = add(Affine((add.relu(start),), *head))
        add(Softmax((logits,), CLASSES, kind == "log_softmax"))
        return HeadGraph(h, tuple(add.operations))
    elif kind == "opaque":
        last = add(Opaque((start,)))
    else:
        raise AssertionError(kind)
    add(Affine((last,), *head))
    return HeadGraph(h, tuple(add.operations))


PIECEWISE = ("relu", "bn_residual", "jk_cat", "jk_max", "leaky_relu", "gin", "mlp", "by_node")
SMOOTH = ("elu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
NORMS = ("layer_norm", "layer_norm_jk", "layer_norm_gelu", "group_norm", "normalize")
OTHERS = ("affine", "gate", "softmax_gate", "softmax", "log_softmax")
KINDS = (*PIECEWISE, *SMOOTH, *NORMS, *OTHERS)


def mixture(seed: int, groups: int = 1, hidden: int = HIDDEN, widest: int = 7) -> Exposure:
    """Random aggregates: node 0 has no terms, node 1 only those of its last group."""
    rng, normal = np.random.default_rng(seed), draw(seed + 1)
    lengths = rng.integers(1, widest, (NODES, groups))
    lengths[0] = 0
    lengths[1, :-1] = 0
    segments = torch.tensor(np.append(0, np.cumsum(lengths.ravel())))
    count = int(segments[-1])
    rows = torch.tensor(rng.integers(0, NODES, count))
    alpha = torch.tensor(rng.random(count) + 0.05)[None]
    table, fixed = 1.5 * normal(1, NODES, hidden), 0.3 * normal(1, NODES, hidden)
    return hand_made(segments, rows, alpha, table, fixed, groups)


def tailed(kind: str, seed: int = 0, groups: int = 1, replayed: bool = True) -> Exposure:
    """An exposure with a tail; its replay is dense algebra in float32."""
    aggregate, tail = mixture(seed, groups), tail_of(kind, seed)
    logits = tail(aggregate.frozen_logits[0], torch.arange(NODES))
    replay = replay_of(aggregate, tail) if replayed else None
    return aggregate.with_head(tail, logits[None], replay=replay)


def replay_of(aggregate: Exposure, tail: HeadGraph) -> Callable[[Tensor], Tensor]:
    """Messages as a dense matrix by term, summed in float32; the tail on rounded aggregates."""
    ends = aggregate.segments[:: aggregate.num_groups]
    owner = torch.repeat_interleave(torch.arange(NODES), ends.diff())
    messages = aggregate.contributions[0, aggregate.rows.long()].float()

    def replay(coefficients: Tensor) -> Tensor:
        spread = torch.zeros(NODES, coefficients.numel())
        spread[owner, torch.arange(coefficients.numel())] = coefficients.float()
        mixed = spread @ messages + aggregate.fixed_logits[0].float()
        return tail(mixed.double(), torch.arange(NODES)).float()

    return replay


def random_coefficients(exposure: Exposure, rng: np.random.Generator) -> Tensor:
    """Admissible λ [1, T]: Dirichlet shares in every group, now and then a vertex."""
    ends, mass = exposure.segments.numpy(), exposure.mass[0].reshape(-1).numpy()
    out = np.zeros(exposure.num_terms)
    for g in range(len(ends) - 1):
        size = ends[g + 1] - ends[g]
        if size:
            sharp = rng.choice([0.05, 0.3, 1.0])
            share = rng.dirichlet(np.full(size, sharp)) if size > 1 else np.ones(1)
            out[ends[g] : ends[g + 1]] = mass[g] * share / share.sum()
    return torch.from_numpy(out)[None]


def margins_at(exposure: Exposure, coefficients: Tensor, target: int) -> np.ndarray:
    """[n]: the margin of one class at every recipient, by the tail itself."""
    logits = exposure.logits(coefficients)[0].numpy()
    rest = np.delete(logits, target, axis=1)
    return logits[:, target] - rest.max(1)
