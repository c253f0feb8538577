"""The stack of heads against arithmetic written out, and what a copy may see while it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.budget import LADDER
from gnn_repair.methods import RUNGS
from gnn_repair.repair import EvidenceLadder
from gnn_repair.repair.evidence import DROPPED, FeatureEvidence, evidence_of
from gnn_repair.repair.folds import deal_folds, fold_roles
from gnn_repair.repair.ladder.network import Heads, LadderTrainee, Sources, climb
from gnn_repair.repair.targets import prepare
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
COPIES, HIDDEN = 3, 6
NAMES = [name for name, rung in RUNGS.items() if rung.blocks]


def task_of(backbone: str = "sage", y: torch.Tensor = DATA.y):
    return prepare(toy_exposure(backbone), y, DATA.train_mask, DATA.val_mask, DATA, "cpu")


def dealt_for(task) -> torch.Tensor:
    return deal_folds(task.val, task.labels, COPIES, 0)


def sources_of(task) -> Sources:
    return Sources.of(task, evidence_of(task))


def random_parameters(heads: Heads) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in heads.initial(0).items()
    }


@pytest.mark.parametrize("backbone", ["sage", "gat", "mixhop"])
def test_every_head_is_its_arithmetic(backbone):
    """W relu(Σ x_b V_b + b) + c, or z⁰ + P 4 tanh of it, rung by rung and copy by copy."""
    sources = sources_of(task_of(backbone))
    heads = Heads(NAMES, sources, COPIES, HIDDEN)
    p = random_parameters(heads)
    found = heads.log_probs(p)
    labels = sources.evidence.labels
    tables = {
        "messages": sources.messages,
        "labels": labels.histograms(labels.known),
        "similar": labels.similar_histograms(labels.known),
        "features": DATA.x.expand(2, -1, -1),
    }
    for r, name in enumerate(NAMES):
        for s in range(2):
            for k in range(COPIES):
                row = (r * 2 + s) * COPIES + k
                hidden = p["bias"][row] + sum(
                    tables[block][s] @ p[block][row] for block in RUNGS[name].blocks
                )
                raw = hidden.relu() @ p["last"][row] + p["last bias"][row]
                if RUNGS[name].keeps:
                    shift = 4 * raw.tanh()
                    raw = sources.frozen[s] + shift - shift.mean(1, keepdim=True)
                torch.testing.assert_close(found[r, s, k], raw.log_softmax(1))


def trainee_of(task) -> LadderTrainee:
    heads = Heads(NAMES, sources_of(task), COPIES, HIDDEN)
    return LadderTrainee(
        heads, fold_roles(task, COPIES, 0), task.labels, folds=COPIES, dropout=0.2, seed=0
    )


def losses(y: torch.Tensor) -> torch.Tensor:
    """Of six training steps with random parameters, [rungs, members, copies, steps]."""
    trainee = trainee_of(task_of(y=y))
    trainee.parameters = random_parameters(trainee.heads)
    steps = []
    for _ in range(6):
        trainee.begin_epoch()
        steps.append(trainee.losses(None))
    return torch.stack(steps, 1).unflatten(0, (len(NAMES), 2, COPIES))


@pytest.mark.parametrize("fold", range(COPIES))
def test_a_copy_is_not_shown_its_own_fold_while_it_learns(fold):
    """Labels of one fold of member 0 are changed: its own copy learns as before, others do not."""
    dealt = dealt_for(task_of())
    changed = torch.where(dealt[0] == fold, (DATA.y + 1) % 3, DATA.y)
    # Folds are dealt by class; other labels must not move them here.
    usual, other = losses(DATA.y), losses_in_folds(changed, dealt)
    for k in range(COPIES):
        assert torch.equal(other[:, 0, k], usual[:, 0, k]) == (k == fold)


def losses_in_folds(y: torch.Tensor, dealt: torch.Tensor) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnn_repair.repair.folds.deal_folds", lambda *given: dealt)
        return losses(y)


def test_the_loss_is_shared_as_roles_say():
    task = task_of()
    trainee = trainee_of(task)
    heads, roles = trainee.heads, fold_roles(task, COPIES, 0)
    trainee.parameters = {n: torch.zeros_like(v) for n, v in random_parameters(heads).items()}
    trainee.begin_epoch()
    found = trainee.losses(None).unflatten(0, (len(NAMES), 6))
    frozen = heads.sources.frozen.repeat_interleave(COPIES, 0).log_softmax(2)
    likely = frozen.gather(2, task.labels.expand(6, -1).unsqueeze(2)).squeeze(2)
    expected = -(likely * roles.weights).sum(1)
    even = torch.full_like(expected, float(torch.tensor(3.0).log()))
    for r, name in enumerate(NAMES):
        wanted = expected if RUNGS[name].keeps else even
        torch.testing.assert_close(found[r], wanted, rtol=1e-5, atol=1e-6)


def test_no_label_that_judges_a_copy_chooses_its_epoch():
    """A copy's score is what the other copies of its rung and member get right."""
    task = task_of()
    trainee = trainee_of(task)
    trainee.parameters = random_parameters(trainee.heads)
    trainee.first = 1
    trainee.begin_epoch()
    assert trainee.scores(None).tolist() == [-1] * len(NAMES) * 2 * COPIES  # too early
    trainee.begin_epoch()
    scores = trainee.scores(None).view(len(NAMES), 2, COPIES)
    told = trainee.heads.log_probs(trainee.parameters).argmax(4)
    folds = dealt_for(task)
    right = torch.stack(
        [((told[:, :, k] == DATA.y) & (folds == k)).sum(2) for k in range(COPIES)], 2
    )
    for k in range(COPIES):
        others = [i for i in range(COPIES) if i != k]
        assert torch.equal(scores[:, :, k], right[:, :, others].sum(2))


def test_given_epochs_are_kept():
    task = task_of()
    sources, roles = sources_of(task), fold_roles(task, COPIES, 0)
    wanted = torch.tensor([[[0, 3, 1], [2, 3, 0]]])
    budget = replace(LADDER, epochs=3, patience=None)
    found = climb(
        ["features"], sources, roles, task.labels,
        EvidenceLadder(folds=COPIES, hidden=HIDDEN, dropout=0.0, budget=budget), epochs=wanted,
    )  # fmt: skip
    assert torch.equal(found.best_epoch, wanted)
    heads = Heads(["features"], sources, COPIES, HIDDEN)
    untrained = heads.log_probs(heads.initial(0))
    torch.testing.assert_close(found.log_probs[0, 0, 0], untrained[0, 0, 0])
    assert not torch.allclose(found.log_probs[0, 0, 1], untrained[0, 0, 1])


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_features_are_multiplied_and_dropped_alike_sparse_or_dense(share):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 300, generator=generator, dtype=torch.float64)
    x *= torch.rand(200, 300, generator=generator) < share
    evidence = FeatureEvidence(x)
    assert (evidence.features.sparse is not None) == (share < 0.05)
    weight = torch.randn(300, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(evidence.times(weight, None), x @ weight)
    ones = torch.ones(300, 1, dtype=torch.float64)
    counted = FeatureEvidence((x != 0).double()).times(ones, torch.tensor(7))
    kept = float(counted.sum() * (1 - DROPPED)) / float((x != 0).sum())
    assert abs(kept - (1 - DROPPED)) < 0.04
    first, second = (evidence.times(weight, torch.tensor(seed)) for seed in (1, 2))
    assert not torch.equal(first, second)
