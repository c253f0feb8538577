"""How fitting goes is shown when asked for, and told to Python's logging otherwise."""

from __future__ import annotations

import io
import logging
import sys
import types
from dataclasses import replace

import pytest
import torch
from toy_exposures import toy_exposure, toy_graph

from gnn_repair import EvidenceLadder, NodeTranslation
from gnn_repair.errors import InputError
from gnn_repair.repair.cross_fitting import CrossFitted
from gnn_repair.repair.fitting import Listener, ProgressLine, in_words
from gnn_repair.training import Progress

DATA = toy_graph()
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def short(epochs: int = 40) -> NodeTranslation:
    return NodeTranslation(hidden=4, budget=replace(NodeTranslation().budget, epochs=epochs))


def test_a_line_is_written_over_in_a_terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    short().fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)
    lines = stream.getvalue().split("\r")
    assert lines[0] == "" and len(lines) > 3
    assert all(line.startswith("Node translation: epoch ") for line in lines[1:])
    assert lines[-1].startswith("Node translation: epoch 40 of 40, 2 members training, ")
    assert lines[-1].endswith("validation nodes right\n")


def test_elsewhere_there_are_a_few_lines(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    short(100).fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)
    lines = stream.getvalue().splitlines()
    assert 1 <= len(lines) <= 4 and "\r" not in stream.getvalue()
    assert "epoch 100 of 100" in lines[-1]


def test_a_notebook_is_known_by_its_kernel(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert ProgressLine("x", io.StringIO()).live
    del shell.kernel
    assert not ProgressLine("x", io.StringIO()).live


def test_a_shorter_line_covers_the_longer_one():
    stream = Terminal()
    line = ProgressLine("x", stream)
    line.show(Progress(10, 20, 12, 100.5))
    line.show(Progress(20, 20, 1, 3))
    line.close()
    first, second = stream.getvalue().strip("\r\n").split("\r")
    assert len(second) == len(first) and second.rstrip().endswith("3 validation nodes right")


def test_nothing_is_shown_unless_asked_for(capsys):
    short().fit(toy_exposure("gcn"), *MASKS, device="cpu")
    assert capsys.readouterr() == ("", "")
    assert Listener("x", None, False).callback is None


def test_the_log_hears_epochs_and_results(caplog):
    heard: list[Progress] = []
    with caplog.at_level(logging.DEBUG, logger="gnn_repair"):
        fitted = short().fit(toy_exposure("gcn"), *MASKS, device="cpu", on_progress=heard.append)
    epochs = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert epochs == [f"Node translation: {in_words(progress)}" for progress in heard]
    results = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert results == [str(fitted)]
    assert {record.name for record in caplog.records} == {"gnn_repair.repair"}


@pytest.mark.parametrize(
    "repair", [CrossFitted(short(3), folds=2), EvidenceLadder(rungs=("messages",), folds=2)]
)
def test_repairs_that_read_the_graph_take_the_same_arguments(repair, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    repair.fit(toy_exposure("gcn"), *MASKS, data=None, device="cpu", progress=True)
    assert stream.getvalue().startswith(f"\r{repair.title}: epoch ")


@pytest.mark.parametrize("bad", [1, "yes", None])
def test_bad_progress_is_named(bad):
    with pytest.raises(InputError, match="progress is"):
        short().fit(toy_exposure("gcn"), *MASKS, progress=bad)


def test_words_claim_no_score_that_is_none():
    assert in_words(Progress(0, 20, 1, -1.0)) == "epoch 0 of 20, 1 member training"
    labels = in_words(Progress(5, 20, 2, 0.613), "labels")
    assert labels == "epoch 5 of 20, 2 members training, validation micro-F1 61.3 %"


def test_a_program_without_streams_is_shown_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    short(2).fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)


def test_labels_are_told_by_their_own_score(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    exposure = replace(toy_exposure("gcn"), outputs="labels")
    y = (torch.arange(exposure.num_nodes * exposure.num_classes) % 3 == 0).float()
    y = y.view(exposure.num_nodes, -1)
    short(3).fit(exposure, y, *MASKS[1:], device="cpu", progress=True)
    assert "validation micro-F1" in stream.getvalue() and "nodes right" not in stream.getvalue()
