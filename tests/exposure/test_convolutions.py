"""Every convolution and every backbone against a dense computation of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch_geometric.utils import to_dense_adj

from gnn_repair.backbones import BACKBONES, Readout, Shape, train_backbone
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.from_backbone import expose_frozen
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.training import SHORT
from tests.helpers.models.convolutions import CASES, NODES, Net, graph

# Every convolution's exposure against a dense computation of its own.

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


def dense_groups(exposure: Exposure, coefficients: Tensor) -> list[Tensor]:
    """One [N, N] matrix (recipient × source) per group."""
    places = torch.arange(NODES * exposure.num_groups)
    places = torch.repeat_interleave(places, exposure.segments.diff())
    recipients, groups = places // exposure.num_groups, places % exposure.num_groups
    sources = exposure.sources[exposure.rows].long()
    out = coefficients.new_zeros(exposure.num_groups, NODES, NODES)
    out.index_put_((groups, recipients, sources), coefficients, accumulate=True)
    return list(out)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_exposure_is_the_model(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    torch.manual_seed(5)
    net, data = Net(case).to(dtype).eval(), graph(dtype)
    for parameter in net.parameters():  # zero-initialised biases would hide their loss
        parameter.add_(torch.randn_like(parameter) * 0.1)
    exposure = expose(net, data, hops=case.hops)  # type: ignore[arg-type]
    hidden, limit = net.hidden(data), LIMIT[dtype]

    expected = case.operators(net.conv2, hidden, data)
    found = dense_groups(exposure, exposure.coefficients[0])
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)

    torch.testing.assert_close(exposure.logits()[0], net(data).double(), rtol=limit, atol=limit)
    assert exposure.residual is not None and exposure.residual <= limit

    reweighted = random_admissible(exposure, seed=9)
    operators = [op.to(dtype) for op in dense_groups(exposure, reweighted)]
    by_hand = net.lin(case.by_hand(net.conv2, hidden, data, operators))
    torch.testing.assert_close(
        exposure.logits(reweighted.unsqueeze(0))[0],
        by_hand.double(),
        rtol=limit * 10,
        atol=limit * 10,
    )


ROOTED = {"SAGEConv", "GraphConv", "ClusterGCNConv", "LEConv", "GINConv", "GINEConv", "RGCNConv"}
ROOTED |= {"FastRGCNConv", "DirGNNConv", "HeteroConv", "ARMAConv", "TransformerConv"}
ROOTED |= {"ResGatedGraphConv", "MFConv"}


# Exposing the eight backbones: identities, and an independent way to the same logits.


def exposed(name, graph, members=2):
    backbone = BACKBONES[name](Shape(hidden=16, heads=4))
    budget = replace(SHORT, epochs=4)
    frozen = train_backbone(backbone, graph, range(members), device="cpu", budget=budget)
    return frozen, expose_frozen(frozen)


def random_admissible_backbone(exposure):
    """Random λ with every group's mass, from segments alone."""
    generator = torch.Generator().manual_seed(3)
    shape = (exposure.num_members, exposure.num_terms)
    raw = torch.rand(shape, generator=generator, dtype=torch.float64)
    lengths = exposure.segments.diff()
    share = raw / torch.repeat_interleave(exposure.masses(raw).flatten(1), lengths, dim=1)
    return share * torch.repeat_interleave(exposure.mass.flatten(1), lengths, dim=1)


@pytest.mark.parametrize("name", BACKBONES)
def test_any_coefficients_give_what_the_network_gives_with_them(name, graph):
    """β + Σ λ ℓ against the unfolded network: λ put into the operators, embedding, classifier."""
    frozen, exposure = exposed(name, graph)
    coefficients = random_admissible_backbone(exposure)
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
    assert "absent at 1 node" in str(exposure) and "mass 0 " not in str(exposure)


def test_what_is_expected_of_a_backbone(graph):
    frozen, whole = exposed("gcn", graph, members=1)
    right = whole.frozen_logits[0].argmax(1)
    assert expose(frozen, expected=right).num_members == 1
    wrong = (right + 1) % whole.num_classes
    with pytest.raises(InputError, match=f"a frozen backbone predicts .* at {len(right)} of"):
        expose(frozen, expected=wrong)
    with pytest.raises(InputError, match="the backbone has 2 members"):
        expose(exposed("gcn", graph)[0], expected=right)


# Every convolution with a rule, followed by tanh and a linear layer, against dense algebra.


def dense(exposure: Exposure, coefficients: Tensor) -> list[Tensor]:
    groups, nodes = exposure.num_groups, exposure.num_nodes
    places = torch.repeat_interleave(torch.arange(nodes * groups), exposure.segments.diff())
    sources = exposure.sources[exposure.rows].long()
    out = torch.zeros(groups, nodes, nodes, dtype=torch.float64)
    out.index_put_((places % groups, places // groups, sources), coefficients, accumulate=True)
    return list(out)
