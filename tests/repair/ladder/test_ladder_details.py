"""The evidence a ladder gathers, and what it makes of its copies, by hand and from both sides."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.repair import EvidenceLadder
from gnn_repair.repair.folds import deal_folds
from gnn_repair.repair.ladder import ladder as module
from gnn_repair.repair.ladder.network import Climbed
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

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
