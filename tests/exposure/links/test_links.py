"""Links with one end reweighted, checked by running models on really changed weights."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, SAGEConv, SGConv

import gnn_repair as gr
from gnn_repair.datasets import planted_links
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.links import from_model
from gnn_repair.exposure.links.from_model import chosen_links, relation_of
from tests.helpers.models import link_form_models as forms
from tests.helpers.models.link_form_models import BACK, RATES, Embedding, product, ratings
from tests.helpers.models.link_models import BENT, EXACT, WIDTH, EncodeDecode, Encoder, Whole, dot
from tests.helpers.models.made import Made

NODES = 50
ends = pytest.mark.parametrize("vary", ["source", "target"])


def graph():
    torch.manual_seed(5)
    links = torch.randint(0, NODES, (2, 40))
    return Data(
        x=torch.randn(NODES, WIDTH).double(),
        edge_index=torch.randint(0, NODES, (2, 180)),
        edge_label_index=links[:, links[0] != links[1]],
    )


def built(case):
    torch.manual_seed(2)
    model, decoder = case[0]().double(), case[1] and case[1]()
    return model, decoder.double() if isinstance(decoder, nn.Module) else decoder


def says(exposure, told):
    """The exposure is certified, and its logits are these."""
    assert exposure.residual <= 1e-12
    torch.testing.assert_close(exposure.frozen_logits, told.detach(), rtol=1e-12, atol=1e-12)


# Answers do in the model what they say ------------------------------------------------------------


class Weighted(nn.Module):
    """A last layer whose weights can be handed in, so that reweighting needs none of our code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(WIDTH, 7), GraphConv(7, 4)

    def hidden(self, x, edge_index):
        return self.conv1(x, edge_index).relu()

    def forward(self, x, edge_index, edge_weight):
        return self.conv2(self.hidden(x, edge_index), edge_index, edge_weight)


@ends
@torch.no_grad()
def test_witnesses_and_bounds_hold_in_the_model_itself(vary):
    data, model, end = graph(), Weighted().double(), ("source", "target").index(vary)
    data.edge_weight = torch.rand(180).double() + 0.1
    exposure = gr.expose_links(model, data, decoder=dot, vary=vary)
    solution, ranges = gr.solve(exposure, "flip"), gr.value_range(exposure)
    assert solution.check(exposure).ok and all(ranges.check(exposure))
    frozen = model(data.x, data.edge_index, data.edge_weight)
    hidden, (sent, into) = model.hidden(data.x, data.edge_index), data.edge_index

    def values(weight):
        """Logits of all links, and whether no mass was won or lost."""
        moved = model.conv2(hidden, data.edge_index, weight)
        both = [frozen, frozen]
        both[end] = moved
        return (both[0][exposure.links[0]] * both[1][exposure.links[1]]).sum(1).numpy()

    for i, witness in enumerate(solution):
        mine = into == int(solution.links[i, end])
        weight = data.edge_weight * ~mine
        for source, share in zip(witness.sources, witness.coefficients, strict=True):
            weight[(mine & (sent == int(source))).nonzero()[0]] += share
        if witness.terms.size:
            assert float(weight[mine].sum()) == pytest.approx(float(data.edge_weight[mine].sum()))
        assert witness.value == pytest.approx(values(weight)[i], abs=1e-12)
    mass = torch.zeros(NODES).double().index_add(0, into, data.edge_weight)
    for _ in range(30):
        shares = torch.rand(180).double() ** 4
        drawn = torch.zeros(NODES).double().index_add(0, into, shares)
        seen = values(shares * (mass / drawn)[into])
        assert (seen <= ranges.high + 1e-12).all() and (seen >= ranges.low - 1e-12).all()


def test_planted_friends_are_found():
    class Mean(nn.Module):
        def encode(self, x, edge_index):
            return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) / 4

        def decode(self, z, links):
            return (z[links[0]] * z[links[1]]).sum(1)

    data = planted_links()
    exposure = gr.expose_links(Mean(), data)
    solution = gr.solve(exposure, torch.ones(exposure.num_links))
    assert (solution.reachable == data.friend.numpy()).all()
    wrong = (exposure.frozen_logits > 0) != data.edge_label
    found = gr.reach(exposure, data.edge_label)
    assert found.micro_error.total == int(wrong.sum())
    missed = (wrong & data.edge_label & data.friend).nonzero().view(-1)
    community = data.x.argmax(1)
    assert len(missed)
    for i in missed[:5].tolist():
        friend = int(solution[i].sources[0])
        assert community[friend] == community[solution.links[i, 1]]


