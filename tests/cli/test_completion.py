"""What the shell offers for the names a command takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gnn_repair.cli import completion


@pytest.mark.parametrize(
    ("offer", "typed", "expected"),
    [
        (completion.dataset, "squirrel", ["squirrel", "squirrel-filtered"]),
        (completion.datasets, "pa", ["paper"]),
        (completion.datasets, "cora,ci", ["cora,citeseer"]),
        (completion.datasets, "cora,cor", []),
        (completion.datasets, "cora,pa", []),
        (completion.backbones, "gcn,mix", ["gcn,mixhop"]),
        (completion.protocol, "in", ["independent"]),
        (completion.methods, "ora", ["oracle"]),
        (completion.methods, "oracle,set", ["oracle,set_translation"]),
    ],
)
def test_names_are_offered(offer, typed, expected):
    assert offer(typed) == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gnn-repair study run --backbones gcn,mix", "gcn,mixhop"),
        ("gnn-repair study tables full", "full-controls"),
        ("gnn-repair report --dataset cit", "citeseer"),
    ],
)
def test_the_shell_is_answered(typed, expected):
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    environment = os.environ | asked | {"_GNN_REPAIR_COMPLETE": "complete_bash"}
    answer = subprocess.run(
        [sys.executable, "-c", "from gnn_repair.cli import app; app(prog_name='gnn-repair')"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == expected
