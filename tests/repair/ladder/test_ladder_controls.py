"""The controls: against independent implementations, and without a glance at test labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.nn import LabelPropagation as Reference

from gnn_repair.backbones import train_backbone
from gnn_repair.errors import InputError
from gnn_repair.repair import CorrectAndSmooth, CrossFitted, FittedRepair
from gnn_repair.repair.baselines import (
    SPREADS,
    FeaturePerceptron,
    LabelPropagation,
    RetrainedBackbone,
)
from gnn_repair.repair.folds import deal_folds
from tests.helpers.repair.planted_graphs import CLASSES, planted, planted_exposure, test_accuracy


def fit(repair, told_by: str, y: torch.Tensor | None = None, **options):
    data, exposure = planted(told_by)[1], planted_exposure(told_by)
    labels = data.y if y is None else y
    return repair.fit(exposure, labels, data.train_mask, data.val_mask, device="cpu", **options)


def misled(told_by: str) -> torch.Tensor:
    data = planted(told_by)[1]
    return torch.where(data.test_mask[:, 0], (data.y + 1) % CLASSES, data.y)


def test_the_perceptron_reads_features_and_no_graph():
    """Also of recipients in another order."""
    data, exposure = planted("features")[1], planted_exposure("features")
    method = FeaturePerceptron(hidden=16, folds=3)
    method = replace(method, budget=replace(method.budget, epochs=40))
    found, alone = fit(method, "features", data=data), data.clone()
    assert test_accuracy(found.member_logits(exposure), data) > 0.9
    assert found.num_parameters == 3 * (9 * 16 + 17 * 3)
    alone.edge_index = data.edge_index[:, :1]
    again = fit(method, "features", data=alone)
    assert torch.equal(again.member_logits(exposure), found.member_logits(exposure))
    backwards = exposure.restrict(exposure.recipients.flip(0))
    masks = data.train_mask, data.val_mask
    other = method.fit(backwards, data.y, *masks, data=data, device="cpu").member_logits(exposure)
    assert test_accuracy(other, data) > 0.9


def test_the_backbone_is_trained_anew_on_the_same_folds():
    """Against three models trained one by one, without dropout, which a stack draws together."""
    frozen, exposure = planted("labels")[0], planted_exposure("labels")
    calm = type(frozen.backbone)(replace(frozen.backbone.shape, dropout=0.0))
    found = fit(RetrainedBackbone(folds=3, seed=2), "labels", frozen=replace(frozen, backbone=calm))
    masks = frozen.data.train_mask, frozen.data.val_mask
    folds = deal_folds(masks[1].t(), frozen.data.y, 3, 2)[0]
    told = []
    for k in range(3):
        data = frozen.data.clone()
        data.train_mask = masks[0][:, 0] | ((folds >= 0) & (folds != k))
        data.val_mask, data.test_mask = folds == k, None
        one = train_backbone(calm, data, device="cpu", budget=frozen.budget)
        told.append(one.logits[0].double().log_softmax(1))
    expected = torch.stack(told).mean(0).log_softmax(1)
    torch.testing.assert_close(found.member_logits(exposure)[0], expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(found.single[0], torch.stack(told).argmax(2))


@pytest.mark.parametrize(
    ("repair", "needs"),
    [
        (LabelPropagation(), ("data",)),
        (RetrainedBackbone(folds=3), ("frozen",)),
        (FeaturePerceptron(hidden=4, folds=3), ("data",)),
        (CrossFitted(CorrectAndSmooth(layers=3), folds=3), ()),
    ],
    ids=["propagation", "retrained", "perceptron", "smoothing"],
)
def test_no_control_reads_a_test_label(repair, needs, tmp_path):
    frozen, data = planted("labels")
    given = {"data": data, "frozen": frozen}
    options = {name: given[name] for name in needs}
    exposure = planted_exposure("labels")
    usual = fit(repair, "labels", **options)
    other = fit(repair, "labels", misled("labels"), **options)
    assert torch.equal(usual.member_logits(exposure), other.member_logits(exposure))
    usual.save(tmp_path / "control.safetensors")
    again = FittedRepair.load(tmp_path / "control.safetensors")
    assert torch.equal(again.member_logits(exposure), usual.member_logits(exposure))
    with pytest.raises(InputError, match="fitted on a model with other weights"):
        again.member_logits(planted_exposure("nothing"))
    with pytest.raises(InputError, match=r"this is another one|fitted on another graph"):
        usual.unbound().member_logits(planted_exposure("nothing"))


@pytest.mark.parametrize(
    ("repair", "said"), [(FeaturePerceptron(hidden=4), "data="), (RetrainedBackbone(), "frozen=")]
)
def test_what_a_control_reads_is_asked_for(repair, said):
    with pytest.raises(InputError, match=said):
        fit(repair, "labels")


def test_label_propagation_is_pyg_s_at_the_strength_that_validation_labels_choose():
    """Also of labels at random on the graph: which strength is best differs from draw to draw."""
    data, exposure, chosen = planted("labels")[1], planted_exposure("labels"), set()
    plain = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    train, val = data.train_mask[:, 0], data.val_mask[:, 0]
    draw = torch.Generator().manual_seed(0)
    for y in (data.y, *(torch.randint(CLASSES, data.y.shape, generator=draw) for _ in range(5))):
        own = fit(LabelPropagation(layers=6), "labels", y, data=data).member_logits(exposure)

        def spread(alpha, known, y=y):
            return Reference(6, alpha)(y, plain, known, post_step=lambda out: out)

        hits = [int((spread(a, train).argmax(1) == y)[val].sum()) for a in SPREADS]
        chosen.add(best := SPREADS[hits.index(max(hits))])
        # PyG starts from y and mixes the same way; ours are shares of it.
        expected = spread(best, train | val)
        shares = expected / expected.sum(1, keepdim=True)
        torch.testing.assert_close(own[0].exp().float(), shares, rtol=1e-3, atol=1e-5)
    assert len(chosen) > 1
    alone = data.clone()
    alone.edge_index = data.edge_index[:, :0]
    found = fit(LabelPropagation(layers=6), "labels", data=alone).member_logits(exposure)[0].exp()
    even = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    torch.testing.assert_close(found[~(train | val)], even.expand(int((~(train | val)).sum()), -1))
