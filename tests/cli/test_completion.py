"""What the shell offers for the names a command takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gnn_repair.cli import options


@pytest.mark.parametrize(
    ("offer", "typed", "expected"),
    [
        (options.offer_dataset, "squirrel", ["squirrel", "squirrel-filtered"]),
        (options.offer_datasets, "pa", ["paper"]),
        (options.offer_datasets, "cora,ci", ["cora,citeseer"]),
        (options.offer_datasets, "cora,cor", []),
        (options.offer_datasets, "cora,pa", []),
        (options.offer_backbones, "gcn,mix", ["gcn,mixhop"]),
        (options.offer_protocol, "in", ["independent"]),
        (options.offer_methods, "ora", ["oracle"]),
        (options.offer_methods, "oracle,set", ["oracle,set_translation"]),
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
