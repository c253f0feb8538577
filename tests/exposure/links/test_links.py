"""Links with one end reweighted, checked by running models by hand on really changed weights."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, SAGEConv

import gnn_repair as gr
from gnn_repair.datasets import planted_links
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.links import from_model
from tests.helpers.models.link_models import BENT, EXACT, WIDTH, EncodeDecode, Encoder, Whole, dot

NODES = 50


def graph(dtype=torch.float64):
    torch.manual_seed(5)
    links = torch.randint(0, NODES, (2, 40))
    return Data(
        x=torch.randn(NODES, WIDTH).to(dtype),
        edge_index=torch.randint(0, NODES, (2, 180)),
        edge_label_index=links[:, links[0] != links[1]],
    )


def built(case, dtype):
    torch.manual_seed(2)
    model, decoder = case[0]().to(dtype), case[1] and case[1]()
    return model, decoder.to(dtype) if isinstance(decoder, nn.Module) else decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("name", [*EXACT, *BENT])
def test_the_ways_people_write_it_are_certified(name, vary, dtype):
    model, decoder = built({**EXACT, **BENT}[name], dtype)
    data = graph(dtype)
    exposure = gr.expose_links(model, data, decoder=decoder, vary=vary)
    assert exposure.exact == (name in EXACT)
    assert exposure.residual <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert exposure.num_links == data.edge_label_index.shape[1]


class Weighted(nn.Module):
    """A last layer whose weights can be handed in, so that reweighting needs none of our code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(WIDTH, 7), GraphConv(7, 4)

    def hidden(self, x, edge_index):
        return self.conv1(x, edge_index).relu()

    def forward(self, x, edge_index, edge_weight):
        return self.conv2(self.hidden(x, edge_index), edge_index, edge_weight)


@pytest.mark.parametrize("vary", ["source", "target"])
def test_witnesses_do_in_the_model_itself_what_they_say(vary):
    data = graph()
    model = Weighted().double()
    data.edge_weight = torch.rand(180).double() + 0.1
    exposure = gr.expose_links(model, data, decoder=dot, vary=vary)
    solution = gr.solve(exposure, "flip")
    assert solution.check(exposure).ok
    end = 0 if vary == "source" else 1
    frozen = model(data.x, data.edge_index, data.edge_weight).detach()
    hidden = model.hidden(data.x, data.edge_index)
    for i in range(len(solution)):
        witness = solution[i]
        varied = int(solution.links[i, end])
        into = data.edge_index[1] == varied
        weight = data.edge_weight.clone()
        weight[into] = 0
        for source, share in zip(witness.sources, witness.coefficients, strict=True):
            place = (into & (data.edge_index[0] == int(source))).nonzero()[0]
            weight[place] += share
        if witness.terms.size:
            assert float(weight[into].sum()) == pytest.approx(float(data.edge_weight[into].sum()))
        moved = model.conv2(hidden, data.edge_index, weight).detach()
        ends = [frozen[solution.links[i, 0]], frozen[solution.links[i, 1]]]
        ends[end] = moved[varied]
        assert witness.value == pytest.approx(float(ends[0] @ ends[1]), abs=1e-12)


def test_no_reweighting_goes_beyond_the_bound():
    data, model = graph(), Weighted().double()
    data.edge_weight = torch.rand(180).double() + 0.1
    exposure = gr.expose_links(model, data, decoder=dot)
    ranges = gr.value_range(exposure)
    assert all(ranges.check(exposure))
    frozen = model(data.x, data.edge_index, data.edge_weight).detach()
    hidden = model.hidden(data.x, data.edge_index)
    for _ in range(30):
        shares = torch.rand(180).double() ** 4
        into = data.edge_index[1]
        mass = torch.zeros(NODES).double().index_add(0, into, data.edge_weight)
        drawn = torch.zeros(NODES).double().index_add(0, into, shares)
        moved = model.conv2(hidden, data.edge_index, shares * (mass / drawn)[into]).detach()
        source, target = exposure.links
        seen = (moved[source] * frozen[target]).sum(1).numpy()
        assert (seen <= ranges.high + 1e-12).all()
        assert (seen >= ranges.low - 1e-12).all()


