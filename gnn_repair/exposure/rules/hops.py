"""Convolutions that propagate several times: their filters as sparse matrices.

Each rule says at which sites (inputs of the convolution's linear maps) a polynomial of the
one-hop operator Â applied to the convolution's input appears. Paths to the same source combine
into one coefficient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gnn_repair.exposure.mixtures import (
    Context,
    Mixture,
    Split,
    Terms,
    aggregator_factor,
    mixtures_of,
)
from gnn_repair.exposure.rules.nodes import weighted
from gnn_repair.exposure.rules.sizes import estimated_terms, refuse_too_large
from gnn_repair.exposure.sites import Call, Site
from gnn_repair.exposure.value import Group

Matrix = Any
"""A scipy CSR matrix, recipients × sources, float64."""

NOISE = 1e-15
"""Entries this small beside the largest are rounding left over by cancelling paths."""


@dataclass(frozen=True)
class HopPolynomial:
    """One polynomial of Â, and where its product with the convolution's input appears."""

    site: Site
    label: str
    operator: Matrix


Filter = Callable[[Any, Matrix, Matrix, str, int], Iterator[HopPolynomial]]
"""(convolution, Â, S, its name, its invocation) → streams of S P(Â).

S is the identity, or some of its rows to see how large the polynomials get."""

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _part(name: str, part: str) -> str:
    """The name of a convolution's part in the model; the model may be the convolution."""
    return f"{name}.{part}" if name else part


def _power_label(power: int) -> str:
    return {0: "I", 1: "Â"}.get(power, "Â" + str(power).translate(SUPERSCRIPT))


def _powers(hop: Matrix, start: Matrix, count: int) -> Iterator[Matrix]:
    """S, S Â, …, S Â^count."""
    power = start
    yield power
    for _ in range(count):
        power = power @ hop
        yield power


def simple(conv: Any, hop: Matrix, start: Matrix, name: str, order: int) -> Iterator[HopPolynomial]:
    """SGConv: Â^K."""
    *_, last = _powers(hop, start, conv.K)
    yield HopPolynomial(Site("input", _part(name, "lin"), order), _power_label(conv.K), last)


def simple_spectral(
    conv: Any, hop: Matrix, start: Matrix, name: str, order: int
) -> Iterator[HopPolynomial]:
    """SSGConv: α I + (1 − α)/K Σ_k Â^k, one operator and so one group."""
    identity, *powers = _powers(hop, start, conv.K)
    total = conv.alpha * identity + (1 - conv.alpha) / conv.K * sum(powers)
    label = f"αI + (1−α)/K Σ Âᵏ, K = {conv.K}"
    yield HopPolynomial(Site("input", _part(name, "lin"), order), label, total.tocsr())


def personalised(
    conv: Any, hop: Matrix, start: Matrix, name: str, order: int
) -> Iterator[HopPolynomial]:
    """APPNP: Σ_{k<K} α (1−α)^k Â^k + (1−α)^K Â^K."""
    total = start
    for _ in range(conv.K):
        total = (1 - conv.alpha) * (total @ hop) + conv.alpha * start
    yield HopPolynomial(Site("output", name, order), f"Σ α(1−α)ᵏ Âᵏ, K = {conv.K}", total.tocsr())


def adaptive(
    conv: Any, hop: Matrix, start: Matrix, name: str, order: int
) -> Iterator[HopPolynomial]:
    """TAGConv: I, Â, …, Â^K, each with its own linear map."""
    for power, operator in enumerate(_powers(hop, start, len(conv.lins) - 1)):
        yield HopPolynomial(
            Site("input", _part(name, f"lins.{power}"), order), _power_label(power), operator
        )


def mixed(conv: Any, hop: Matrix, start: Matrix, name: str, order: int) -> Iterator[HopPolynomial]:
    """MixHopConv: Â^p for each of its powers."""
    for power, operator in enumerate(_powers(hop, start, max(conv.powers))):
        if power in conv.powers:
            site = Site("input", _part(name, f"lins.{power}"), order)
            yield HopPolynomial(site, _power_label(power), operator)


def chebyshev(
    conv: Any, hop: Matrix, start: Matrix, name: str, order: int
) -> Iterator[HopPolynomial]:
    """ChebConv: T_0 = I, T_1 = L̂, T_k = 2 L̂ T_{k−1} − T_{k−2}; signed."""
    before = operator = start
    for degree in range(len(conv.lins)):
        if degree == 1:
            operator = start @ hop
        elif degree > 1:
            before, operator = operator, (2 * (operator @ hop) - before).tocsr()
        label = f"T{str(degree).translate(str.maketrans('0123456789', '₀₁₂₃₄₅₆₇₈₉'))}(L̂)"
        yield HopPolynomial(Site("input", _part(name, f"lins.{degree}"), order), label, operator)


def mixtures_of_filter(rule: Filter, first: Call) -> list[Mixture]:
    """The groups of one run of a multi-hop convolution, from its first propagate."""
    split = weighted(first)
    states: Tensor = split.states[:, 0].contiguous()
    hop, context = one_hop(first, split), Context(states, states)
    found: list[Mixture] = []
    nodes, about = first.num_nodes, (first.site.name, first.invocation)
    terms = estimated_terms(
        lambda start: (s.operator for s in rule(first.conv, hop, start, *about)), nodes
    )
    refuse_too_large(terms, nodes)
    for stream in rule(first.conv, hop, sparse.identity(nodes, format="csr"), *about):
        name = f"{first.site.name} {stream.label}".strip()
        text = f"{type(first.conv).__name__}: α = entries of {stream.label}, h = its input"
        group = Group(name, text, "sparse product of Â")
        entries = Terms(*matrix_entries(stream.operator, states), states, context)
        found += mixtures_of(stream.site, 0, group, entries)
    return found


def one_hop(call: Call, split: Split) -> Matrix:
    """A propagate's operator, its aggregator's own factor included."""
    sources, recipients, _ = call.entries
    factor, _ = aggregator_factor(call, recipients)
    coefficients = split.coefficients if factor is None else split.coefficients * factor
    place = (recipients.cpu().numpy(), sources.cpu().numpy())
    values = coefficients.double().cpu().numpy()
    return sparse.coo_matrix((values, place), shape=(call.num_nodes,) * 2).tocsr()


def matrix_entries(operator: Matrix, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Recipients, sources and values of an operator, in the precision of ``like``."""
    operator.sort_indices()
    values = operator.data.copy()
    values[np.abs(values) <= NOISE * np.abs(values).max(initial=0)] = 0
    recipients = np.repeat(np.arange(operator.shape[0]), np.diff(operator.indptr))
    return (
        torch.from_numpy(recipients).to(like.device),
        torch.from_numpy(operator.indices.astype(np.int64)).to(like.device),
        torch.from_numpy(values).to(like.device, like.dtype),
    )
