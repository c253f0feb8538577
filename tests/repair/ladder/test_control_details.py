"""Controls, kept predictions and likeness by hand: each clause alone, each constant named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.repair.baselines import LabelPropagation

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
