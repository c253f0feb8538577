"""Single outputs after a nonlinear head: answers that hold, bounds that contain, proofs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure

NODES = 24


class Network(nn.Module):
    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.conv = SAGEConv(3, 4)
        self.after = after

    def forward(self, x, edge_index):
        return self.after(self.conv(x, edge_index))


def exposed(after: nn.Module, outputs: str, seed: int = 0) -> Exposure:
    torch.manual_seed(seed)
    model = Network(after).double()
    data = Data(x=torch.randn(NODES, 3).double(), edge_index=torch.randint(0, NODES, (2, 70)))
    return gr.expose(model, data, outputs=outputs)


def sampled(exposure: Exposure, draws: int = 400) -> np.ndarray:
    """Outputs [draws, N, K] at random λ, half of them corners."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for k in range(draws):
        shares = torch.rand(1, exposure.num_terms, generator=draw, dtype=torch.float64)
        shares = shares ** (1 if k % 2 else 40)
        ratio = exposure.mass / exposure.masses(shares).clamp(min=1e-300)
        lam = shares * torch.repeat_interleave(ratio.view(1, -1), exposure.segments.diff(), dim=1)
        found.append(exposure.logits(lam)[0].numpy())
    return np.stack(found)


@pytest.fixture(scope="module")
def bent():
    torch.manual_seed(0)
    return exposed(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), "labels")


def test_verdicts_agree_with_what_sampling_finds(bent):
    values = sampled(bent)
    solution = gr.solve(bent, torch.ones(NODES, 2), torch.arange(12))
    assert solution.check(bent).ok
    assert solution.target.tolist()[:4] == [0, 1, 0, 1]
    seen = values[:, solution.node, solution.target].max(0)
    assert (seen <= solution.bound + 1e-9).all()
    assert (solution.verdict[seen > 1e-6] == "can").all()
    cannot = solution.verdict == "cannot"
    assert (seen[cannot] <= 0).all()
    assert {"can", "cannot"} <= set(solution.verdict.tolist())


def test_a_claim_beyond_the_proof_is_noticed(bent):
    solution = gr.solve(bent, torch.ones(NODES, 2), torch.arange(3))
    lower = replace(solution, bound=solution.bound - 0.5)
    assert not lower.check(bent)
    higher = replace(solution, margin=solution.margin + 0.5)
    assert not higher.check(bent)
    with pytest.raises(InputError, match="hold a proof per output"):
        solution.save("nowhere")


def test_ranges_hold_every_sample_and_are_nearly_closed(bent):
    ranges = gr.value_range(bent, torch.arange(6), outputs=[1])
    assert all(ranges.check(bent))
    assert not ranges.exact
    values = sampled(bent)[:, ranges.lower.node, ranges.lower.target]
    assert (values >= ranges.low_bound - 1e-9).all()
    assert (values <= ranges.high_bound + 1e-9).all()
    assert (ranges.low_bound <= ranges.low + 1e-9).all()
    slack = (ranges.high_bound - ranges.high) + (ranges.low - ranges.low_bound)
    assert np.median(slack / (ranges.width + 1e-3)) < 0.3


@pytest.mark.parametrize("nodes", [[0, 1, 2], [5, 2, 9], [4, 1, 4]])
def test_answers_stand_in_the_order_of_the_questions(bent, nodes):
    """Node by node as asked, each with all of its outputs, as in closed form."""
    plain = exposed(nn.Linear(4, 2), "labels")
    for exposure in (bent, plain):
        ranges, labels = gr.value_range(exposure, nodes), gr.solve(exposure, "flip", nodes)
        for found in (ranges.lower, ranges.upper, labels):
            assert found.node.tolist() == np.repeat(nodes, 2).tolist()
            assert found.target.tolist() == [0, 1] * len(nodes)
        frozen = exposure.frozen_logits[0, nodes].numpy()
        np.testing.assert_array_equal(ranges.frozen.reshape(-1, 2), frozen)
        low, high = ranges.low.reshape(-1, 2), ranges.high.reshape(-1, 2)
        assert ((low <= frozen + 1e-9) & (frozen <= high + 1e-9)).all()
        assert all(ranges.check(exposure)) and labels.check(exposure).ok


def test_reach_counts_undecided_nowhere(bent):
    y = torch.ones(NODES, 2)
    found = gr.reach(bent, y, torch.arange(8))
    solution = gr.solve(bent, y, torch.arange(8))
    assert found.micro.total == int(solution.decided.sum())
    assert found.undecided == int((~solution.decided).sum())


