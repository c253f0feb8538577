"""Shifts inside and outside D_v: planted both ways, and decided again by a general solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from displacement_judge import displacement_distance
from toy_exposures import toy_exposure

from gnn_repair.backbones import BACKBONES
from gnn_repair.errors import InputError
from gnn_repair.oracle.problems import FAILED
from gnn_repair.study import measures
from gnn_repair.study.measures import solve_displacements

EVERY = pytest.mark.parametrize("backbone", list(BACKBONES))


def shift_of(exposure, coefficients):
    """q = P(z(λ) − z⁰)."""
    moved = exposure.logits(coefficients) - exposure.frozen_logits[:, exposure.recipients]
    return moved - moved.mean(2, keepdim=True)


def tilted(exposure, seed):
    """Random admissible coefficients, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(2, exposure.num_terms, generator=generator, dtype=torch.float64)
    found = exposure.coefficients.double() * (draws - 0.3).clamp(min=0)
    # A group of which nothing is left keeps its frozen coefficients.
    lengths = exposure.segments.diff()
    kept = torch.repeat_interleave((exposure.masses(found) > 0).flatten(1), lengths, dim=1)
    found = torch.where(kept, found, exposure.coefficients.double())
    ratio = (exposure.mass / exposure.masses(found)).flatten(1).nan_to_num()
    return found * torch.repeat_interleave(ratio, lengths, dim=1)


@EVERY
def test_what_a_reweighting_made_is_inside(backbone):
    exposure = toy_exposure(backbone)
    for seed in range(3):
        found = solve_displacements(exposure, shift_of(exposure, tilted(exposure, seed)))
        assert found.inside.all()
        assert not found.outside.any()
        assert found.distance.max() < 1e-9


@EVERY
def test_the_frozen_rule_itself_is_inside(backbone):
    exposure = toy_exposure(backbone)
    nothing = torch.zeros(2, exposure.num_recipients, exposure.num_classes)
    assert solve_displacements(exposure, nothing).inside.all()
    # An offset that all classes share is no shift.
    assert solve_displacements(exposure, nothing + 3.0).inside.all()


@EVERY
def test_beyond_a_supporting_plane_is_outside(backbone):
    """From the point of D_v that is extreme in a direction, a step in that direction."""
    exposure = toy_exposure(backbone)
    direction = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    score = (exposure.contributions @ direction)[:, exposure.rows.long()]
    extreme = torch.zeros(2, exposure.num_terms, dtype=torch.float64)
    mass = exposure.mass.expand(2, -1, -1).flatten(1)
    for segment, (start, stop) in enumerate(exposure.segments.unfold(0, 2, 1).tolist()):
        for s in range(2):
            if stop > start:
                best = start + int(score[s, start:stop].argmax())
                extreme[s, best] = mass[s, segment]
    shift = shift_of(exposure, extreme)
    assert solve_displacements(exposure, shift).inside.all()
    for step in (1e-4, 1.0):
        found = solve_displacements(exposure, shift + step * direction)
        assert found.outside.all()
        # The plane is crossed by step · |d|², which no entry below this could do.
        least = step * float(direction @ direction) / float(direction.abs().sum())
        assert found.bound.min() >= least - 1e-9


@EVERY
def test_distances_are_those_of_a_general_solver(backbone):
    """highspy, on a formulation of its own, over shifts from tiny to large."""
    exposure = toy_exposure(backbone)
    generator = torch.Generator().manual_seed(1)
    shape = (2, exposure.num_recipients, exposure.num_classes)
    sizes = torch.logspace(-3, 1, exposure.num_recipients, dtype=torch.float64).view(1, -1, 1)
    shift = torch.randn(shape, generator=generator, dtype=torch.float64) * sizes
    found = solve_displacements(exposure, shift)
    expected = displacement_distance(exposure, shift).flatten().numpy()
    np.testing.assert_allclose(found.distance, expected, atol=1e-7)
    np.testing.assert_allclose(found.bound, expected, atol=1e-7)
    assert not found.undecided.any()


def test_members_and_nodes_are_chosen_like_the_oracles():
    exposure = toy_exposure("gcn")
    mask = torch.zeros(exposure.num_nodes, 2, dtype=torch.bool)
    mask[[3, 5], 0] = True
    mask[7, 1] = True
    shift = torch.zeros(2, exposure.num_recipients, exposure.num_classes)
    shift[0, 5, 1] = 50.0
    shift[1, 5, 1] = 50.0
    found = solve_displacements(exposure, shift, mask)
    assert found.member.tolist() == [0, 0, 1]
    assert found.node.tolist() == [3, 5, 7]
    assert found.inside.tolist() == [True, False, True]
    assert found.outside.tolist() == [False, True, False]


def test_recipients_in_another_order():
    exposure = toy_exposure("sage").restrict(torch.tensor([9, 2, 0, 4]))
    shift = shift_of(exposure, tilted(exposure, 0))
    found = solve_displacements(exposure, shift)
    assert found.node.tolist() == [9, 2, 0, 4] * 2
    assert found.inside.all()


def test_the_tolerance_is_relative_to_the_contributions():
    """Node 0 has one term, so that D_v = {0} and a shift is as far away as it is large."""
    exposure = toy_exposure("gcn").restrict(torch.tensor([0]))
    shift = torch.tensor([3e-4, -3e-4, 0.0], dtype=torch.float64).expand(2, 1, 3)
    found = solve_displacements(exposure, shift)
    np.testing.assert_allclose(found.distance, 3e-4, atol=1e-12)
    assert found.outside.all()
    assert solve_displacements(exposure, shift, tolerance=1e-2).inside.all()
    table = exposure.contributions - exposure.contributions.mean(2, keepdim=True)
    ours = float((exposure.mass.max() * table[:, exposure.rows.long()].abs().amax((1, 2))).min())
    growth = 400 / ours  # |m ℓ| becomes at least 400, and 1e-6 of it at least 4e-4
    mixture = growth * (exposure.frozen_logits - exposure.fixed_logits)
    large = replace(
        exposure,
        contributions=growth * exposure.contributions,
        frozen_logits=exposure.fixed_logits + mixture,
    )
    assert solve_displacements(large, shift).inside.all()
    assert solve_displacements(large, 2 * shift).outside.any()


def test_what_nobody_could_certify_is_undecided(monkeypatch):
    real = measures.solve_with_second_attempts

    def gives_up(*arguments):
        solved = real(*arguments)
        status = solved.status.copy()
        status[1::2] = FAILED
        return replace(solved, status=status)

    monkeypatch.setattr(measures, "solve_with_second_attempts", gives_up)
    exposure = toy_exposure("gcn")
    shift = torch.zeros(2, exposure.num_recipients, exposure.num_classes)
    shift[1, :, 0] = 100.0
    found = solve_displacements(exposure, shift)
    assert found.undecided.tolist() == [False, True] * exposure.num_recipients
    assert found.inside.sum() == exposure.num_recipients // 2
    assert found.outside.sum() == exposure.num_recipients // 2


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        (torch.zeros(2, 30, 4), "shape"),
        (torch.full((2, 30, 3), torch.nan), "NaN or infinite"),
        (None, "NoneType instead of"),
    ],
)
def test_shifts_that_are_none(shift, message):
    with pytest.raises(InputError, match=message):
        solve_displacements(toy_exposure("gcn"), shift)
