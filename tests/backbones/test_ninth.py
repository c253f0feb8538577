"""The documentation's ninth backbone works as written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gnn_repair.backbones import Shape, train_backbone
from gnn_repair.exposure.from_backbone import expose_frozen
from gnn_repair.training import SHORT

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "backbone.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not installed")
def test_the_worked_example(graph):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    names: dict = {}
    exec(code, names)
    backbone = names["TransformThenPropagate"](Shape(hidden=16))
    budget = replace(SHORT, epochs=3)
    frozen = train_backbone(backbone, graph, range(2), device="cpu", budget=budget)
    for member in range(2):
        expected = frozen.network(member)(graph.x, graph.edge_index)
        torch.testing.assert_close(frozen.logits[member], expected)
    exposure = expose_frozen(frozen)
    torch.testing.assert_close(exposure.logits(), frozen.logits)