def test_planted_friends_are_found():
    class Mean(nn.Module):
        def encode(self, x, edge_index):
            total = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
            return total / 4

        def decode(self, z, links):
            return (z[links[0]] * z[links[1]]).sum(1)

    data = planted_links()
    exposure = gr.expose_links(Mean(), data)
    there = torch.ones(exposure.num_links)
    solution = gr.solve(exposure, there)
    assert (solution.reachable == data.friend.numpy()).all()
    found = gr.reach(exposure, data.edge_label)
    wrong = (exposure.frozen_logits > 0) != data.edge_label
    assert found.micro_error.total == int(wrong.sum())
    missed = wrong & data.edge_label
    assert missed.any()
    hits = int((missed & data.friend).sum())
    own = solution.taken(np.flatnonzero(missed.numpy()))
    assert int(own.reachable.sum()) == hits
    community = data.x.argmax(1)
    for i in np.flatnonzero((missed & data.friend).numpy())[:5]:
        friend = int(solution[int(i)].sources[0])
        assert community[friend] == community[solution.links[i, 1]]


def test_bent_decoders_are_answered_in_three_values():
    model, decoder = built(BENT["perceptron of both ends"], torch.float64)
    data = graph()
    exposure = gr.expose_links(model, data, decoder=decoder)
    solution = gr.solve(exposure, "flip", torch.arange(8))
    assert solution.check(exposure).ok
    assert solution.links[:, 0].tolist() == data.edge_label_index[0, :8].tolist()
    assert set(solution.verdict.tolist()) <= {"can", "cannot", "undecided"}
    for i in np.flatnonzero(solution.verdict == "can"):
        assert solution.margin[i] > 0
        assert solution.bound[i] >= solution.margin[i] - 1e-9


def test_links_sharing_an_end_are_replayed_one_after_another():
    model, decoder = built(BENT["rectified embeddings"], torch.float64)
    data = graph()
    links = torch.tensor([[4, 4, 4, 9], [7, 8, 9, 4]])
    exposure = gr.expose_links(model, data, links, decoder=decoder)
    draw = torch.Generator().manual_seed(0)
    shares = torch.rand(1, exposure.mixture.num_terms, generator=draw, dtype=torch.float64)
    mass = exposure.mixture.mass / exposure.mixture.masses(shares)
    lengths = exposure.mixture.segments.diff()
    lam = shares[0] * torch.repeat_interleave(mass.view(-1), lengths)
    seen = exposure.mixture.replay(lam)[exposure.offset :, 0]
    assert torch.allclose(seen, exposure.logits(lam), atol=1e-12)


def test_words_frames_and_numbers():
    data = graph()
    exposure = gr.expose_links(EncodeDecode().double(), data)
    assert "each affine in its source's messages; the target stays as it is" in str(exposure)
    frame = exposure.to_frame([3])
    assert set(frame["from"]) == {int(data.edge_label_index[0, 3])}
    assert frame["coefficient"].sum() == pytest.approx(float(exposure.mixture.mass[0, 3].sum()))
    solution = gr.solve(exposure, "flip", [3, 5])
    first, last = data.edge_label_index[:, 3].tolist()
    assert str(solution[0]).startswith(f"link {first} → {last} ")
    assert solution.to_frame()["link"].tolist() == [3, 5]
    assert "LinkExposure" in repr(exposure)


def test_a_saved_solution_of_links_keeps_their_ends(tmp_path):
    exposure = gr.expose_links(EncodeDecode().double(), graph())
    solution = gr.solve(exposure, "flip")
    solution.save(tmp_path / "links")
    again = type(solution).load(tmp_path / "links")
    assert (again.links == solution.links).all()
    assert again.check(exposure).ok


def complex_product(z, links):
    whole = torch.view_as_complex(torch.stack([z, -z], -1))
    return (whole[links[0]] * whole[links[1]].conj()).real.sum(1)


def test_what_cannot_be_told_is_refused_by_name():
    data = graph()
    with pytest.raises(InputError, match="link 0 joins node 3 with itself"):
        gr.expose_links(EncodeDecode().double(), data, torch.tensor([[3], [3]]))
    with pytest.raises(InputError, match="product of two mixtures"):
        gr.expose_links(EncodeDecode().double(), data, vary="both")
    with pytest.raises(InputError, match="it has no encode and decode"):
        gr.expose_links(Encoder().double(), data)
    with pytest.raises(ExposureRefused, match="looks up no rows"):
        gr.expose_links(Encoder().double(), data, decoder=lambda z, links: (z @ z.t())[links[0], 0])
    with pytest.raises(ExposureRefused, match="looks up complex numbers; keep the real"):
        gr.expose_links(Encoder().double(), data, decoder=complex_product)

    strongest = EncodeDecode(lambda i, o: SAGEConv(i, o, aggr="max")).double()
    with pytest.raises(ExposureRefused, match="scatter_reduce"):
        gr.expose_links(strongest, data)