@pytest.mark.parametrize("name", ["linear in forward", "perceptron of both ends"])
def test_answers_are_about_the_links_that_are_chosen(name, tmp_path):
    model, decoder = built({**EXACT, **BENT}[name])
    data = graph()
    exposure = gr.expose_links(model, data, decoder=decoder)
    mask = torch.zeros(exposure.num_links, dtype=torch.bool)
    mask[[2, 6]] = True
    whole = gr.solve(exposure, "flip", torch.arange(8))
    assert exposure.exact == (name in EXACT) and whole.check(exposure).ok
    assert set(whole.verdict.tolist()) <= {"can", "cannot", "undecided"}
    can = whole.verdict == "can"
    assert (whole.margin[can] > 0).all() and (whole.bound >= whole.margin - 1e-9).all()
    for chosen in (mask, [2, 6]):
        part = gr.solve(exposure, "flip", chosen)
        assert part.node.tolist() == part.to_frame()["link"].tolist() == [2, 6]
        assert part.margin.tolist() == whole.margin[[2, 6]].tolist()
        assert part.links.tolist() == data.edge_label_index[:, [2, 6]].t().tolist()
    first, last = data.edge_label_index[:, 2].tolist()
    assert str(part[0]).startswith(f"link {first} → {last} ")
    with pytest.raises(InputError, match="does not exist"):
        gr.solve(exposure, "flip", [exposure.num_links])
    if not exposure.exact:
        return
    whole.save(tmp_path / "links")
    again = type(whole).load(tmp_path / "links")
    assert (again.links == whole.links).all() and again.check(exposure).ok


@ends
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
    other = "target" if vary == "source" else "source"
    assert f"{vary}'s messages; the {other} stays" in str(exposure)
    assert f"{vary}s varied, {mixture.num_terms:,} messages" in repr(exposure)
    with pytest.raises(InputError, match=r"\[2, 40\]"):
        replace(exposure, links=exposure.links[:, 1:])


# What cannot be told ------------------------------------------------------------------------------


def complex_product(z, links):
    whole = torch.view_as_complex(torch.stack([z, -z], -1))
    return (whole[links[0]] * whole[links[1]].conj()).real.sum(1)


class AlongLinks(Embedding):
    def forward(self, x, edge_index, pos_edge_index):
        return product(super().forward(x, pos_edge_index), pos_edge_index)


ASKED = (
    ({"vary": "both"}, "product of two mixtures"),
    ({"decoder": None}, "no encode and decode.*decoder="),
    ({"links": [[0], [1]]}, "links is a list"),
    ({"links": torch.zeros(4, 2).long()}, r"give \[2, L\], as links.t\(\) is"),
    ({"links": torch.zeros(2, 4)}, "whole numbers"),
    ({"links": torch.tensor([[0], [NODES]])}, rf"node {NODES}, .* exist"),
    ({"links": torch.tensor([[-1], [3]])}, r"node -1, .* exist"),
    ({"relation": RATES}, "without types of nodes; leave it out"),
)
DECODERS = (
    (lambda z, links: (z @ z.t())[links[0], 0], "looks up no rows"),
    (lambda z, pick: (z @ z.t())[pick[0], pick[1]], "looks up no rows"),
    (complex_product, "complex numbers; keep the real"),
    (lambda z, links, edge_type: z[links[0], 0], "takes 'edge_type', too"),
    (lambda z, links: z[links[0]] * z[links[1]], "several outputs per link"),
    (lambda z, links: dot(z, links[:, :3]), "shape .3. for 40 links; pass the encoder"),
    (lambda z, links: product(z, links.t()), r"pairs \[L, 2\]"),
    (lambda z, links: [dot(z, links)] * 2, "and a tensor of shape"),
)


@pytest.mark.parametrize(
    ("how", "words"), [*ASKED, *(({"decoder": one}, words) for one, words in DECODERS)]
)
def test_what_cannot_be_told_is_refused_by_name(how, words):
    with pytest.raises((InputError, ExposureRefused), match=words):
        gr.expose_links(Encoder().double(), graph(), **({"decoder": dot} | how))


def test_what_has_no_links_or_no_sums_is_refused_by_name():
    data = graph()
    with pytest.raises(ExposureRefused, match="scatter_reduce"):
        gr.expose_links(EncodeDecode(lambda i, o: SAGEConv(i, o, aggr="max")).double(), data)
    del data.edge_label_index
    with pytest.raises(InputError, match="links is missing"):
        gr.expose_links(EncodeDecode().double(), data)


