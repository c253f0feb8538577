"""A propagate as mixtures: signs, kinds, blocks and means against dense algebra."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn.aggr import MaxAggregation, MeanAggregation, SumAggregation

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.mixtures import (
    Context,
    Split,
    Terms,
    aggregator_factor,
    is_sum_or_mean,
    mixtures_of,
    mixtures_of_split,
)
from gnn_repair.exposure.names import ONE_KIND
from gnn_repair.exposure.sites import Site
from gnn_repair.exposure.value import Exposure, Group

NODES, WIDTH = 4, 3
SITE = Site("aggregate", "conv", 0)
GROUP = Group("Â", "rule", "weights")
SOURCES = torch.tensor([1, 0, 3, 2, 1, 0])
RECIPIENTS = torch.tensor([2, 0, 0, 2, 1, 2])
"""Node 3 receives nothing; entries are not in the order of their recipients."""
WEIGHTS = torch.tensor([0.5, -2.0, 0.0, 3.0, 1.0, -0.25], dtype=torch.float64)


def states(rows: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows + len(shape))
    return torch.randn(rows, *shape, dtype=torch.float64, generator=generator)


def dense(weights: Tensor, rows: Tensor) -> Tensor:
    """Σ over entries of weight × row, by recipient."""
    out = torch.zeros(NODES, *rows.shape[1:], dtype=torch.float64)
    for recipient, weight, row in zip(RECIPIENTS, weights, rows, strict=True):
        out[recipient] += weight * row
    return out


def made(weights: Tensor, by_entry: bool = False) -> tuple[list[Any], Tensor]:
    table = states(6 if by_entry else NODES, WIDTH)
    context = Context(table, states(NODES, WIDTH))
    terms = Terms(RECIPIENTS, SOURCES, weights, table, context, by_entry)
    rows = table if by_entry else table[SOURCES]
    return mixtures_of(SITE, 1, GROUP, terms), dense(weights, rows)


@pytest.mark.parametrize("by_entry", [False, True])
@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS.abs(), -WEIGHTS.abs(), WEIGHTS.abs() + 1])
def test_signed_entries_become_positive_mixtures(weights: Tensor, by_entry: bool) -> None:
    found, expected = made(weights, by_entry)
    torch.testing.assert_close(sum(m.value(m.coefficients) for m in found), expected)
    signs = [sign for sign in (1, -1) if bool((weights * sign > 0).any())]
    assert [mixture.sign for mixture in found] == signs
    signed = bool((weights < 0).any())
    for mixture in found:
        mark = "+" if mixture.sign > 0 else "−"
        assert mixture.group.name == (f"Â {mark}" if signed else "Â")
        assert (mark in mixture.group.rule) is signed
        kept = (weights * mixture.sign > 0).nonzero().view(-1)
        order = kept[torch.argsort(RECIPIENTS[kept], stable=True)]
        assert mixture.sources.tolist() == SOURCES[order].tolist()
        assert mixture.entries.tolist() == order.tolist()
        assert mixture.rows.tolist() == (order if by_entry else SOURCES[order]).tolist()
        torch.testing.assert_close(mixture.coefficients, weights[order].abs())
        counts = [int((RECIPIENTS[kept] == v).sum()) for v in range(NODES)]
        assert mixture.indptr.diff().tolist() == counts
        assert mixture.block == 1
        held = mixture.state_sources
        assert held is None if not by_entry else held.tolist() == SOURCES.tolist()
        masses = [float(weights[kept][RECIPIENTS[kept] == v].abs().sum()) for v in range(NODES)]
        assert mixture.reach == pytest.approx(max(masses) * float(mixture.states.abs().max()))


def test_nothing_but_zeros_is_a_group_without_terms() -> None:
    (empty,) = made(torch.zeros(6, dtype=torch.float64))[0]
    assert empty.rows.numel() == 0 and empty.indptr.tolist() == [0] * (NODES + 1)


def test_entries_in_order_are_left_in_order() -> None:
    recipients = torch.tensor([0, 0, 2])
    table = states(NODES, WIDTH)
    terms = Terms(
        recipients, torch.tensor([3, 1, 0]), WEIGHTS[3:].abs(), table, Context(table, table)
    )
    (mixture,) = mixtures_of(SITE, 0, GROUP, terms)
    assert mixture.entries is None and mixture.sources.tolist() == [3, 1, 0]
    (by_entry,) = mixtures_of(
        SITE, 0, GROUP, Terms(recipients, terms.sources, terms.coefficients, table[:3],
                              Context(table, table), True),
    )  # fmt: skip
    assert by_entry.rows.tolist() == [0, 1, 2]


def call(module: Any = None, given: Any = None, arguments: Any = None) -> Any:
    return SimpleNamespace(
        site=SITE, kind="Conv", title="`conv` (Conv)", num_nodes=NODES, given=given,
        entries=(SOURCES, RECIPIENTS, None), value=states(NODES, WIDTH),
        arguments=arguments or {}, conv=SimpleNamespace(aggr_module=module, aggr="max"),
    )  # fmt: skip


def test_aggregators() -> None:
    for module in (None, SumAggregation()):
        assert aggregator_factor(call(module), RECIPIENTS) == (None, "")
    factor, words = aggregator_factor(call(MeanAggregation()), RECIPIENTS)
    assert (words, factor.dtype) == (" / degree", torch.float64)
    torch.testing.assert_close(factor, 1 / torch.tensor([3, 2, 2, 3, 1, 3], dtype=torch.float64))
    with pytest.raises(ExposureRefused, match="aggregates by max"):
        aggregator_factor(call(MaxAggregation()), RECIPIENTS)
    found = [is_sum_or_mean(m) for m in (None, SumAggregation(), MeanAggregation())]
    assert found == [True] * 3 and not is_sum_or_mean(MaxAggregation())


@pytest.mark.parametrize("module", [None, MeanAggregation()])
@pytest.mark.parametrize("by_block", [False, True])
def test_blocks_and_kinds_add_up_to_the_propagate(module: Any, by_block: bool) -> None:
    weights = torch.stack([WEIGHTS, WEIGHTS.flip(0)], 1) if by_block else WEIGHTS
    kinds = torch.tensor([0, 2, 2, 0, 2, 2])
    split = Split(weights, states(NODES, 2, WIDTH), "α = w", "weights", kinds=kinds)
    found = mixtures_of_split(call(module), split, ["head 1", "head 2"])
    assert {mixture.group.name.rstrip(" +−") for mixture in found} == {
        f"head {block} relation {kind}" for block in (1, 2) for kind in (0, 2)
    }
    factor = 1.0 if module is None else 1 / torch.tensor([3, 2, 2, 3, 1, 3], dtype=torch.float64)
    for block in range(2):
        own = weights[:, block] if by_block else weights
        expected = dense(own * factor, split.states[SOURCES, block])
        parts = [m.value(m.coefficients) for m in found if m.block == block]
        torch.testing.assert_close(sum(parts), expected)
        for kind in (0, 2):
            named = [m for m in found if m.block == block and f"relation {kind}" in m.group.name]
            expected = dense(own * factor * (kinds == kind), split.states[SOURCES, block])
            torch.testing.assert_close(sum(m.value(m.coefficients) for m in named), expected)
    ending = "" if module is None else " / degree"
    assert {m.group.coefficients_from for m in found} == {"weights" + ending}


def context(given: Any, **more: Any) -> Context:
    split = Split(WEIGHTS.abs() + 1, states(NODES, 2, WIDTH), "rule", "weights", **more)
    (first, *_) = mixtures_of_split(call(given=given), split, ["a", "b"])
    return first.context


def test_what_repairs_see_of_a_convolution() -> None:
    x, y, flat = states(NODES, 5), states(NODES, 5) + 1, states(NODES, 2, WIDTH).flatten(1)
    assert context(x).messages is x and context(x).state is x
    assert context((x, y)).messages is x and context((x, y)).state is y
    unusable = [
        None, x.long(), x[:, 0], x[1:], (x, None), (x, states(NODES, 6)), (None, x),
        (x[:, :, None], x[:, :, None]),
    ]  # fmt: skip
    for given in unusable:
        seen = context(given)
        torch.testing.assert_close((seen.messages, seen.state), (flat, flat))


def test_what_repairs_see_of_messages_by_entry() -> None:
    rows = states(6, 2, WIDTH)
    own = states(NODES, 2, WIDTH)
    split = Split(WEIGHTS, rows, "rule", "weights", by_entry=True, own_states=own)
    seen = mixtures_of_split(call(), split, ["a", "b"])[0].context
    torch.testing.assert_close((seen.messages, seen.state), (rows.flatten(1), own.flatten(1)))
    split = Split(WEIGHTS, rows, "rule", "weights", by_entry=True)
    seen = mixtures_of_split(call(), split, ["a", "b"])[0].context
    total = dense(WEIGHTS.abs(), rows)
    mass = dense(WEIGHTS.abs(), torch.ones(6, 1, dtype=torch.float64)).unsqueeze(2)
    torch.testing.assert_close(seen.state, torch.where(mass > 0, total / mass, 0.0).flatten(1))
    assert bool((seen.state[3] == 0).all())


def test_messages_of_other_nodes_are_refused() -> None:
    split = Split(WEIGHTS, states(NODES, 1, WIDTH), "rule", "weights")
    fine = {"x": (states(NODES, 2), None), "size": (3, 4), "y": [states(NODES, 1)]}
    assert mixtures_of_split(call(arguments=fine), split, ["a"])
    for arguments in ({"x": (states(5, 2), None)}, {"y": [states(3, 1)]}):
        with pytest.raises(ExposureRefused, match="pass a graph of several node types"):
            mixtures_of_split(call(arguments=arguments), split, ["a"])
    many = Split(WEIGHTS, states(NODES + 1, 1, WIDTH), "rule", "weights")
    with pytest.raises(ExposureRefused, match="receives from 5 nodes"):
        mixtures_of_split(call(), many, ["a"])
    by_entry = Split(WEIGHTS, states(6, 1, WIDTH), "rule", "weights", by_entry=True)
    assert mixtures_of_split(call(), by_entry, ["a"])


def test_what_an_exposure_is_unless_it_says_so() -> None:
    defaults = {f.name: f.default for f in fields(Exposure) if f.default is not MISSING}
    assert defaults == {
        "root": False, "origin": "", "fixed": "biases", "embedding": None, "residual": None,
        "fingerprint": (), "called": "", "n_id": None, "outputs": "classes", "graph_starts": None,
        "names": ONE_KIND,
    }  # fmt: skip