def test_links_that_are_the_graphs_own_edges_are_told_from_them():
    """Convolutions look up the same numbers, but with another tensor."""
    data = graph()
    own = data.edge_index[:, data.edge_index[0] != data.edge_index[1]][:, :30]
    data.edge_index = own
    model = Whole().double()
    exposure = gr.expose_links(model, data, own)
    expected = model(data.x, own, own).detach()
    assert torch.allclose(exposure.frozen_logits, expected, atol=1e-12)


class Skipping(nn.Module):
    """What stands beside the aggregate after a rectifier differs from node to node."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.skip = GraphConv(WIDTH, 5), nn.Linear(WIDTH, 5)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).relu() + self.skip(x)


@pytest.mark.parametrize("vary", ["source", "target"])
def test_skips_of_an_encoder_go_with_the_end_they_belong_to(vary):
    data, model = graph(), Skipping().double()
    exposure = gr.expose_links(model, data, decoder=dot, vary=vary)
    assert not exposure.exact
    assert exposure.residual <= 1e-12
    with torch.no_grad():
        expected = dot(model(data.x, data.edge_index), data.edge_label_index)
    assert torch.allclose(exposure.frozen_logits, expected, atol=1e-12)
    solution = gr.solve(exposure, "flip", torch.arange(3))
    assert solution.check(exposure).ok


def test_logits_are_asked_of_decoders_that_offer_them():
    model, _ = built(EXACT["GAE"], torch.float64)
    data = graph()
    exposure = gr.expose_links(model, data)
    assert "a decoder of z and links, without its sigmoid" in exposure.mixture.called
    assert "taken off" not in exposure.mixture.called
    with torch.no_grad():
        z = model.encode(data.x, data.edge_index)
        logits = model.decoder(z, data.edge_label_index, sigmoid=False)
    assert torch.allclose(exposure.frozen_logits, logits, atol=1e-12)
    model, decoder = built(EXACT["bilinear"], torch.float64)
    assert "a decoder of two rows" in gr.expose_links(model, data, decoder=decoder).mixture.called


def test_layers_side_by_side_are_no_chain_of_hops():
    """VGAE's two last layers share their weights, and neither reads the other."""
    model, _ = built(EXACT["VGAE"], torch.float64)
    exposure = gr.expose_links(model, graph())
    assert exposure.mixture.scope == ""
    assert "last hop" not in str(exposure)


def test_links_may_be_given_where_data_names_none():
    data = graph()
    links = data.edge_label_index
    del data.edge_label_index
    model = Whole().double()
    exposure = gr.expose_links(model, data, links)
    expected = model(data.x, data.edge_index, links).detach()
    assert torch.allclose(exposure.frozen_logits, expected, atol=1e-12)
    with pytest.raises(InputError, match="links is missing"):
        gr.expose_links(model, data)
    with pytest.raises(InputError, match="links is a list"):
        gr.expose_links(model, data, [[0], [1]])


def test_some_links_by_mask_and_by_number():
    exposure = gr.expose_links(EncodeDecode().double(), graph())
    mask = torch.zeros(exposure.num_links, dtype=torch.bool)
    mask[[2, 6]] = True
    whole = gr.solve(exposure, "flip")
    for chosen in (mask, [2, 6]):
        part = gr.solve(exposure, "flip", chosen)
        assert part.node.tolist() == [2, 6]
        assert part.margin.tolist() == whole.margin[[2, 6]].tolist()
    assert exposure.to_frame(mask)["link"].unique().tolist() == [2, 6]
    with pytest.raises(InputError, match="does not exist"):
        gr.solve(exposure, "flip", [exposure.num_links])


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("gap", [1.0, float("nan")])
def test_the_worst_draw_counts_and_no_number_is_the_worst(at, gap, monkeypatch):
    given = iter([0.0] * at + [gap] + [0.0] * (2 - at))
    monkeypatch.setattr(from_model, "relative_gap", lambda *_: next(given))
    with pytest.raises(ExposureRefused, match=re.escape(f"by {gap:.1e} of what they move")):
        gr.expose_links(EncodeDecode().double(), graph())
