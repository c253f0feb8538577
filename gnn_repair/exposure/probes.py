"""How a model's logits answer to the tensor at one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.sites import Site
from gnn_repair.exposure.slices import slices

EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest relative deviation of an exposure from its model, by the model's precision: a hundred
(float32) or some thousand (float64) roundings, as sums over a node's terms add up."""

WORST_ROUNDING = 100.0
"""How many times EXACT rounding can be where a model amplifies it (1e-3 in float32, 1e-10 in
float64): it then has lost all but three of its seven digits, and beyond that neither its logits nor
an answer about them mean anything. No larger tolerance is offered or taken."""

AFFINE_SLACK = 10.0
"""Probes move the logits further than any mixture does, so they may round this much more."""


def residual_limit(tolerance: float | None, dtype: torch.dtype) -> float:
    """The largest residual that is accepted of a model in this precision."""
    if tolerance is None:
        return EXACT[dtype]
    most = WORST_ROUNDING * EXACT[dtype]
    if not isinstance(tolerance, int | float) or not 0 <= tolerance <= most:
        raise InputError(
            f"tolerance is {tolerance!r:.20}; rounding of {dtype} explains at most {most:.0e}, and "
            "an exposure that is further off is not one of this model: choose between 0 and that"
        )
    return tolerance


class Runs(Protocol):
    """A model that can be run with the tensors at some sites replaced."""

    def run(self, replaced: Mapping[Site, Tensor]) -> Tensor:
        """The logits."""


class Probed(Runs, Protocol):
    """One that can tell what went wrong in such a run."""

    def told_of_numbers(self, site: Site, value: Tensor, other: Tensor) -> str:
        """What to say of logits that are not finite with another value at a site."""


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found."""

    local: bool
    """Only the perturbed nodes' logits moved."""
    affine: bool
    """They moved in proportion."""
    centred: bool = False
    """Both hold only up to a shift common to a node's classes (a log_softmax head)."""
    idle: bool = False
    """No logit moved at all."""

    @property
    def final(self) -> bool:
        """Whether the site belongs to the final aggregation."""
        return self.local and self.affine


@dataclass(frozen=True, eq=False)
class Tail:
    """The affine map from a site to the logits: z_v = … + Σ_b W[:, b] value[v, b]."""

    weight: Tensor
    """[C, B, D], or [N, C, B, D] where it differs by node (``by_node``)."""
    centred: bool

    @property
    def by_node(self) -> bool:
        """Whether every node has its own W."""
        return self.weight.dim() == 4

    def answer(self, change: Tensor, some: slice = slice(None)) -> Tensor:
        """The change of some nodes' logits [n, C] for a change [N, B, D] of the site's value."""
        pattern = "ncbd,nbd->nc" if self.by_node else "cbd,nbd->nc"
        weight = self.weight[some] if self.by_node else self.weight
        return torch.einsum(pattern, weight, change[some].double())


def centre(logits: Tensor) -> Tensor:
    """Logits without the shift common to all classes."""
    return logits - logits.mean(1, keepdim=True)


def deviation(left: Tensor, right: Tensor, *scales: Tensor) -> Tensor:
    """Per node: max_c |left − right| / max(1, largest |logit|), [N]."""
    parts = [
        _deviation(left[some], right[some], *(scale[some] for scale in scales))
        for some in slices(*left.shape)
    ]
    return torch.cat(parts)


def _deviation(left: Tensor, right: Tensor, *scales: Tensor) -> Tensor:
    size = torch.stack([t.abs().amax(1) for t in (left, right, *scales)]).amax(0).clamp(min=1)
    return (left - right).abs().amax(1) / size


def perturbation(value: Tensor, seed: int, size: float | None = None) -> Tensor:
    """Random, of the given size or as large as the value itself, to cross any kink that follows."""
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
    # In double precision: the squares of large values overflow.
    norm = float(torch.linalg.vector_norm(value, dtype=torch.float64))
    size = size or norm / value.numel() ** 0.5 or 1.0
    return noise.to(value).mul_(size)


def probe(watch: Probed, site: Site, value: Tensor, logits: Tensor) -> ProbeResult:
    """Perturb half of the nodes at a site, up and down, and see which logits move and how."""
    limit = EXACT[logits.dtype] * AFFINE_SLACK
    moved = torch.arange(value.shape[0], device=value.device) % 2 == 0
    change = perturbation(value, seed=1)
    change[~moved] = 0
    up = watch.run({site: value + change})
    _refuse_overflow(watch, up, site, value, value + change)
    if up.shape != logits.shape or bool(
        (deviation(centre(up), centre(logits)) > limit)[~moved].any()
    ):
        return ProbeResult(local=False, affine=False)
    down = watch.run({site: value - change})
    _refuse_overflow(watch, down, site, value, value - change)
    for centred in (False, True):
        three = [centre(z) if centred else z for z in (up, down, logits)]
        middle = three[0] / 2 + three[1] / 2
        if bool((deviation(middle, three[2], three[0], three[1]) <= limit).all()):
            return ProbeResult(True, True, centred, idle=bool(torch.equal(up, logits)))
    return ProbeResult(local=True, affine=False)


