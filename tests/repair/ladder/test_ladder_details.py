"""The evidence a ladder gathers, and what it makes of its copies, by hand and from both sides."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.repair import EvidenceLadder
from gnn_repair.repair.evidence import LabelEvidence, evidence_of
from gnn_repair.repair.folds import deal_folds
from gnn_repair.repair.ladder import ladder as module
from gnn_repair.repair.ladder.network import Climbed
from gnn_repair.repair.ladder.rungs import mixed, weigh
from gnn_repair.repair.targets import check_graph_data, prepare
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph


def test_the_graph_that_is_given_must_be_the_exposed_one():
    exposure, graph = toy_exposure("gcn"), toy_graph()
    check_graph_data(exposure, graph)
    check_graph_data(exposure, Data(edge_index=graph.edge_index))
    check_graph_data(exposure, Data(edge_index=torch.empty(2, 0, dtype=torch.long)))
    odd = graph.x.clone()
    odd[3, 1] = float("inf")
    for data, words in [
        (Data(x=graph.x), "no edge_index"),
        (Data(edge_index=graph.edge_index.double()), "no edge_index"),
        (Data(edge_index=graph.edge_index[0]), "no edge_index"),
        (Data(edge_index=graph.edge_index[[0, 1, 0]]), "no edge_index"),
        (Data(edge_index=graph.edge_index - 1), "holds -1; nodes are counted from 0"),
        (Data(edge_index=graph.edge_index + 1), "data has 31 nodes but the exposure has 30"),
        (Data(x=graph.x[:29], edge_index=graph.edge_index[:, :1]), "data has 29 nodes"),
        (Data(x=graph.x[:, 0], edge_index=graph.edge_index), "not a table"),
        (Data(x=odd, edge_index=graph.edge_index), "NaN or infinite"),
    ]:
        with pytest.raises(InputError, match=words):
            check_graph_data(exposure, data)


def test_neighbours_labels_by_plain_loops():
    """P and P² without the way back, as dense matrices."""
    entries = torch.tensor([[0, 1, 1, 2, 3, 3, 4, 2], [1, 0, 2, 1, 3, 1, 3, 4]])
    known = torch.tensor([[0, 2, 1, 2, 2], [2, 1, 2, 0, 1]])
    found = LabelEvidence(entries, known, 2, torch.float64).histograms(known)
    adjacency = torch.zeros(5, 5, dtype=torch.float64)
    for source, recipient in entries.t().tolist():
        if source != recipient:
            adjacency[recipient, source] += 1
    walk = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    twice = walk @ walk
    back = twice.diagonal()
    away = (twice - back.diag()) / torch.where(back < 1, 1 - back, 1.0).unsqueeze(1)
    for s in range(2):
        shown = torch.nn.functional.one_hot(known[s], 3).double()
        torch.testing.assert_close(found[s], torch.cat([walk @ shown, away @ shown], 1))


def test_evidence_is_of_training_and_validation_nodes():
    graph, exposure = toy_graph(), toy_exposure("gcn")
    masks = graph.train_mask[:, :2], graph.val_mask[:, :2]
    task = prepare(exposure, graph.y, *masks, None, "cpu")
    expected = torch.where((masks[0] | masks[1]).t(), graph.y, exposure.num_classes)
    assert torch.equal(evidence_of(task).labels.known, expected)
    assert evidence_of(task).features is None
    told = evidence_of(prepare(exposure, graph.y, *masks, graph, "cpu"))
    assert told.features.width == graph.x.shape[1] and told.labels.width == 8


# Copies whose words are planted -------------------------------------------------------------------

FOLDS, CLASSES = 3, 3
MASKS = toy_graph().train_mask[:, :2], toy_graph().val_mask[:, :2]


def told(classes: torch.Tensor, sure: float) -> torch.Tensor:
    """Log-probabilities of ``sure`` for these classes [..., n]."""
    one = torch.nn.functional.one_hot(classes, CLASSES).double()
    return (one * sure + (1 - one) * (1 - sure) / (CLASSES - 1)).log().float()


@pytest.fixture
def plant(monkeypatch):
    """Fit two members whose copies know each label that they may learn from, and no other.

    About their own fold the copies of "labels" give it 0.4, fitted again with fewer labels
    ``fewer``; "messages" gives it 0.3. Fitted on all labels, a copy says class 2 everywhere.
    """

    def fitted(fewer: float):
        graph, calls = toy_graph(), []

        def climb(rungs, sources, roles, labels, training, epochs=None, on_progress=None):
            calls.append((list(rungs), roles, epochs))
            members, copies = len(sources.frozen), roles.copies
            known = told(labels, 0.98).expand(len(rungs), members, copies, -1, -1)
            first = epochs is None
            each = [0.4 if first else fewer] if rungs[0] == "labels" else [0.3, 0.4]
            unsure = torch.stack([told(labels, share) for share in each])[:, None, None]
            judged = roles.judged.view(1, members, copies, -1, 1)
            said = torch.where(judged, unsure, known)
            if not first:
                said[:, :, FOLDS:] = told(torch.full_like(labels, 2), 0.9)
            epochs = torch.tensor([5, 1, 3]).repeat(copies // FOLDS).expand(said.shape[:3])
            gone = torch.zeros_like(epochs, dtype=torch.bool)
            return Climbed(tuple(rungs), said, epochs, epochs, gone, {}, 0)

        monkeypatch.setattr(module, "climb", climb)
        monkeypatch.setattr(EvidenceLadder, "fitted", lambda self, **values: values["constants"])
        ladder = EvidenceLadder(rungs=("messages", "labels"), folds=FOLDS)
        exposure = toy_exposure("gcn")
        return ladder.fit(exposure, graph.y, *MASKS, data=graph, device="cpu"), calls

    return fitted


def test_out_of_fold_speaks_only_who_did_not_learn_from_a_node(plant):
    constants, calls = plant(fewer=0.4)
    y, val = toy_graph().y, MASKS[1].t()
    expected = deal_folds(val, y, FOLDS, 0, even=False)
    assert torch.equal(constants["folds"], expected)
    assert not torch.equal(expected, deal_folds(val, y, FOLDS, 0, even=True))
    for place, share in ((1, 0.3), (2, 0.4)):
        found = constants["out_of_fold"][:, place]
        torch.testing.assert_close(found[val], told(y.expand(2, -1), share)[val])
    assert calls[0][1].copies == module.TWINS * FOLDS


@pytest.mark.parametrize("fewer", [0.36, 0.4, 0.44])
def test_the_best_rung_alone_is_fitted_again_and_only_where_labels_help(plant, fewer):
    constants, (_, (rungs, roles, epochs)) = plant(fewer)
    helps = fewer < 0.4
    assert constants["refitted"].tolist() == [helps] * 2 and rungs == ["labels"]
    everywhere = told(torch.full((30,), 2), 0.9).expand(2, -1, -1)
    alike = [torch.allclose(constants["log_probs"][:, r], everywhere, atol=1e-5) for r in range(2)]
    assert alike == [False, helps]
    # Copies with one fold less keep their own epoch, those on all labels the usual one.
    assert epochs.tolist() == [[[5, 1, 3, 3, 3, 3]] * 2]
    train, val = (mask.t() for mask in MASKS)
    learned = (roles.weights > 0).unflatten(0, (2, -1))
    distance = (constants["folds"].unsqueeze(1) - torch.arange(FOLDS).view(1, -1, 1)) % FOLDS
    left = val.unsqueeze(1) & (distance == 2)
    assert torch.equal(learned[:, :FOLDS], left | train.unsqueeze(1))
    assert torch.equal(learned[:, FOLDS:], (train | val).unsqueeze(1).expand(-1, FOLDS, -1))


def test_smoothing_by_hand():
    """No label of a fold, nor of a test node, has a part in what is said of that fold."""
    graph, exposure = toy_graph(), toy_exposure("gcn")
    task = prepare(exposure, graph.y, *MASKS, graph, "cpu")
    folds = deal_folds(task.val, task.labels, FOLDS, 0)
    draw = torch.Generator().manual_seed(2)
    every = torch.randn(2, 2, FOLDS, 30, CLASSES, generator=draw).log_softmax(4)
    every[1] = (every[1] + 2 * torch.nn.functional.one_hot(graph.y, CLASSES)).log_softmax(3)
    held = module._held_out(every, folds)
    said = torch.randn(2, 2, 30, CLASSES, generator=draw, dtype=torch.float64).log_softmax(3)
    found = module._smoothed(task, every, folds, torch.cat([held[:, :1], held], 1), said, FOLDS)
    apart = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    dense = torch.zeros(30, 30, dtype=torch.float64)
    dense.index_put_((apart[1], apart[0]), torch.ones(apart.shape[1]).double(), True)
    scale = dense.sum(1).clamp(min=1).rsqrt()
    dense = scale.unsqueeze(1) * dense * scale
    for s in range(2):
        for fold in (*range(FOLDS), None):
            seen = (folds[s] >= 0) & (folds[s] != (-1 if fold is None else fold))
            weights = weigh(held[s][:, seen], graph.y[seen])
            words = said[s] if fold is None else every[:, s, fold].double()
            start = mixed(words, weights).exp()
            shown = task.train[s] | seen
            start[shown] = torch.nn.functional.one_hot(graph.y[shown], CLASSES).double()
            out = start
            for _ in range(module.LAYERS):
                out = 0.5 * dense @ out + 0.5 * start
            out = out / out.sum(1, keepdim=True)
            whom = slice(None) if fold is None else folds[s] == fold
            mine = (found[1] if fold is None else found[0])[s][whom].exp()
            torch.testing.assert_close(mine, out[whom], rtol=1e-5, atol=1e-6)
