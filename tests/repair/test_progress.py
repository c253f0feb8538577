"""How fitting goes is shown when asked for, and told to Python's logging otherwise."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace

import pytest
import torch

from gnn_repair import EvidenceLadder, NodeTranslation
from gnn_repair.repair.folds import CrossFitted
from gnn_repair.training import Progress, in_words
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)


def short(epochs: int = 40) -> NodeTranslation:
    return NodeTranslation(hidden=4, budget=replace(NodeTranslation().budget, epochs=epochs))


@pytest.mark.parametrize(
    "repair",
    [
        short(),
        CrossFitted(short(3), folds=2),
        EvidenceLadder(rungs=("messages",), folds=2, epochs=3),
    ],
)
def test_a_bar_is_shown_when_asked_for(repair, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    repair.fit(toy_exposure("gcn"), *MASKS, device="cpu")
    assert stream.getvalue() == ""
    repair.fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)
    last = stream.getvalue().split("\r")[-1]
    epochs = repair.most_epochs
    assert last.startswith(repair.title) and f"{epochs}/{epochs}" in last
    assert "validation nodes right" in last


def test_the_log_hears_epochs_and_results(caplog):
    heard: list[Progress] = []
    with caplog.at_level(logging.DEBUG, logger="gnn_repair"):
        fitted = short().fit(toy_exposure("gcn"), *MASKS, device="cpu", on_progress=heard.append)
    epochs = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert len(epochs) == len(heard) > 2
    for text, progress in zip(epochs, heard, strict=True):
        assert f"epoch {progress.epoch} of 40" in text and in_words(progress) in text
    results = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert results == [str(fitted)]
    assert {record.name for record in caplog.records} == {"gnn_repair.repair"}


def test_a_program_without_streams_is_shown_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    short(2).fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)


def test_labels_are_told_by_their_score(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    exposure = replace(toy_exposure("gcn"), outputs="labels")
    y = (torch.arange(exposure.num_nodes * exposure.num_classes) % 3 == 0).float()
    y = y.view(exposure.num_nodes, -1)
    short(3).fit(exposure, y, *MASKS[1:], device="cpu", progress=True)
    assert "validation micro-F1" in stream.getvalue() and "nodes right" not in stream.getvalue()
