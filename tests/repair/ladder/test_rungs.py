"""Rungs against what they are made of, and what a copy may see while it learns."""

from __future__ import annotations

import pytest
import torch
from toy_exposures import toy_exposure, toy_graph

from gnn_repair.errors import InputError
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.repair.evidence import EvidenceInputs, FeatureEvidence, gather_evidence
from gnn_repair.repair.evidence.features import DROPPED
from gnn_repair.repair.folds import as_targets, cross_roles, deal_folds
from gnn_repair.repair.inputs import repair_inputs
from gnn_repair.repair.ladder import RUNGS
from gnn_repair.repair.ladder.rungs import LabelsFeaturesReweighting, LabelsReweighting

DATA = toy_graph()
KNOWN = (DATA.train_mask | DATA.val_mask).t()
COPIES = 3
FOLDS = deal_folds(DATA.val_mask.t(), DATA.y, COPIES, 0)
ROLES = cross_roles(DATA.train_mask.t(), FOLDS, COPIES, 0.8)


def inputs_for(backbone: str, learning: bool = False, y: torch.Tensor = DATA.y) -> EvidenceInputs:
    exposure = toy_exposure(backbone)
    evidence = gather_evidence(exposure, y, KNOWN, DATA)
    roles = ROLES if learning else None
    return EvidenceInputs(repair_inputs(exposure), COPIES, evidence, roles)


def random_parameters(rung, inputs) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in rung.initial(inputs).items()
    }


def corrected(repair, p, inputs, targets):
    return repair.corrected(p, inputs, repair.tables(p, inputs), targets, None)


@pytest.mark.parametrize("name", list(RUNGS))
@pytest.mark.parametrize("backbone", ["sage", "mixhop"])
def test_every_rung_starts_as_frozen(name, backbone):
    inputs = inputs_for(backbone)
    rung = RUNGS[name](hidden=6)
    p = {**rung.initial(inputs), **rung.constants(inputs, as_targets(ROLES.judged, DATA.y))}
    found = corrected(rung, p, inputs, inputs.everyone)
    torch.testing.assert_close(found, inputs.frozen_logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backbone", ["sage", "gat", "mixhop"])
def test_evidence_adds_to_the_hidden_layer(backbone):
    """Written out: z⁰ + P 4 tanh(relu(c_v W + b + labels L + x F) V + a)."""
    inputs = inputs_for(backbone)
    rung = RUNGS["labels-features"](hidden=6)
    p = random_parameters(rung, inputs)
    plain = SetTranslation(hidden=6)
    hidden = plain.hidden_layer(p, inputs, plain.tables(p, inputs), inputs.everyone, None)
    labels = inputs.evidence.labels.histograms(inputs.evidence.labels.known)
    labels = labels.repeat_interleave(COPIES, 0)
    hidden = hidden + labels @ p["labels.weight"] + DATA.x @ p["features.weight"]
    raw = hidden.relu() @ p["head.2.weight"] + p["head.2.bias"].unsqueeze(1)
    shift = 4 * raw.tanh()
    expected = inputs.frozen_logits + shift - shift.mean(2, keepdim=True)
    torch.testing.assert_close(corrected(rung, p, inputs, inputs.everyone), expected)


@pytest.mark.parametrize("backbone", ["sage", "gat", "mixhop"])
def test_joint_reweighting_is_reweighting_plus_the_shift(backbone):
    inputs = inputs_for(backbone)
    rung = LabelsFeaturesReweighting(hidden=6)
    p = random_parameters(rung, inputs)
    reweighted = corrected(Reweighting(hidden=6), p, inputs, inputs.everyone)
    shifted = corrected(RUNGS["labels-features"](hidden=6), p, inputs, inputs.everyone)
    expected = reweighted + shifted - inputs.frozen_logits
    torch.testing.assert_close(corrected(rung, p, inputs, inputs.everyone), expected)


def shown_while_learning(y: torch.Tensor) -> torch.Tensor:
    """The histograms of six training steps, [copies, …]."""
    inputs = inputs_for("sage", learning=True, y=y)
    steps = []
    for step in range(6):
        inputs.begin_step(torch.tensor(4 * step))
        steps.append(inputs.labels_at(inputs.everyone))
    return torch.cat(steps, 2)


@pytest.mark.parametrize("fold", range(COPIES))
def test_a_copy_is_not_shown_its_own_fold_while_it_learns(fold):
    """Labels of one fold of member 0 are changed: its own copy learns as before, others do not."""
    usual = shown_while_learning(DATA.y)
    other = shown_while_learning(torch.where(FOLDS[0] == fold, (DATA.y + 1) % 3, DATA.y))
    for copy in range(COPIES):
        assert torch.equal(other[copy], usual[copy]) == (copy == fold)


def test_every_training_step_hides_other_labels_and_features():
    inputs = inputs_for("sage", learning=True)
    weight = torch.ones(2 * COPIES, 9, 1, dtype=torch.float64)
    seen = []
    for step in range(3):
        inputs.begin_step(torch.tensor(4 * step))
        labels, features = (
            inputs.labels_at(inputs.everyone),
            inputs.features_times(inputs.everyone, weight),
        )
        seen.append(torch.cat([labels.flatten(), features.flatten()]))
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_features_are_multiplied_and_dropped_alike_sparse_or_dense(share):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 300, generator=generator, dtype=torch.float64)
    x *= torch.rand(200, 300, generator=generator) < share
    evidence = FeatureEvidence(x)
    assert (evidence.features.sparse is not None) == (share < 0.05)
    weight = torch.randn(4, 300, 5, generator=generator, dtype=torch.float64)
    nodes = torch.randint(200, (4, 7), generator=generator)
    expected = torch.stack([x[nodes[m]] @ weight[m] for m in range(4)])
    torch.testing.assert_close(evidence.times_at(weight, nodes, None), expected)
    everyone = torch.arange(200).expand(1, -1)
    ones = torch.ones(1, 300, 1, dtype=torch.float64)
    counted = FeatureEvidence((x != 0).double()).times_at(ones, everyone, torch.tensor(7))
    kept = float(counted.sum() * (1 - DROPPED)) / float((x != 0).sum())
    assert abs(kept - (1 - DROPPED)) < 0.04


def test_a_rung_alone_is_refused_with_the_way_out():
    with pytest.raises(InputError, match="fit it as CrossFitted"):
        RUNGS["labels"]().fit(toy_exposure("sage"), DATA.y, DATA.train_mask, DATA.val_mask)
    with pytest.raises(InputError, match="is fitted as CrossFitted"):
        LabelsReweighting().fitted()