def test_what_is_asked_of_classes_alone_names_what_is_asked_of_links():
    exposure = gr.expose_links(EncodeDecode().double(), graph())
    for ask in (gr.nearest_reweighting, gr.class_reach):
        with pytest.raises(InputError, match="exposure is of links; ask solve, reach, value_range"):
            ask(exposure, torch.ones(exposure.num_links))


def test_forwards_that_take_no_links_say_so():
    lost = Made(lambda self, data: self.inner(data.x, data.edge_index), inner=Encoder())
    data = graph()
    links = data.edge_label_index
    with pytest.raises(InputError, match="pos_edge_index, none of them links"):
        gr.expose_links(AlongLinks().double(), forms.graph())
    with pytest.raises(InputError, match=r"encode and decode, .* use expose_links"):
        gr.diagnose(built(EXACT["GAE"])[0], data)
    del data.edge_label_index
    with pytest.raises(InputError, match="takes data, none of them links"):
        gr.expose_links(lost.double(), data, links)


# How links are asked for --------------------------------------------------------------------------


def test_links_that_are_the_graphs_own_edges_are_told_from_them():
    """Convolutions look up the same numbers, but with another tensor; data need not name links."""
    data, model = graph(), Whole().double()
    own = data.edge_index[:, data.edge_index[0] != data.edge_index[1]][:, :30]
    data.edge_index = own
    del data.edge_label_index
    says(gr.expose_links(model, data, own), model(data.x, own, own))


@ends
def test_skips_of_an_encoder_go_with_the_end_they_belong_to(vary):
    """What stands beside the aggregate after a rectifier differs from node to node."""

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).relu() + self.skip(x)

    data = graph()
    model = Made(forward, conv=GraphConv(WIDTH, 5), skip=nn.Linear(WIDTH, 5)).double()
    exposure = gr.expose_links(model, data, decoder=dot, vary=vary)
    assert not exposure.exact
    says(exposure, dot(model(data.x, data.edge_index), data.edge_label_index))
    assert gr.solve(exposure, "flip", torch.arange(3)).check(exposure).ok


def test_logits_are_asked_of_decoders_that_offer_them():
    """VGAE's two last layers share their weights, and neither reads the other: no hops."""
    (model, _), data = built(EXACT["GAE"]), graph()
    exposure = gr.expose_links(model, data)
    z = model.encode(data.x, data.edge_index)
    says(exposure, model.decoder(z, data.edge_label_index, sigmoid=False))
    assert "without its sigmoid" in exposure.mixture.called
    assert "taken off" not in exposure.mixture.called
    exposure = gr.expose_links(built(EXACT["VGAE"])[0], data)
    assert exposure.mixture.scope == "" and "last hop" not in str(exposure)


@ends
def test_the_last_hop_alone(vary):
    data, model = graph(), SGConv(WIDTH, 5, K=2).double()
    told = dot(model(data.x, data.edge_index), data.edge_label_index)
    whole, last = (
        gr.expose_links(model, data, decoder=dot, vary=vary, hops=hops)
        for hops in ("paths", "last")
    )
    for exposure in (whole, last):
        says(exposure, told)
    assert whole.mixture.scope == "" and "last hop only" in last.mixture.scope
    assert last.mixture.num_terms < whole.mixture.num_terms


@pytest.mark.parametrize("kind", ["OfData", "TrueAndSampled", "OfTrueGraph", "TwoClasses"])
@ends
def test_forms_of_forward(kind, vary):
    torch.manual_seed(1)
    data, model = forms.graph(), getattr(forms, kind)().double()
    edges, links = data.edge_index, data.edge_label_index
    if kind == "OfTrueGraph":  # a graph under the name of links stays the graph
        edges = data.train_pos_edge_index = data.edge_index.flip(0)
    exposure = gr.expose_links(nn.DataParallel(model).cpu(), data, vary=vary)
    assert exposure.exact == (kind != "TwoClasses")
    if kind == "TwoClasses":
        both = model.both(data.x, edges, links)
        told = both[:, 1] - both[:, 0]
    else:
        told = product(Embedding.forward(model, data.x, edges), links)
    says(exposure, told)
    says(gr.expose_links(model, data, links[:, 3:7], vary=vary), told[3:7])
    assert data.edge_label_index is links
    if kind == "OfTrueGraph":
        assert "(x, train_pos_edge_index, edge_label_index=links)" in str(exposure)