def test_a_sigmoid_at_the_end_is_taken_off_and_the_rest_is_exact():
    last = nn.Linear(4, 2)
    plain = exposed(last, "labels")
    squashed = exposed(nn.Sequential(last, nn.Sigmoid()), "labels")
    assert squashed.head is None
    assert "sigmoid at its end is taken off" in squashed.called
    assert torch.allclose(plain.frozen_logits, squashed.frozen_logits, atol=1e-12)
    ours = gr.solve(squashed, "flip")
    theirs = gr.solve(plain, "flip")
    assert ours.margin == pytest.approx(theirs.margin, abs=1e-12)
    assert ours.check(squashed).ok


def test_as_a_value_the_sigmoid_stays():
    kept = exposed(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0)), "values")
    assert kept.head is not None
    ranges = gr.value_range(kept, torch.arange(3))
    assert ((ranges.low >= 0) & (ranges.high <= 1)).all()
    plain = gr.value_range(exposed(nn.Linear(4, 1), "values"), torch.arange(3))
    assert ranges.high == pytest.approx(1 / (1 + np.exp(-plain.high)), abs=1e-3)
    assert ranges.low == pytest.approx(1 / (1 + np.exp(-plain.low)), abs=1e-3)


def test_bent_labels_behind_a_sigmoid_are_replayed_in_logits():
    after = nn.Sequential(nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid())
    exposure = exposed(after, "labels")
    solution = gr.solve(exposure, torch.ones(NODES, 2), torch.arange(4))
    plain = exposed(after[:2], "labels")
    other = gr.solve(plain, torch.ones(NODES, 2), torch.arange(4))
    assert solution.verdict.tolist() == other.verdict.tolist()
    assert solution.check(exposure).ok


class Unit(nn.Module):
    """A row divided by its length."""

    def forward(self, x):
        return nn.functional.normalize(x, dim=1)


def test_outputs_of_normalised_rows_that_never_read_the_length():
    """The sign of w · x/‖x‖ is that of w · x, so that every answer has a closed form."""
    head = nn.Linear(4, 1, bias=False)
    nn.init.constant_(head.weight, 0.5)
    unit = exposed(nn.Sequential(Unit(), head), "labels", seed=3)
    plain = exposed(head, "labels", seed=3)
    chosen = torch.arange(10)
    found, told = (gr.solve(e, torch.ones(NODES, 1), chosen) for e in (unit, plain))
    assert found.check(unit).ok
    assert not ((found.bound < 0) & (told.margin > 0)).any()
    assert not ((found.margin > 0) & (told.margin < 0)).any()
    assert (told.margin > 0).any() and (told.margin < 0).any()


def heavier(part):
    return replace(part, coefficients=1.5 * part.coefficients)


def moved(part):
    """Every mass is kept, but by the next message of the first segment."""
    return replace(part, terms=part.terms[::-1].copy())


def lighter(part):
    return replace(part, margin=part.margin + 1e-3)


@pytest.mark.parametrize("damage", [heavier, moved, lighter])
def test_every_part_is_checked_by_all_of_its_own_proofs(bent, damage):
    solution = gr.solve(bent, torch.ones(NODES, 2), torch.arange(12))
    assert solution.check(bent).ok
    for k, part in enumerate(solution.parts):
        other = list(solution.parts)
        other[k] = replace(part, solution=damage(part.solution))
        assert not replace(solution, parts=tuple(other)).check(bent).ok


def test_a_part_that_does_not_win_when_run_again_is_noticed(bent):
    solution = gr.solve(bent, torch.ones(NODES, 2), torch.arange(12))
    assert (solution.verdict == "can").any()
    assert not solution.check(replace(bent, replay=lambda lam: -bent.replay(lam).abs())).ok


def test_a_range_is_the_best_that_any_round_attained_and_proved():
    """Whatever the rounds say of each question, stated is the largest margin and least bound."""
    torch.manual_seed(0)
    bent = exposed(nn.Sequential(nn.ReLU(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), "values")
    ranges = gr.value_range(bent, torch.arange(12), effort="fast")
    rounds = 0
    for end in (ranges.lower, ranges.upper):
        for i in range(len(end)):
            told = []
            for part in end.parts:
                here = (part.solution.recipient == end.recipient[i]) & (
                    part.output == end.target[i]
                )
                sign = 1 if end.wanted[i] else -1
                shift = sign * float(torch.as_tensor(part.threshold).expand(NODES)[end.node[i]])
                told += [
                    (part.solution.margin[j] + shift, part.solution.bound[j] + shift)
                    for j in np.flatnonzero(here)
                ]
            rounds = max(rounds, len({round(bound, 9) for _, bound in told}))
            assert end.margin[i] == pytest.approx(max(m for m, _ in told), abs=1e-9)
            assert end.bound[i] == pytest.approx(min(b for _, b in told), abs=1e-9)
    assert rounds > 1
