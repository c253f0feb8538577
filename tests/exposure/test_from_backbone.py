"""Exposing the eight backbones: identities, and an independent way to the same logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.utils import to_dense_adj

from gnn_repair.backbones import BACKBONES, Readout, Shape, train_backbone
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure.from_backbone import expose_frozen
from gnn_repair.training import SHORT

GROUPS = {"mixhop": 3, "h2gcn": 3}


def exposed(name, graph, members=2):
    backbone = BACKBONES[name](Shape(hidden=16, heads=4))
    budget = replace(SHORT, epochs=4)
    frozen = train_backbone(backbone, graph, range(members), device="cpu", budget=budget)
    return frozen, expose_frozen(frozen)


def random_admissible(exposure):
    """Random λ with every group's mass, from segments alone."""
    generator = torch.Generator().manual_seed(3)
    shape = (exposure.num_members, exposure.num_terms)
    raw = torch.rand(shape, generator=generator, dtype=torch.float64)
    lengths = exposure.segments.diff()
    share = raw / torch.repeat_interleave(exposure.masses(raw).flatten(1), lengths, dim=1)
    return share * torch.repeat_interleave(exposure.mass.flatten(1), lengths, dim=1)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_frozen_coefficients_give_the_frozen_logits(name, graph):
    frozen, exposure = exposed(name, graph)
    torch.testing.assert_close(exposure.logits(), frozen.logits, rtol=1e-12, atol=1e-12)
    assert exposure.num_groups == GROUPS.get(name, 1)
    assert exposure.root is (name in ("sage", "graphconv"))


@pytest.mark.parametrize("name", BACKBONES)
def test_any_coefficients_give_what_the_network_gives_with_them(name, graph):
    """β + Σ λ ℓ against the unfolded network: λ put into the operators, embedding, classifier."""
    frozen, exposure = exposed(name, graph)
    coefficients = random_admissible(exposure)
    count, readout = exposure.num_groups, frozen.readout
    lengths = exposure.segments.diff().view(-1, count)
    group = torch.repeat_interleave(torch.arange(count).repeat(len(lengths)), lengths.view(-1))
    streams = []
    for index, stream in enumerate(readout.streams):
        operator = replace(
            stream.operator.expanded(), coefficients=coefficients[:, group == index].t()
        )
        streams.append(replace(stream, operator=operator))
    changed = Readout(tuple(streams), *list(vars(readout).values())[1:])
    embedding = changed.embedding(_widened(frozen, name))
    logits = torch.einsum("nsk,skc->nsc", embedding, readout.classifier)
    expected = (logits + readout.classifier_bias).transpose(0, 1)
    torch.testing.assert_close(exposure.logits(coefficients), expected, rtol=1e-9, atol=1e-9)


def _widened(frozen, name):
    """Shared features as one state per member, so that members may have their own coefficients."""
    if name not in ("sgc", "mixhop", "h2gcn"):
        return frozen.node_state
    return frozen.state.expand(frozen.num_members, -1, -1).transpose(0, 1)


def dense_coefficients(exposure, group, member=0):
    dense = torch.zeros(36, 36, dtype=torch.float64)
    for node in range(36):
        start, stop = exposure.segments[node * exposure.num_groups + group :][:2].tolist()
        for term in range(start, stop):
            row = int(exposure.rows[term])
            source = int(exposure.sources[row])
            value = exposure.coefficients[member % len(exposure.coefficients), term]
            dense[node, source] += value
    return dense


def test_coefficients_against_dense_matrices(graph):
    adjacency = to_dense_adj(graph.edge_index).squeeze(0).double().t()
    looped = adjacency.clone().fill_diagonal_(1)
    scale = looped.sum(1).rsqrt()
    normalised = scale.unsqueeze(1) * looped * scale
    others = adjacency.clone().fill_diagonal_(0)
    mean = others / others.sum(1, keepdim=True).clamp(min=1)
    identity = torch.eye(36, dtype=torch.float64)
    expected = {
        "gcn": [normalised],
        "sage": [adjacency / adjacency.sum(1, keepdim=True)],
        "graphconv": [adjacency],
        "sgc": [normalised @ normalised],
        "mixhop": [identity, normalised, normalised @ normalised],
        "h2gcn": [identity, mean, mean @ mean],
    }
    for name, matrices in expected.items():
        _, exposure = exposed(name, graph)
        for group, matrix in enumerate(matrices):
            torch.testing.assert_close(dense_coefficients(exposure, group), matrix)


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_attention_coefficients_are_those_pyg_returns(name, graph):
    frozen, exposure = exposed(name, graph)
    for member in range(2):
        conv = frozen.network(member).conv2
        _, (entries, attention) = conv(
            frozen.state[member], graph.edge_index, return_attention_weights=True
        )
        dense = torch.zeros(36, 36, dtype=torch.float64)
        dense.index_put_((entries[1], entries[0]), attention.detach().squeeze(1), True)
        torch.testing.assert_close(dense_coefficients(exposure, 0, member), dense)


@pytest.mark.parametrize(("loops", "entries"), [("one", 1), ("listed", 2)])
def test_a_doubled_self_loop_is_one_term_or_two(loops, entries, graph):
    backbone = BACKBONES["gcn"](Shape(hidden=16, self_loops=loops))
    budget = replace(SHORT, epochs=1)
    exposure = expose_frozen(train_backbone(backbone, graph, [0], device="cpu", budget=budget))
    start, stop = exposure.segments[1:3].tolist()
    assert exposure.sources[exposure.rows[start:stop].long()].tolist().count(1) == entries


def test_an_isolated_node_lacks_the_groups_it_has_no_terms_in(graph):
    _, exposure = exposed("h2gcn", graph)
    lengths = exposure.segments.diff().view(36, 3)
    assert lengths[0].tolist() == [1, 0, 0]
    assert exposure.mass[0, 0].tolist() == [1, 0, 0]
    assert "absent at 1 node" in str(exposure)


@pytest.mark.parametrize("name", ["gat", "mixhop"])
def test_one_member_alone(name, graph):
    frozen, exposure = exposed(name, graph)
    alone = exposure.member(1)
    assert alone.num_members == 1
    torch.testing.assert_close(alone.logits()[0], frozen.logits[1])


def test_what_is_expected_of_a_backbone(graph):
    frozen, whole = exposed("gcn", graph, members=1)
    right = whole.frozen_logits[0].argmax(1)
    assert expose(frozen, expected=right).num_members == 1
    wrong = (right + 1) % whole.num_classes
    with pytest.raises(InputError, match=f"a frozen backbone predicts .* at {len(right)} of"):
        expose(frozen, expected=wrong)
    with pytest.raises(InputError, match="the backbone has 2 members"):
        expose(exposed("gcn", graph)[0], expected=right)
