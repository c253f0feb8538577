"""Links with one end reweighted, checked by running models on really changed weights."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, SAGEConv

import gnn_repair as gr
from gnn_repair.datasets import planted_links
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.links import from_model
from gnn_repair.exposure.links.calls import chosen_links, relation_of
from tests.helpers.models.link_form_models import (
    BACK,
    RATES,
    AlongLinks,
    Embedding,
    OfData,
    OfTrueGraph,
    Ratings,
    RatingsOfData,
    TrueAndSampled,
    TwoClasses,
    product,
    ratings,
)
from tests.helpers.models.link_form_models import NODES as NODES_OTHER_TABLES
from tests.helpers.models.link_form_models import graph as graph_link_forms
from tests.helpers.models.link_form_models import graph as graph_other_tables
from tests.helpers.models.link_models import BENT, EXACT, WIDTH, EncodeDecode, Encoder, Whole, dot

# Links with one end reweighted, checked by running models by hand on really changed weights.

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


@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("chosen", [None, [6, 1, 3], [5]])
def test_every_row_of_a_frame_names_the_ends_of_its_own_link(chosen, vary):
    exposure = gr.expose_links(EncodeDecode().double(), graph(), vary=vary)
    frame, mixture = exposure.to_frame(chosen), exposure.mixture
    asked = range(exposure.num_links) if chosen is None else chosen
    assert list(dict.fromkeys(frame["link"])) == list(asked)
    for link, rows in frame.groupby("link"):
        source, target = exposure.links[:, link].tolist()
        assert set(rows["from"]) == {source} and set(rows["to"]) == {target}
        terms = slice(*mixture.segments[link : link + 2].tolist())
        senders = mixture.sources[mixture.rows[terms].long()]
        assert rows["source"].tolist() == senders.tolist()
        assert rows["coefficient"].tolist() == mixture.coefficients[0, terms].tolist()


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
    with pytest.raises(InputError, match=r"give \[2, L\], as links.t\(\) is"):
        gr.expose_links(model, data, links.t())


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


# Further ways of asking about links: in the graph, between types, with more than a graph.


@pytest.mark.parametrize("model", [OfData, TrueAndSampled, OfTrueGraph, TwoClasses])
@pytest.mark.parametrize("vary", ["source", "target"])
def test_forms_of_forward(model, vary):
    data, torch_model = graph_link_forms(), model().double()
    exposure = gr.expose_links(torch_model, data, vary=vary)
    assert exposure.residual <= 1e-12
    assert exposure.exact or model is TwoClasses
    with torch.no_grad():
        if model is TwoClasses:
            both = torch_model.both(data.x, data.edge_index, data.edge_label_index)
            told = both[:, 1] - both[:, 0]
        else:
            z = Embedding.forward(torch_model, data.x, data.edge_index)
            told = product(z, data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    other = gr.expose_links(torch_model, data, data.edge_label_index[:, 3:7], vary=vary)
    torch.testing.assert_close(other.frozen_logits, told[3:7], rtol=1e-12, atol=1e-12)


def test_a_graph_under_the_name_of_links_stays_the_graph():
    torch.manual_seed(1)
    data, model = graph_link_forms(), OfTrueGraph().double()
    data.train_pos_edge_index = data.edge_index.flip(0)
    exposure = gr.expose_links(nn.DataParallel(model), data)
    with torch.no_grad():
        z = Embedding.forward(model, data.x, data.train_pos_edge_index)
    told = product(z, data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    assert "(x, train_pos_edge_index, edge_label_index=links)" in str(exposure)
    with pytest.raises(InputError, match="pos_edge_index, none of them links"):
        gr.expose_links(AlongLinks().double(), data)
    with pytest.raises(InputError, match=r"encode and decode, .* use expose_links"):
        gr.diagnose(built(EXACT["GAE"], torch.float64)[0], data)


def inverse(z, links):
    return 1 / (1 + (z[links[0]] - z[links[1]]).square().sum(1))


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (lambda z, links: z[links[0]] * z[links[1]], "several outputs per link are unsupported"),
        (lambda z, links: product(z, links[:, 0]), r"for 17 links; pass the encoder"),
        (lambda z, links: product(z, links.t()), r"read them as pairs \[L, 2\] are unsupported"),
        (lambda z, links: [product(z, links)] * 2, r"shape \[17\] and a tensor of shape \[17\]"),
        (inverse, None),
    ],
)
def test_outputs_of_decoders_that_are_no_logit_per_link(decoder, words):
    data, model = graph_link_forms(), Embedding().double()
    data.edge_label_index = data.edge_label_index[:, :17]
    if words is None:
        assert "outputs all lie between 0 and 1" in str(
            gr.expose_links(model, data, decoder=decoder)
        )
    else:
        with pytest.raises(InputError, match=words):
            gr.expose_links(model, data, decoder=decoder)


def test_a_decoder_may_know_more_of_each_link():
    """Scores by the kind of link (DistMult), and a number of each link beside its ends."""
    torch.manual_seed(1)
    data, model = graph_link_forms(), Embedding().double()
    count = data.edge_label_index.shape[1]
    kinds, table = torch.arange(count) % 3, torch.randn(3, 4).double()
    common = torch.rand(count).double()

    def decoder(z, links):
        return (z[links[0]] * table[kinds] * z[links[1]]).sum(1) + common

    exposure = gr.expose_links(model, data, decoder=decoder)
    assert exposure.exact and exposure.residual <= 1e-12
    with torch.no_grad():
        told = decoder(model(data.x, data.edge_index), data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    bent = gr.expose_links(model, data, decoder=lambda z, links: decoder(z, links).tanh())
    assert not bent.exact and bent.residual <= 1e-12
    assert gr.solve(bent, "flip", torch.arange(5)).check(bent).ok


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (lambda z, links, edge_type: z[links[0], 0], "the decoder takes 'edge_type', too"),
        (lambda z, pick: (z @ z.t())[pick[0], pick[1]], "looks up no rows of its embeddings"),
    ],
)
def test_what_a_decoder_lacks_is_named(decoder, words):
    with pytest.raises((InputError, ExposureRefused), match=re.escape(words)):
        gr.expose_links(Embedding().double(), graph_link_forms(), decoder=decoder)


def test_a_forward_of_a_graph_without_links_says_so():
    class Lost(Embedding):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    data = graph_link_forms()
    links = data.edge_label_index
    del data.edge_label_index
    with pytest.raises(InputError, match="takes data, none of them links"):
        gr.expose_links(Lost().double(), data, links)


@pytest.mark.parametrize("model", [Ratings, RatingsOfData])
@pytest.mark.parametrize("vary", ["source", "target"])
def test_witnesses_of_links_between_types_do_what_they_say(model, vary):
    data, end = ratings(), 0 if vary == "source" else 1
    torch.manual_seed(0)
    network = model().double()
    exposure = gr.expose_links(network, data, vary=vary)
    assert exposure.residual <= 1e-12 and exposure.mixture.num_groups == 2
    solution = gr.solve(exposure, "flip")
    assert solution.check(exposure).ok
    kind, into = (RATES, BACK)[1 - end], ("user", "movie")[end]
    sender = kind[0]
    with torch.no_grad():
        frozen = network.embeddings(data.x_dict, data.edge_index_dict, data.edge_weight_dict)
        for i in range(len(solution)):
            witness, (user, movie) = solution[i], solution.links[i]
            varied = (user, movie)[end]
            plain = {k: torch.ones_like(w) for k, w in data.edge_weight_dict.items()}
            layers = [plain, dict(data.edge_weight_dict)]
            mine = data[kind].edge_index[1] == int(varied)
            for layer in layers:
                layer[kind] = layer[kind] * ~mine
            for place, source in enumerate(witness.sources):
                number = exposure.mixture.names.split(source.reshape(1))
                assert number[0][0] == sender
                own = mine & (data[kind].edge_index[0] == int(number[1][0]))
                weight = layers[int(witness.groups[place])][kind]
                weight[own.nonzero()[0]] += witness.coefficients[place]
            moved = network.embeddings(data.x_dict, data.edge_index_dict, layers[1], layers[0])
            ends = [frozen["user"][user], frozen["movie"][movie]]
            ends[end] = moved[into][int(varied)]
            assert witness.value == pytest.approx(float(ends[0] @ ends[1]), abs=1e-12)


def test_a_tail_between_types_and_the_words_of_its_frame():
    torch.manual_seed(0)
    data = ratings()
    exposure = gr.expose_links(Ratings(bent=True).double(), data)
    assert not exposure.exact and exposure.residual <= 1e-12
    assert gr.solve(exposure, "flip", torch.arange(3)).check(exposure).ok
    frame = exposure.to_frame([0])
    assert set(frame["source_type"]) == {"movie"} and {
        name.partition(" (")[0] for name in frame["group"]
    } == {" ".join(BACK)}


def test_which_relation_is_asked_about():
    data, model = ratings(), Ratings().double()
    links = data[RATES].edge_label_index
    del data[RATES].edge_label_index
    with pytest.raises(InputError, match="0 relations of data hold edge_label_index; say with rel"):
        gr.expose_links(model, data, links)
    assert gr.expose_links(model, data, links, relation=RATES).num_links == 8
    with pytest.raises(InputError, match=r"relation is \('user', 'buys', 'movie'\); choose one of"):
        gr.expose_links(model, data, links, relation=("user", "buys", "movie"))
    with pytest.raises(InputError, match="links names movie 12, which does not exist"):
        gr.expose_links(model, data, torch.tensor([[0], [12]]), relation=RATES)
    with pytest.raises(InputError, match="without types of nodes; leave it out"):
        gr.expose_links(Embedding().double(), graph_link_forms(), relation=RATES, decoder=product)


# Decoders that look up more than embeddings for the ends of a link.


def extra(kind: str, data):
    torch.manual_seed(9)
    table = torch.randn(NODES_OTHER_TABLES, 4 if kind != "narrow" else 3).double()
    bias = torch.randn(NODES_OTHER_TABLES).double()

    def decoder(z, links):
        if kind == "bias":
            return product(z, links) + bias[links[0]] - bias[links[1]]
        if kind == "features":
            return product(z, links) + product(data.x, links)
        if kind == "before":
            return product(table, links) + product(z, links)
        return product(z, links) + product(table, links)

    return decoder


@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("kind", ["bias", "features", "before", "after", "narrow"])
def test_tables_that_no_message_reaches_stay(kind, vary):
    torch.manual_seed(1)
    data, model = graph_other_tables(), Embedding().double()
    decoder = extra(kind, data)
    exposure = gr.expose_links(model, data, decoder=decoder, vary=vary)
    assert exposure.exact and exposure.residual <= 1e-12
    with torch.no_grad():
        told = decoder(model(data.x, data.edge_index), data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    plain = gr.expose_links(model, data, decoder=product, vary=vary)
    terms = [e.mixture.contributions[0, e.mixture.rows.long()] for e in (exposure, plain)]
    torch.testing.assert_close(*terms, rtol=1e-12, atol=1e-12)


class Scored(Embedding):
    """Trained numbers of nodes beside their embeddings, all in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Embedding(NODES_OTHER_TABLES, 4)

    def forward(self, x, edge_index, edge_label_index):
        z = super().forward(x, edge_index)
        source, target = edge_label_index
        return (self.own(source) * self.own(target)).sum(1) + (z[source] * z[target]).sum(1)


