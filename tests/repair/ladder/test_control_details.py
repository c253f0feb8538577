"""Controls, kept predictions and likeness by hand: each clause alone, each constant named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.repair import evidence as graph_evidence
from gnn_repair.repair.baselines import LabelPropagation
from gnn_repair.repair.evidence import evidence_of
from gnn_repair.repair.folds import deal_folds
from gnn_repair.repair.targets import RepairTrainee, as_targets, prepare
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

NODES, CLASSES = 5, 3


def kept(**changes):
    constants = {
        "signature": torch.zeros(2, NODES),
        "log_probs": torch.zeros(2, NODES, CLASSES),
        "single": torch.tensor([[[0, 1, 2, 0, 1]], [[2, 2, 2, 0, 0]]]),
        **changes,
    }
    constants = {name: value for name, value in constants.items() if value is not None}
    return SimpleNamespace(
        constants=constants, num_classes=CLASSES, num_members=2, single=constants.get("single")
    )


def test_a_kept_prediction_is_checked_clause_by_clause():
    LabelPropagation().check_constants(kept())
    LabelPropagation().check_constants(kept(single=None))
    one_off = kept().single.clone()
    one_off[1, 0, 3] = 3
    below = kept().single.clone()
    below[0, 0, 0] = -1
    for changes, words in [
        ({"signature": torch.zeros(2, NODES, dtype=torch.float64)}, "signature has shape"),
        ({"log_probs": torch.zeros(2, NODES, CLASSES + 1)}, r"log_probs has shape \(5, 4\)"),
        ({"log_probs": torch.zeros(2, NODES + 1, CLASSES)}, r"log_probs has shape \(6, 3\)"),
        ({"log_probs": None}, "lacks log_probs"),
        ({"single": torch.zeros(2, 1, NODES)}, "single has shape"),
        ({"single": torch.zeros(2, 1, NODES + 1, dtype=torch.long)}, "single has shape"),
        ({"single": one_off}, r"single must lie in 0..2"),
        ({"single": below}, r"single must lie in 0..2"),
        ({"more": torch.zeros(2)}, "has no constant 'more'"),
    ]:
        with pytest.raises(InputError, match=words):
            LabelPropagation().check_constants(kept(**changes))


def test_evidence_of_a_graph_with_and_without_features():
    graph, exposure = toy_graph(), toy_exposure("gcn")
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    given = exposure, graph.y, *masks
    bare = evidence_of(prepare(*given, Data(edge_index=graph.edge_index), "cpu"))
    assert bare.features is None and bare.labels.similar_width == CLASSES + 1
    whole = evidence_of(prepare(*given, graph, "cpu"))
    assert whole.features.width == graph.x.shape[1]
    assert whole.labels.similar_width == 2 * (CLASSES + 1)


@pytest.mark.parametrize("how", ["links", "features"])
def test_likeness_does_not_depend_on_the_blocks_it_is_computed_in(how, monkeypatch):
    graph = toy_graph()
    nodes = graph.num_nodes

    def found():
        if how == "links":
            return graph_evidence.alike_by_links(graph.edge_index, nodes, torch.float64)
        return graph_evidence.alike_by_features(graph.x)

    def dense(operator):
        out = torch.zeros(nodes, nodes, dtype=torch.float64)
        row = operator.pattern.recipients.long()
        out.index_put_((row, operator.pattern.indices.long()), operator.coefficients, True)
        return out

    whole = dense(found())
    monkeypatch.setattr(graph_evidence, "BLOCK", 4 * nodes)
    torch.testing.assert_close(dense(found()), whole)
    if how == "links":
        adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
        apart = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
        adjacency[apart[1], apart[0]] = 1
        vectors = adjacency
    else:
        vectors = graph.x
    unit = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-30)
    weights = (unit @ unit.t()).fill_diagonal_(0) ** 4
    best = weights.topk(30, dim=1)
    expected = torch.zeros_like(weights).scatter_(1, best.indices, best.values)
    expected = expected / expected.sum(1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(whole, expected)


def test_folds_deal_every_class_evenly_among_nodes_that_are_not_judged():
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(3, (900,), generator=generator)
    val = torch.rand(2, 900, generator=generator) < 0.4
    folds = deal_folds(val, labels, 5, 0)
    assert torch.equal(folds >= 0, val)
    for s in range(2):
        for label in range(3):
            counts = folds[s][val[s] & (labels == label)].bincount(minlength=5)
            assert int(counts.max() - counts.min()) <= 1
        counts = folds[s][val[s]].bincount(minlength=5)
        assert int(counts.max() - counts.min()) <= 1


def test_propagation_of_one_step_by_hand():
    graph, exposure = toy_graph(), toy_exposure("gcn")
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    repair = LabelPropagation(layers=1)
    task = prepare(exposure, graph.y, *masks, graph, "cpu")
    shown = repair._shown(task, (masks[0] | masks[1]).t())
    nodes = graph.num_nodes
    apart = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    dense = torch.zeros(nodes, nodes, dtype=torch.float64)
    dense.index_put_((apart[1], apart[0]), torch.ones(apart.shape[1], dtype=torch.float64), True)
    degree = dense.sum(1)
    scale = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0.0)
    dense = scale.unsqueeze(1) * dense * scale
    alphas = torch.tensor([0.5, 0.9], dtype=torch.float64)
    found = repair._spread(dense, shown, alphas)
    for s, alpha in enumerate(alphas.tolist()):
        spread = alpha * dense @ shown[:, s] + (1 - alpha) * shown[:, s]
        total = spread.sum(1, keepdim=True)
        expected = torch.where(total > 0, spread / total.clamp(min=1e-30), 1 / CLASSES)
        torch.testing.assert_close(found[s], expected)


class Copies:
    """A trainee of copies whose predictions are tables: what is learned can be counted."""

    def __init__(self, batch):
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (12,), generator=generator)
        weights = torch.zeros(2, 12, dtype=torch.float64)
        weights[0, :7], weights[1, 2:5] = 1 / 7, 1 / 3
        self.labels, self.weights = labels, weights
        self.table = torch.randn(2, 12, 3, generator=generator, dtype=torch.float64)
        train = as_targets(weights > 0, labels)._replace(shares=weights)
        val = as_targets(torch.arange(12).expand(2, -1) > 8, labels)
        self.trainee = RepairTrainee(
            {"table": self.table.clone()}, lambda p: None, self.predict, train, val,
            dropout=0.0, batch_size=batch, seed=3,
        )  # fmt: skip

    def predict(self, p, tables, targets, noise):
        assert noise is None
        return p["table"].gather(1, targets.unsqueeze(2).expand(-1, -1, 3))


@pytest.mark.parametrize(("batch", "steps"), [(None, 1), (3, 3)])
def test_an_epoch_s_losses_are_the_weighted_sum_however_it_is_cut(batch, steps):
    copies = Copies(batch)
    trainee = copies.trainee
    trainee.begin_epoch()
    total = torch.zeros(2, dtype=torch.float64)
    counts = torch.tensor([-(-7 // (batch or 7)), -(-3 // (batch or 7))]).clamp(min=1)
    for _ in range(trainee.steps_per_epoch):
        total += trainee.losses(None)
    likely = copies.table.log_softmax(2)[:, torch.arange(12), copies.labels]
    expected = -(likely * copies.weights).sum(1) * counts
    torch.testing.assert_close(total, expected)
    assert trainee.steps_per_epoch == steps