def test_links_are_found_among_other_arguments_and_logits_among_other_outputs():
    def forward(self, x, edge_index, link_scale, edge_label_index):
        logits = link_scale * dot(self.inner(x, edge_index), edge_label_index)
        return {"p": logits.sigmoid(), "logits": logits}

    data, model = graph(), Made(forward, inner=Encoder()).double()
    data.link_scale = torch.tensor(2.0).double()
    links = data.edge_label_index
    says(gr.expose_links(model, data), 2 * dot(model.inner(data.x, data.edge_index), links))


def test_a_decoder_may_read_the_links_of_data_where_they_are_those():
    data, model = graph(), Encoder().double()
    links = data.edge_label_index

    def decoder(z, _):
        return dot(z, data.edge_label_index)

    exposure = gr.expose_links(model, data, decoder=decoder)
    says(exposure, dot(model(data.x, data.edge_index), links))
    with pytest.raises(ExposureRefused, match="looks up no rows"):
        gr.expose_links(model, data, links.flip(1), decoder=decoder)


def test_probabilities_that_are_no_sigmoid_are_pointed_out():
    def inverse(z, links):
        return 1 / (1 + (z[links[0]] - z[links[1]]).square().sum(1))

    exposure = gr.expose_links(Embedding().double(), forms.graph(), decoder=inverse)
    assert "between 0 and 1" in str(exposure)


# Decoders that look up more than embeddings -------------------------------------------------------

OWN = {
    "bias": lambda z, e, x, table, bias: product(z, e) + bias[e[0]] - bias[e[1]],
    "features": lambda z, e, x, table, bias: product(z, e) + product(x, e),
    "before": lambda z, e, x, table, bias: product(table, e) + product(z, e),
    "after": lambda z, e, x, table, bias: product(z, e) + product(table, e),
    "narrow": lambda z, e, x, table, bias: product(z, e) + product(table[:, :3], e),
    "of each link": lambda z, e, x, table, bias: product(z, e) + bias[: e.shape[1]],
}
"""By what is read: embeddings, links, features, a table of vectors and one of numbers."""


@ends
@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("kind", OWN)
def test_tables_that_no_message_reaches_stay(kind, bent, vary):
    torch.manual_seed(9)
    table, bias = torch.randn(forms.NODES, 4).double(), torch.randn(forms.NODES).double()
    torch.manual_seed(1)
    data, model = forms.graph(), Embedding().double()

    def decoder(z, links):
        out = OWN[kind](z, links, data.x, table, bias)
        return out.tanh() if bent else out

    exposure = gr.expose_links(model, data, decoder=decoder, vary=vary)
    says(exposure, decoder(model(data.x, data.edge_index), data.edge_label_index))
    assert exposure.exact != bent
    if not bent:
        plain = gr.expose_links(model, data, decoder=product, vary=vary)
        terms = [e.mixture.contributions[0, e.mixture.rows.long()] for e in (exposure, plain)]
        torch.testing.assert_close(*terms, rtol=1e-12, atol=1e-12)


def test_kinds_of_links_and_trained_tables_of_a_forward_stay():
    """Scores by the kind of link (DistMult); trained numbers of nodes beside their embeddings."""
    torch.manual_seed(1)
    data, model, table = forms.graph(), Embedding().double(), torch.randn(3, 4).double()
    kinds = torch.arange(data.edge_label_index.shape[1]) % 3

    def decoder(z, links):
        return (z[links[0]] * table[kinds] * z[links[1]]).sum(1)

    exposure = gr.expose_links(model, data, decoder=decoder)
    says(exposure, decoder(model(data.x, data.edge_index), data.edge_label_index))

    def forward(self, x, edge_index, edge_label_index):
        z, (source, target) = self.inner(x, edge_index), edge_label_index
        return (self.own(source) * self.own(target)).sum(1) + (z[source] * z[target]).sum(1)

    scored = Made(forward, inner=model, own=nn.Embedding(forms.NODES, 4)).double()
    both = gr.expose_links(scored, data)
    says(both, scored(data.x, data.edge_index, data.edge_label_index))
    assert exposure.exact and both.exact


def test_of_two_layers_that_are_looked_up_the_first_is_held_by_name():
    class Layers(Embedding):
        def forward(self, x, edge_index, edge_label_index):
            first = self.conv1(x, edge_index).relu()
            second = self.conv2(first, edge_index)
            return product(first, edge_label_index) + product(second, edge_label_index)

    torch.manual_seed(1)
    exposure = gr.expose_links(Layers().double(), forms.graph())
    assert [group.name for group in exposure.mixture.groups] == ["conv2"]
    assert "`conv1` (SAGEConv)" in exposure.mixture.scope