def test_trained_tables_in_a_forward_stay():
    torch.manual_seed(1)
    data, model = graph_other_tables(), Scored().double()
    exposure = gr.expose_links(model, data)
    with torch.no_grad():
        told = model(data.x, data.edge_index, data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    assert exposure.exact and exposure.residual <= 1e-12


def test_of_two_layers_that_are_looked_up_the_first_is_held_by_name():
    class Layers(Embedding):
        def forward(self, x, edge_index, edge_label_index):
            first = self.conv1(x, edge_index).relu()
            second = self.conv2(first, edge_index)
            return product(first, edge_label_index) + product(second, edge_label_index)

    torch.manual_seed(1)
    exposure = gr.expose_links(Layers().double(), graph_other_tables())
    assert [group.name for group in exposure.mixture.groups] == ["conv2"]
    assert "`conv1` (SAGEConv)" in exposure.mixture.scope


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("gap", [1.0, float("nan")])
def test_the_worst_draw_counts_and_no_number_is_the_worst(at, gap, monkeypatch):
    given = iter([0.0] * at + [gap] + [0.0] * (2 - at))
    monkeypatch.setattr(from_model, "relative_gap", lambda *_: next(given))
    with pytest.raises(ExposureRefused, match=re.escape(f"by {gap:.1e} of what they move")):
        gr.expose_links(EncodeDecode().double(), graph())


FOLLOWS, LIKES = ("user", "follows", "user"), ("user", "likes", "user")


@pytest.mark.parametrize(
    "held", [[], [RATES], [FOLLOWS], [RATES, FOLLOWS], [FOLLOWS, LIKES, RATES]]
)
def test_a_relation_is_taken_for_granted_where_one_alone_holds_links(held):
    data = HeteroData()
    for kind in (RATES, FOLLOWS, LIKES):
        data[kind].edge_index = torch.tensor([[0], [1]])
    for kind in held:
        data[kind].edge_label_index = torch.tensor([[0], [1]])
    if len(held) == 1:
        assert relation_of(data, None) == held[0]
    else:
        with pytest.raises(InputError, match=f"{len(held)} relations of data hold edge_label_ind"):
            relation_of(data, None)
    assert relation_of(data, LIKES) == LIKES


@pytest.mark.parametrize("relation", [None, RATES, FOLLOWS])
def test_a_link_joins_two_different_nodes(relation):
    """Numbers are equal in every case; only between two types are they of two nodes."""
    data = Data(num_nodes=4) if relation is None else HeteroData()
    for kind in set((relation or ())[::2]):
        data[kind].num_nodes = 4
    links = torch.tensor([[0, 2], [1, 2]])
    if relation == RATES:
        assert torch.equal(chosen_links(data, links, relation), links)
    else:
        with pytest.raises(InputError, match=r"link 1.* joins \w+ 2 with itself"):
            chosen_links(data, links, relation)


OTHERS = {
    "its own": lambda score, z, end: score - z[end].square().sum(1),
    "that of the link before": lambda score, z, end: score - z[end.roll(1)].square().sum(1),
    "a mean over links": lambda score, z, end: score - score.mean(),
}
"""By what is read: the logit of a score, all embeddings and the nodes at the other end."""


@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("other", OTHERS)
def test_what_a_logit_reads_of_other_links_is_held_by_name(vary, other):
    def decoder(z, links):
        end, score = links[1 if vary == "source" else 0], (z[links[0]] * z[links[1]]).sum(1)
        return OTHERS[other](score, z, end)

    torch.manual_seed(3)
    exposure = gr.expose_links(Encoder().double(), graph(), decoder=decoder, vary=vary)
    held = [part.title for part in exposure.mixture.held if part.beside]
    assert held == ["the decoder"] * (other != "its own")
