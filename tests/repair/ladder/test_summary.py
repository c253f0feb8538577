"""The frozen summary of a message set against loops over its terms; similar nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.repair import evidence
from gnn_repair.repair.evidence import (
    SIMILAR,
    alike_by_features,
    alike_by_links,
    summary,
    summary_width,
)
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.repair.toy_exposures import toy_exposure


def literal(exposure, member: int, position: int, onto: np.ndarray | None) -> np.ndarray:
    """One recipient's row, term by term."""
    arrays = {
        name: getattr(exposure, name).double().numpy()
        for name in ("state", "messages", "coefficients", "mass")
    }
    own = {name: values[min(member, len(values) - 1)] for name, values in arrays.items()}
    node = int(exposure.recipients[position])
    logits = exposure.frozen_logits[member].double().numpy()
    told = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    groups, ends = exposure.num_groups, exposure.segments.tolist()
    terms = range(ends[position * groups], ends[(position + 1) * groups])
    cosines, apart, states, said, alpha = [], [], [], [], []
    for term in terms:
        row = int(exposure.rows[term])
        h, v = own["messages"][int(exposure.message_rows[row])], own["state"][node]
        norm = np.linalg.norm(h) * np.linalg.norm(v)
        cosines.append(h @ v / norm if norm > 0 else 0.0)
        apart.append(np.linalg.norm(h - v))
        states.append(h if onto is None else h @ onto)
        said.append(np.exp(told[int(exposure.sources[row])]))
        alpha.append(abs(own["coefficients"][term]))
    cosines, apart, alpha = np.array(cosines), np.array(apart), np.array(alpha)
    table, said = np.concatenate([states, said], 1), np.array(said)
    usual = np.minimum(apart / max(apart.mean(), 1e-12), 4)
    kernels = [alpha, np.ones_like(alpha), np.exp(6 * cosines), np.exp(-3 * usual)]
    kernels.append(np.exp(3 * usual))
    shares = [kernel / max(kernel.sum(), 1e-12) for kernel in kernels]
    mean = shares[0] @ table
    spread = np.sqrt(np.maximum(shares[0] @ table**2 - mean**2, 0))
    total = own["mass"][position].sum() + (1.0 if exposure.root else 0.0)
    here = own["state"][node] if onto is None else own["state"][node] @ onto
    numbers = [here, np.maximum(told[node], -8), np.exp(told[node]), [total]]
    numbers += [[np.log1p(len(alpha))], [shares[0] @ cosines], mean, spread]
    return np.concatenate([*numbers, *(share @ said for share in shares[1:])])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "sage", "gat", "mixhop"])
def test_the_summary_is_what_a_loop_over_terms_gives(backbone, wide, monkeypatch):
    exposure, onto = replace(toy_exposure(backbone)), None
    if wide:
        monkeypatch.setattr(evidence, "WIDEST", 2)
        monkeypatch.setattr(evidence, "PROJECTED", 3)
        width = exposure.state.shape[2]
        generator = torch.Generator().manual_seed(width)
        onto = (torch.randn(width, 3, generator=generator) / 3**0.5).double().numpy()
    found = summary(RepairInputs(exposure))
    assert found.shape[2] == summary_width(exposure.state.shape[2], exposure.num_classes)
    for member in range(exposure.num_members):
        for position in range(0, exposure.num_recipients, 3):
            expected = literal(exposure, member, position, onto)
            np.testing.assert_allclose(found[member, position].numpy(), expected, atol=1e-6)


def cosines(rows: torch.Tensor) -> torch.Tensor:
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (unit @ unit.t()).fill_diagonal_(0)


@pytest.mark.parametrize("by", ["links", "features"])
def test_similar_nodes_are_the_nearest_by_cosine_and_never_the_node_itself(by):
    generator = torch.Generator().manual_seed(2)
    nodes = 70
    entries = torch.randint(nodes, (2, 600), generator=generator)
    x = torch.rand(nodes, 6, generator=generator, dtype=torch.float64)
    links = torch.zeros(nodes, nodes, dtype=torch.float64)
    links[entries[1], entries[0]] = 1
    alike = cosines(links.fill_diagonal_(0) if by == "links" else x)
    near = alike_by_links(entries, nodes, torch.float64) if by == "links" else alike_by_features(x)
    weights = near(torch.eye(nodes, dtype=torch.float64).unsqueeze(1)).squeeze(1)
    assert float(weights.diagonal().abs().max()) == 0
    best = alike.topk(SIMILAR, dim=1).values
    expected = best**4 / (best**4).sum(1, keepdim=True)
    # Who of several that are equally near is asked does not matter here.
    torch.testing.assert_close(weights.topk(SIMILAR, dim=1).values, expected)
    assert bool((alike[weights > 0] >= best[:, -1:].expand_as(alike)[weights > 0] - 1e-9).all())