OTHERS = {
    "its own": lambda score, z, end: score - z[end].square().sum(1),
    "that of the link before": lambda score, z, end: score - z[end.roll(1)].square().sum(1),
    "a mean over links": lambda score, z, end: score - score.mean(),
    "all nodes for its own": lambda score, z, end: score - (score[:, None] * z[:, 0]).cos().mean(1),
}
"""By what is read: the logit of a score, all embeddings and the nodes at the other end."""


@ends
@pytest.mark.parametrize("other", OTHERS)
def test_what_a_logit_reads_of_other_links_is_held_by_name(vary, other):
    def decoder(z, links):
        end, score = links[1 if vary == "source" else 0], (z[links[0]] * z[links[1]]).sum(1)
        return OTHERS[other](score, z, end)

    torch.manual_seed(3)
    exposure = gr.expose_links(Encoder().double(), graph(), decoder=decoder, vary=vary)
    held = [part.title for part in exposure.mixture.held if part.beside]
    assert held == ["the decoder"] * (other != "its own")


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("gap", [1.0, float("nan")])
def test_the_worst_draw_counts_and_no_number_is_the_worst(at, gap, monkeypatch):
    given = iter([0.0] * at + [gap] + [0.0] * (2 - at))
    monkeypatch.setattr(from_model, "relative_gap", lambda *_: next(given))
    with pytest.raises(ExposureRefused, match=re.escape(f"by {gap:.1e} of what they move")):
        gr.expose_links(EncodeDecode().double(), graph())


def test_a_larger_residual_is_accepted_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(from_model, "relative_gap", lambda *_: 5e-12)
    exposure = gr.expose_links(EncodeDecode().double(), graph(), tolerance=1e-11)
    assert exposure.residual == 5e-12


# Between types ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [forms.Ratings, forms.RatingsOfData])
@ends
@torch.no_grad()
def test_witnesses_of_links_between_types_do_what_they_say(model, vary):
    data, end = ratings(), 0 if vary == "source" else 1
    torch.manual_seed(0)
    network = model().double()
    exposure = gr.expose_links(network, data, vary=vary)
    assert exposure.residual <= 1e-12 and exposure.mixture.num_groups == 2
    solution = gr.solve(exposure, "flip")
    assert solution.check(exposure).ok
    kind, into = (RATES, BACK)[1 - end], ("user", "movie")[end]
    frozen = network.embeddings(data.x_dict, data.edge_index_dict, data.edge_weight_dict)
    for witness, (user, movie) in zip(solution, solution.links, strict=True):
        varied = (user, movie)[end]
        plain = {k: torch.ones_like(w) for k, w in data.edge_weight_dict.items()}
        layers = [plain, dict(data.edge_weight_dict)]
        mine = data[kind].edge_index[1] == int(varied)
        for layer in layers:
            layer[kind] = layer[kind] * ~mine
        for place, source in enumerate(witness.sources):
            (sender,), (number,) = exposure.mixture.names.split(source.reshape(1))
            assert sender == kind[0]
            own = mine & (data[kind].edge_index[0] == int(number))
            weight = layers[int(witness.groups[place])][kind]
            weight[own.nonzero()[0]] += witness.coefficients[place]
        moved = network.embeddings(data.x_dict, data.edge_index_dict, layers[1], layers[0])
        both = [frozen["user"][user], frozen["movie"][movie]]
        both[end] = moved[into][int(varied)]
        assert witness.value == pytest.approx(float(both[0] @ both[1]), abs=1e-12)


def test_a_head_between_types_and_the_words_of_its_frame():
    torch.manual_seed(0)
    exposure = gr.expose_links(forms.Ratings(bent=True).double(), ratings())
    assert not exposure.exact and exposure.residual <= 1e-12
    assert gr.solve(exposure, "flip", torch.arange(3)).check(exposure).ok
    frame = exposure.to_frame([0])
    assert set(frame["source_type"]) == {"movie"}
    assert {name.partition(" (")[0] for name in frame["group"]} == {" ".join(BACK)}


def test_which_relation_is_asked_about():
    data, model = ratings(), forms.Ratings().double()
    links = data[RATES].edge_label_index
    del data[RATES].edge_label_index
    assert gr.expose_links(model, data, links, relation=RATES).num_links == 8
    with pytest.raises(InputError, match=r"'buys', 'movie'\); choose one of"):
        gr.expose_links(model, data, links, relation=("user", "buys", "movie"))
    with pytest.raises(InputError, match="links names movie 12"):
        gr.expose_links(model, data, torch.tensor([[0], [12]]), relation=RATES)


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
        with pytest.raises(InputError, match=f"^{len(held)} relations .* relation="):
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
