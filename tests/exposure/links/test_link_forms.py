"""Further ways of asking about links: in the graph, between types, with more than a graph."""

from __future__ import annotations

import re

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.links.calls import chosen_links, relation_of
from tests.helpers.models.link_form_models import (
    BACK,
    RATES,
    Embedding,
    OfData,
    Ratings,
    RatingsOfData,
    TrueAndSampled,
    TwoClasses,
    graph,
    product,
    ratings,
)


@pytest.mark.parametrize("model", [OfData, TrueAndSampled, TwoClasses])
@pytest.mark.parametrize("vary", ["source", "target"])
def test_forms_of_forward(model, vary):
    data, torch_model = graph(), model().double()
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


def test_a_decoder_may_know_more_of_each_link():
    """Scores by the kind of link (DistMult), and a number of each link beside its ends."""
    torch.manual_seed(1)
    data, model = graph(), Embedding().double()
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
        gr.expose_links(Embedding().double(), graph(), decoder=decoder)


def test_a_forward_of_a_graph_without_links_says_so():
    class Lost(Embedding):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    data = graph()
    links = data.edge_label_index
    del data.edge_label_index
    with pytest.raises(InputError, match="takes data, none of them links"):
        gr.expose_links(Lost().double(), data, links)


# Links between nodes of two types --------------------------------------------------------------


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
        gr.expose_links(Embedding().double(), graph(), relation=RATES, decoder=product)


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
