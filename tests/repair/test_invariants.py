"""What a repair is held against: the frozen model's accuracy, and what reweighting can do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from gnn_repair.repair import RefitHead
from gnn_repair.study.measures import solve_displacements
from tests.helpers.repair.contract_exposures import world
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("backbone", ["gat", "h2gcn"])
def test_the_head_is_refitted_on_embeddings_standardised_over_training_nodes(backbone, some):
    """Also of an exposure of some recipients; a coordinate that is constant is not divided."""
    exposure = toy_exposure(backbone)
    embedding = exposure.embedding.clone()
    embedding[:, :, 1] = 3.0
    exposure = replace(exposure, embedding=embedding)
    nodes = torch.arange(30).flip(0)[:-4] if some else torch.arange(30)
    exposure = exposure.restrict(nodes) if some else exposure
    train, val = (
        mask & torch.isin(torch.arange(30), nodes).unsqueeze(1)
        for mask in (DATA.train_mask, DATA.val_mask)
    )
    budget = replace(RefitHead().budget, epochs=9, learning_rate=0.02)
    fitted = RefitHead(budget=budget).fit(exposure, DATA.y, train, val, device="cpu")
    assert bool((fitted.best_epoch > 0).all())
    for s in range(2):
        rows = embedding[s, train[:, s]]
        deviation = rows.std(0, correction=0)
        standard = (embedding[s, nodes] - rows.mean(0)) / torch.where(
            deviation < 1e-6, 1.0, deviation
        )
        weight, bias = (fitted.parameters[f"head.{name}"][s] for name in ("weight", "bias"))
        torch.testing.assert_close(fitted.member_logits(exposure)[s], standard @ weight + bias)


def distance(exposure, shift: torch.Tensor, member: int, place: int) -> float:
    """min over λ ∈ Δ_v of the largest |P(z_v(λ) − z⁰_v) − P q_v| over classes, by a plain LP."""
    one = exposure.member(member)
    ends = one.segments[place * one.num_groups : (place + 1) * one.num_groups + 1]
    rows = one.rows[int(ends[0]) : int(ends[-1])].long()
    node = one.recipients[place]
    goal = shift + one.frozen_logits[0, node] - one.fixed_logits[0, node]
    goal = (goal - goal.mean()).numpy()
    columns = one.contributions[0, rows]
    columns = (columns - columns.mean(1, keepdim=True)).numpy().T
    group = np.repeat(np.arange(one.num_groups), ends.diff().numpy())
    masses = np.stack([group == g for g in range(one.num_groups)]).astype(float)
    least = np.full((len(goal), 1), -1.0)
    found = linprog(
        np.append(np.zeros(len(rows)), 1.0),
        np.block([[columns, least], [-columns, least]]),
        np.concatenate([goal, -goal]),
        np.append(masses, np.zeros((len(masses), 1)), 1),
        one.mass[0, place].numpy(),
    )
    return float(found.fun)


@pytest.mark.parametrize("kind", ["by-hand", "gat", "mixhop", "sage"])
def test_which_shifts_a_reweighting_could_make(kind):
    """Those of random reweightings, and of others some; a common offset does not matter."""
    exposure = world(kind).exposure
    members, terms = exposure.num_members, exposure.num_terms
    draw = torch.Generator().manual_seed(4)
    tilt = torch.rand(members, terms, generator=draw, dtype=torch.float64).square()
    tilted = exposure.coefficients * tilt
    ratio = (exposure.mass / exposure.masses(tilted)).flatten(1).nan_to_num()
    found = tilted * torch.repeat_interleave(ratio, exposure.segments.diff(), dim=1)
    moved = exposure.logits(found) - exposure.frozen_logits[:, exposure.recipients]
    beyond = torch.ones(members, exposure.num_recipients, 1, dtype=torch.float64)
    beyond[:, ::3] += 40 * torch.rand(beyond[:, ::3].shape, generator=draw, dtype=torch.float64)
    shift = beyond * moved + torch.randn(beyond.shape, generator=draw, dtype=torch.float64)
    every = torch.zeros(exposure.num_nodes, members, dtype=torch.bool)
    every[exposure.recipients[:18]] = True
    told = solve_displacements(exposure, shift, every)
    pairs = [(s, i) for s in range(members) for i in range(18)]
    away = np.array([distance(exposure, shift[s, i], s, i) for s, i in pairs])
    assert told.member.tolist() == [s for s, _ in pairs]
    near, far = away < 1e-8, away > 1e-4  # the tolerance lies between
    assert bool(told.inside[near].all()) and not told.outside[near].any()
    assert bool(told.outside[far].all()) and not told.inside[far].any()
    assert bool(near.any() and far.any()) and int((~near & ~far).sum()) < 3
