"""The operations of a model's run one by one, to name the one at fault when it is refused."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(frozen=True, eq=False)
class Step:
    """One operation as PyTorch dispatched it."""

    module: str
    """The name of the innermost module that ran it; empty: the model's own forward."""
    operation: str
    inputs: tuple[int, ...]
    """The numbers of the steps that made what it reads."""
    gave: Any
    """What it returned, where that is a Python number."""
    shapes: tuple[tuple[int, ...], ...] = ()
    sums: tuple[Tensor, ...] = ()
    """Of each floating result a weighted sum per node, or of all numbers where none of its axes
    runs over the nodes: enough to see a change."""
    pointwise: bool = False
    """Whether it works number by number, so that it cannot mix nodes itself."""
    undefined: bool = False
    """Whether it gave NaN, not only numbers that are too large."""

    def by_node(self, nodes: int) -> bool:
        """Whether a result has an axis over the nodes."""
        return any(nodes in shape for shape in self.shapes)

    def is_smaller(self, nodes: int) -> bool:
        """Whether its results are too small to hold something of every node."""
        return all(size < nodes for shape in self.shapes for size in shape)

    def place(self, model: nn.Module) -> str:
        """Where it ran, such as ``the PairNorm `norm```."""
        if not self.module:
            return f"{type(model).__name__}'s forward"
        return f"the {type(dict(model.named_modules())[self.module]).__name__} `{self.module}`"


class Steps(TorchDispatchMode):
    """While open, notes every operation."""

    def __init__(self, running: Sequence[str], nodes: int) -> None:
        """Watch a run.

        Args:
            running: the names of the modules that run now, the innermost last.
            nodes: N.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.running, self.nodes, self.found = running, nodes, list[Step]()
        # The tensors themselves are kept as well, so that no other comes to bear their identity.
        self._made: dict[int, tuple[Tensor, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note it."""
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        inputs = tuple(self._made[id(one)][1] for one in read if id(one) in self._made)
        out = func(*args, **(kwargs or {}))
        gave = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        if "empty" in func._schema.name:
            for one in gave:  # what lies in fresh memory differs from run to run
                one.zero_()
        dense = [one for one in gave if one.layout == torch.strided and one.is_floating_point()]
        self._made |= {id(one): (one, len(self.found)) for one in gave}
        self.found.append(
            Step(
                self.running[-1] if self.running else "",
                func._schema.name.partition("::")[2].strip("_"),
                inputs,
                None if gave else out,
                tuple(tuple(one.shape) for one in gave),
                tuple(self._sums(one.detach()) for one in dense),
                torch.Tag.pointwise in func.tags,
                any(bool(torch.isnan(one).any()) for one in dense),
            )
        )
        return out

    def _sums(self, value: Tensor) -> Tensor:
        axis = next((a for a, size in enumerate(value.shape) if size == self.nodes), None)
        count = 1 if axis is None else self.nodes
        rows = value.movedim(axis or 0, 0) if value.dim() else value
        rows = rows.reshape(count, value.numel() // count if count else 0)
        # Unequal weights: what normalises a node's channels keeps their plain sum.
        weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).cos()
        return rows.double() @ weights


class Rounded(TorchDispatchMode):
    """While open, every operation rounds once more: its results change in their last digit."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation; what only shows or overwrites other numbers is left as it is."""
        out = func(*args, **(kwargs or {}))
        fresh = all(one.alias_info is None for one in func._schema.returns)
        return tree_map_only(Tensor, self._again, out) if fresh else out

    def _again(self, value: Tensor) -> Tensor:
        if value.layout != torch.strided or value.dtype not in (torch.float32, torch.float64):
            return value
        digits = torch.empty(value.shape).uniform_(-1, 1, generator=self._generator).to(value)
        return value * (1 + torch.finfo(value.dtype).eps * digits)


def recorded(run: Callable[[], Any], running: Sequence[str], nodes: int) -> list[Step]:
    """The operations of a run, as far as it came."""
    # What it raises is told by whoever ran it first.
    with suppress(Exception), Steps(running, nodes) as steps:
        run()
    return steps.found


def first_mixing(
    base: Sequence[Step], other: Sequence[Step], moved: Tensor, limit: float
) -> Step | None:
    """The operation by which nodes that were left alone change after all; None: there is none.

    Args:
        base: one run.
        other: the same with what some nodes bring replaced.
        moved: [N] these nodes.
        limit: the rounding to allow, relative to the size of what an operation gave.
    """
    nodes = moved.numel()
    pairs = list(zip(base, other, strict=False))
    changed = [_differs(one, two, limit, None) for one, two in pairs]
    used = _ancestors(base)
    wrong = [
        number
        for number, (one, two) in enumerate(pairs)
        if changed[number] and one.by_node(nodes) and _differs(one, two, limit, ~moved)
    ]
    wrong = [number for number in wrong if number in used] or wrong
    if not wrong:
        return None
    place, reduced = wrong[0], [wrong[0]]
    while reduced:  # back to what took the nodes together
        place = reduced[-1]
        reduced = [n for n in base[place].inputs if changed[n] and base[n].is_smaller(nodes)]
    return base[place]


def first_decision(base: Sequence[Step], other: Sequence[Step]) -> Step | None:
    """The first number or choice of entries that differs between two runs of a model."""
    for one, two in zip(base, other, strict=False):
        if one.gave != two.gave or one.shapes != two.shapes:
            return one
    return None


def first_bend(
    base: Sequence[Step], up: Sequence[Step], down: Sequence[Step], limit: float
) -> Step | None:
    """The first operation that is not affine between three runs at equal distances."""
    for one, two, three in zip(base, up, down, strict=False):
        for middle, high, low in zip(one.sums, two.sums, three.sums, strict=False):
            if not middle.shape == high.shape == low.shape or not middle.numel():
                continue
            size = float(torch.stack([middle, high, low]).abs().max())
            if float((high + low - 2 * middle).abs().max()) > limit * size:
                return one
    return None


def first_broken(base: Sequence[Step], other: Sequence[Step]) -> Step | None:
    """The first operation that gives NaN or infinite numbers only in the other run."""
    for one, two in zip(base, other, strict=False):
        pairs = zip(one.sums, two.sums, strict=False)
        if any(
            bool(torch.isfinite(a).all()) and not bool(torch.isfinite(b).all()) for a, b in pairs
        ):
            return two
    return None


def _differs(one: Step, two: Step, limit: float, rows: Tensor | None) -> bool:
    for left, right in zip(one.sums, two.sums, strict=False):
        if left.shape != right.shape:
            return True
        size = float(torch.maximum(left.abs().max(), right.abs().max())) if left.numel() else 0.0
        some = rows if rows is not None and left.shape == rows.shape else slice(None)
        if rows is not None and left.shape != rows.shape:
            continue
        if not bool(((left - right)[some].abs() <= limit * size).all()):
            return True
    return False


def _ancestors(steps: Sequence[Step]) -> set[int]:
    """The steps that the last one depends on."""
    found, waiting = set[int](), [len(steps) - 1] if steps else []
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += steps[number].inputs
    return found


def raising_line(error: BaseException) -> str:
    """The line of code that raised, for errors that say nothing themselves, as assertions do."""
    return traceback.extract_tb(error.__traceback__)[-1].line or ""