def _refuse_overflow(
    watch: Probed, logits: Tensor, site: Site, value: Tensor, other: Tensor
) -> None:
    if not bool(torch.isfinite(logits).all()):
        raise ExposureRefused(watch.told_of_numbers(site, value, other))


def find_tail(watch: Runs, site: Site, value: Tensor, centred: bool, by_node: bool) -> Tail:
    """W by backward passes (by one run per channel where gradients are cut off).

    Args:
        by_node: find a W for every node, one pass per class. Otherwise nodes take turns at the
            classes in a single pass, and W is by node only where that shows them to differ.
    """
    leaf = value.detach().clone().requires_grad_()
    with torch.enable_grad():
        # A product, not the leaf itself: some convolutions change their aggregate in place.
        logits = watch.run({site: leaf * 1})
        logits = centre(logits) if centred else logits
        by_runs = partial(_weight_by_runs, watch, site, value, logits.detach(), centred)
        if not logits.requires_grad:
            return Tail(by_runs(), centred)
        shared = None if by_node else _shared_weight(logits, leaf)
        if shared is not None:
            return Tail(shared, centred)
        columns = []
        for column in logits.unbind(1):
            answers = _gradient(column, leaf, torch.ones_like(column))
            if answers is None:
                return Tail(by_runs(), centred)
            columns.append(answers)
    return Tail(torch.stack(columns, dim=1).double(), centred)


def _gradient(logits: Tensor, leaf: Tensor, asked: Tensor) -> Tensor | None:
    """None where the logits do not come from the leaf."""
    return torch.autograd.grad(logits, leaf, asked, retain_graph=True, allow_unused=True)[0]


def _shared_weight(logits: Tensor, leaf: Tensor) -> Tensor | None:
    """[C, B, D] if nodes asked about the same class agree, else None."""
    nodes, classes = logits.shape
    if nodes < 2 * classes:
        return None
    asked = torch.zeros_like(logits)
    asked[torch.arange(nodes), torch.arange(nodes) % classes] = 1
    answers = _gradient(logits, leaf, asked)
    return None if answers is None else _agreed([answers[c::classes] for c in range(classes)])


def _agreed(columns: list[Tensor]) -> Tensor | None:
    """[C, …] from each class's values at some nodes [n, …], if the nodes agree."""
    bounds = [torch.aminmax(column, dim=0) for column in columns]
    low = torch.stack([bound.min for bound in bounds])
    high = torch.stack([bound.max for bound in bounds])
    size = torch.maximum(low.abs(), high.abs()).max()
    agreed = bool((high - low).max() <= EXACT[low.dtype] * size)
    return (low.double() + high.double()) / 2 if agreed else None


def _weight_by_runs(
    watch: Runs, site: Site, value: Tensor, logits: Tensor, centred: bool
) -> Tensor:
    other = watch.run({site: value + perturbation(value, seed=7)})
    if torch.equal(centre(other) if centred else other, logits):
        return value.new_zeros(logits.shape[1], *value.shape[1:], dtype=torch.float64)
    step = float(value.abs().max()) or 1.0
    flat = value.shape[1:].numel()
    columns = []
    for channel in range(flat):
        change = torch.zeros_like(value).flatten(1)
        change[:, channel] = step
        answer = watch.run({site: value + change.view_as(value)})
        answer = centre(answer) if centred else answer
        columns.append((answer - logits) / step)
    weight = torch.stack(columns, dim=2).view(*logits.shape, *value.shape[1:])
    shared = _agreed(list(weight.unbind(1)))
    return weight.double() if shared is None else shared


def tail_error(
    watch: Runs, site: Site, value: Tensor, logits: Tensor, tail: Tail, size: float
) -> float:
    """Perturb all nodes at once by this size: how well W predicts the logits."""
    change = perturbation(value, seed=2, size=size)
    seen, worst = watch.run({site: value + change}), []
    for some in slices(value.shape[0], value[:1].numel()):
        pair = seen[some].double(), logits[some].double() + tail.answer(change, some)
        worst.append(deviation(*(centre(z) if tail.centred else z for z in pair)).max())
    return float(torch.stack(worst).max())
