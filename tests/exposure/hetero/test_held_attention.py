"""HANConv's attention between relations: what is exact while it is held, and by how much it moves.

The score of a relation is a mean over all nodes, s_r = q · mean_v tanh(K relu(a_{v,r}) + b). What
one of N nodes hears moves it by at most 2 |q|₁ / N, so that the weights' ratios move by at most
exp(4 |q|₁ / N).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from gnn_repair import Exposure, expose, reach, solve
from tests.helpers.models.scaled_messages import (
    random_factors,
    scaled,
    scaled_coefficients,
    scaled_run,
)
from tests.helpers.models.typed_models import Paths, build


@pytest.fixture(scope="module")
def model_and_data() -> tuple[Paths, HeteroData]:
    model, data = build("HAN")
    assert isinstance(model, Paths)
    with torch.no_grad():  # so that relations differ in weight
        model.han_conv.q.mul_(40)
    return model, data


@pytest.fixture(scope="module")
def exposure(model_and_data: tuple[Paths, HeteroData]) -> Exposure:
    found = expose(*model_and_data)
    assert found.head is not None
    return found


def weights(model: Paths, data: HeteroData) -> Tensor:
    """The frozen attention of the relations into papers, by PyG's own account."""
    conv = model.han_conv
    _, found = conv(data.x_dict, data.edge_index_dict, return_semantic_attention_weights=True)
    return found["paper"].detach()


def test_it_is_exact_with_the_weights_held(
    model_and_data: tuple[Paths, HeteroData],
    exposure: Exposure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = model_and_data
    held, factors = weights(model, data), random_factors(data)

    def group(xs: list[Tensor], *_: object) -> tuple[Tensor | None, None]:
        if len(xs) != len(held):  # other types, whose logits nobody reads
            return (xs[0], None) if xs else (None, None)
        return (held.view(-1, 1, 1) * torch.stack(xs)).sum(0), None

    unheld = scaled_run(model, data, factors)
    monkeypatch.setattr("torch_geometric.nn.conv.han_conv.group", group)
    seen = scaled_run(model, data, factors)
    said = exposure.logits(scaled_coefficients(exposure, data, factors))[0]
    torch.testing.assert_close(said, seen, rtol=0, atol=1e-10)
    assert float((unheld - seen).abs().max()) > 1e-3  # all nodes at once move the weights


def test_one_node_moves_the_weights_within_the_bound(
    model_and_data: tuple[Paths, HeteroData], exposure: Exposure
) -> None:
    model, data = model_and_data
    factors, nodes = random_factors(data), data["paper"].num_nodes
    limit = math.exp(4 * float(model.han_conv.q.abs().sum()) / nodes)
    frozen = weights(model, data)
    gaps = []
    for node in (0, 7, 19):
        alone = {
            kind: torch.where(data[kind].edge_index[1] == node, value, 1.0)
            if kind[2] == "paper" else torch.ones_like(value)
            for kind, value in factors.items()
        }  # fmt: skip
        with scaled(model, data, alone):
            ratio = weights(model, data) / frozen
        assert 1 / limit <= float(ratio.min()) and float(ratio.max()) <= limit
        seen = scaled_run(model, data, alone)[node]
        said = exposure.logits(scaled_coefficients(exposure, data, alone))[0, node]
        gaps.append(float((seen - said).abs().max()))
    assert 0 < max(gaps) < 0.05


def test_every_answer_says_so(model_and_data: tuple[Paths, HeteroData], exposure: Exposure) -> None:
    _, data = model_and_data
    scope = "model with `han_conv` (HANConv) held"
    assert exposure.scope == scope and "held as it is: `han_conv` (HANConv) (mean)" in str(exposure)
    y = data["paper"].y
    assert f"({scope})" in str(solve(exposure, y, torch.arange(2))[0])
    assert f"about            the {scope}" in str(reach(exposure, y))


def test_one_relation_needs_no_attention() -> None:
    _, data = build("HAN")
    for kind in list(data.edge_types):
        if kind != ("author", "writes", "paper"):
            del data[kind]
    torch.manual_seed(0)
    model = Paths(data).double()
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    exposure = expose(model, data)
    assert exposure.num_groups == 2
    factors = random_factors(data)
    said = exposure.logits(scaled_coefficients(exposure, data, factors))[0]
    seen = scaled_run(model.eval(), data, factors)
    torch.testing.assert_close(said, seen, rtol=0, atol=1e-10)
