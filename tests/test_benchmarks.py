"""The benchmarks' command line measures what it says; no figure is asserted."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import explainers
from benchmarks.__main__ import app, main
from gnn_repair.datasets import load_dataset
from gnn_repair.exposure import expose


def test_the_command_prints_every_peer():
    arguments = ["oracle", "--shapes", "4:3:1", "--cases", "", "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["LPs"] == "K=4 C=3 B=1" and row["K"] == 4
    assert row["ours"] > 0 and row["highspy"] > 0 and row["scipy"] > 0


@pytest.mark.parametrize(
    "line",
    [
        ["training", "--dataset", "corra"],
        ["accuracy", "--splits", "5-2"],
        ["scale", "--nodes", "1"],
        ["repair", "--cases", "nonsense"],
        ["oracle", "--shapes", "1:2"],
        ["heads", "--hidden", "64,many"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_a_bad_line_is_refused(monkeypatch, capsys, line):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *line])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    assert caught.value.code == 2 and not said.out
    assert "Traceback" not in said.err and said.err.strip()


def test_a_smallest_reweighting_changes_the_prediction_of_the_model_itself():
    data = load_dataset("builtin").subgraph(torch.arange(200))
    model = explainers.trained(data, 5)
    exposure = expose(model, data)
    predicted = exposure.frozen_logits[0].argmax(1)
    wrong = (predicted != data.y).nonzero().view(-1)[:20].tolist()
    answers = 0
    for node in wrong:
        asked = explainers.Question.of(model, data, node, int(predicted[node]), int(data.y[node]))
        answer = explainers.smallest_reweighting(asked, exposure)
        with torch.no_grad():
            assert asked.lead(asked.logits()) > 0
            assert answer is None or explainers.replayed(asked, exposure, answer)
        answers += answer is not None
    assert answers > 3
