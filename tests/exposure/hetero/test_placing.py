"""Which relation a sum belongs to, in every typed model; attention that is held."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import scatter

import gnn_repair as gr
from gnn_repair import Exposure, expose, reach, solve
from tests.helpers.models.scaled_messages import (
    random_factors,
    scaled,
    scaled_coefficients,
    scaled_run,
)
from tests.helpers.models.typed_models import (
    CLASSES,
    HIDDEN,
    MODELS,
    SIZES,
    WIDTHS,
    Paths,
    build,
    graph,
)

# Which relation a propagate belongs to where sizes, names or edges alone do not tell.

LIKE = ("paper", "like", "paper")
CITES = ("paper", "cites", "paper")


def with_second_relation() -> HeteroData:
    """Papers hear papers over two relations, so that sizes tell nothing."""
    data = graph()
    generator = torch.Generator().manual_seed(9)
    data[LIKE].edge_index = torch.unique(torch.randint(30, (2, 50), generator=generator), dim=1)
    return data


class Papers(nn.Module):
    """Both relations among papers, in a way of its own."""

    def __init__(self, names: dict[Any, str], how: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        width = WIDTHS["paper"]
        self.convs = nn.ModuleDict({n: pyg.SAGEConv(width, CLASSES) for n in names.values()})
        self.names, self.how = names, how

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x = x_dict["paper"]
        parts = [
            self.how(self.convs[name], x, edge_index_dict[kind])
            for kind, name in self.names.items()
        ]
        return torch.stack(parts).sum(0)


def by_hand(conv: Any, x: Tensor, edges: Tensor) -> Tensor:
    return scatter(conv.lin_l(x)[edges[0]], edges[1], 0, len(x), reduce="sum")


def in_another_order(conv: Any, x: Tensor, edges: Tensor) -> Tensor:
    return conv(x, edges[:, torch.argsort(edges[0], stable=True)].contiguous())


def with_one_more(conv: Any, x: Tensor, edges: Tensor) -> Tensor:
    """An edge that no relation has."""
    return conv(x, torch.cat([edges, torch.tensor([[29], [28]])], dim=1).flip(1))


def with_loops(conv: Any, x: Tensor, edges: Tensor) -> Tensor:
    loops = torch.arange(len(x)).repeat(2, 1)
    return conv(x, torch.cat([edges, loops], dim=1))


NAMED = {LIKE: "paper__like__paper", CITES: "paper__cites__paper"}
CROSSED = {LIKE: "first", CITES: "second"}


@pytest.mark.parametrize(
    ("names", "how", "loops"),
    [
        (CROSSED, by_hand, 0),
        (CROSSED, in_another_order, 0),
        (CROSSED, with_loops, 30),
        (NAMED, with_one_more, 1),
    ],
)
def test_relations_between_the_same_types(names: Any, how: Any, loops: int) -> None:
    data = with_second_relation()
    exposure = expose(Papers(names, how).double(), data)
    frame = exposure.to_frame()
    assert [group.name for group in exposure.groups] == ["paper like paper", "paper cites paper"]
    for kind in (LIKE, CITES):
        rows = frame[frame["group"] == " ".join(kind)]
        assert len(rows) == data[kind].edge_index.shape[1] + loops
        ends = set(map(tuple, data[kind].edge_index.t().tolist()))
        seen = set(zip(rows["source"], rows["node"], strict=True))
        assert ends <= seen and len(seen - ends) <= loops


def test_edges_that_nobody_knows() -> None:
    """New edges from a type whose size another shares: who sends is followed."""
    data = graph()
    data["editor"].x = torch.randn(SIZES["author"], WIDTHS["author"]).double()

    class Guess(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv((WIDTHS["author"], WIDTHS["paper"]), CLASSES)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            made = torch.stack([torch.arange(18), torch.arange(18)])
            return self.conv((x_dict["editor"], x_dict["paper"]), made)

    assert set(expose(Guess().double(), data).to_frame()["source_type"]) == {"editor"}
    del data["editor"]

    class Known(Guess):
        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            return super().forward({**x_dict, "editor": x_dict["author"]}, edge_index_dict)

    exposure = expose(Known().double(), data)
    assert [group.name for group in exposure.groups] == ["author to paper"]
    assert set(exposure.to_frame()["source_type"]) == {"author"}


class EveryType(nn.Module):
    """HGT in two layers; logits of every type."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        metadata = data.metadata()
        self.lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)
        self.first = pyg.HGTConv(HIDDEN, HIDDEN, metadata, 2)
        self.last = pyg.HGTConv(HIDDEN, HIDDEN, metadata, 2)
        self.heads = pyg.HeteroDictLinear(HIDDEN, CLASSES, data.node_types)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        hidden = self.first(self.lins(x_dict), edge_index_dict)
        return self.heads(self.last(hidden, edge_index_dict))


@pytest.mark.parametrize("kind", ["author", "venue"])
def test_rows_of_later_types(kind: str) -> None:
    """Their rows in HGTConv's aggregate do not begin at zero."""
    data = graph()
    model = EveryType(data).double().eval()
    exposure, factors = expose(model, data, node_type=kind), random_factors(data)
    assert exposure.head is not None
    assert exposure.num_groups == 2  # the first layer stays in the skip
    assert any(part.title == "`first` (HGTConv)" for part in exposure.held)
    with scaled(model, data, factors), torch.no_grad():
        seen = model(data.x_dict, data.edge_index_dict)[kind]
    scale = scaled_coefficients(exposure, data, factors)
    torch.testing.assert_close(exposure.logits(scale)[0], seen, rtol=0, atol=1e-10)


def test_other_types_keep_their_messages() -> None:
    """The first layer is reweighted at papers alone; what authors heard in it still arrives."""
    data = HeteroData()
    generator = torch.Generator().manual_seed(3)
    for kind in ("paper", "author"):
        data[kind].x = torch.randn(SIZES[kind], HIDDEN, generator=generator).double()
    data["paper"].y = torch.arange(SIZES["paper"]) % CLASSES
    for source, name, target in (("author", "writes", "paper"), ("author", "knows", "author")):
        ends = [torch.randint(SIZES[k], (60,), generator=generator) for k in (source, target)]
        data[source, name, target].edge_index = torch.stack(ends)

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = pyg.SAGEConv(HIDDEN, HIDDEN)
            self.straight = pyg.SAGEConv(HIDDEN, CLASSES)
            self.bent = pyg.SAGEConv(HIDDEN, CLASSES, root_weight=False)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            writes, knows = edge_index_dict.values()
            moved = torch.stack([writes[0] + 30, writes[1]]), knows + 30
            edges = torch.cat(moved, dim=1)
            hidden = self.first(torch.cat([x_dict["paper"], x_dict["author"]]), edges)
            return (self.straight(hidden, edges) + self.bent(hidden, edges).tanh())[:30]

    exposure = expose(Branches().double(), data)
    assert exposure.head is not None
    assert [group.name for group in exposure.groups] == [
        "author writes paper (straight)", "author writes paper (bent)",
    ]  # fmt: skip
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_layers_that_only_steer_attention_are_no_groups() -> None:
    """An author's first layer is read by nothing but the attention of its second."""
    data = graph()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = pyg.HANConv(WIDTHS, HIDDEN, data.metadata(), heads=2)
            self.second = pyg.HANConv(HIDDEN, HIDDEN, data.metadata(), heads=2)
            self.lin = nn.Linear(HIDDEN, CLASSES)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            hidden = self.second(self.first(x_dict, edge_index_dict), edge_index_dict)
            return self.lin(hidden["author"])

    exposure = expose(Twice().double(), data, node_type="author")
    assert [group.name for group in exposure.groups] == [
        "paper rev_writes author head 0", "paper rev_writes author head 1",
    ]  # fmt: skip


def test_weights_that_differ_by_node() -> None:
    """Senders keep their numbers where every paper has a map of its own."""
    data = graph()

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            into = [kind for kind in data.edge_types if kind[2] == "paper"]
            self.conv = pyg.HeteroConv(
                {k: pyg.SAGEConv((WIDTHS[k[0]], WIDTHS["paper"]), CLASSES) for k in into}
            )

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            return self.conv(x_dict, edge_index_dict)["paper"] * x_dict["paper"][:, :1].exp()

    exposure = expose(Gated().double(), data)
    assert exposure.head is None
    frame = exposure.to_frame()
    for kind in data.edge_types:
        rows = frame[frame["group"] == " ".join(kind)]
        if kind[2] == "paper":
            seen = sorted(zip(rows["source"], rows["node"], strict=True))
            assert seen == sorted(map(tuple, data[kind].edge_index.t().tolist()))
            assert set(rows["source_type"]) == {kind[0]}


def test_edges_made_on_the_way() -> None:
    """Papers hear papers, and authors authors, over edges that the model makes itself."""
    data = graph()
    data["editor"].x = torch.randn(SIZES["paper"], 2).double()  # as many as papers: no doubt here

    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.authors = pyg.SAGEConv(WIDTHS["author"], HIDDEN)
            self.writes = pyg.SAGEConv((HIDDEN, WIDTHS["paper"]), CLASSES)
            self.papers = pyg.SAGEConv(WIDTHS["paper"], CLASSES)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            ring = [torch.stack([torch.arange(n), torch.arange(n).roll(1)]) for n in (18, 30)]
            author = self.authors(x_dict["author"], ring[0]).relu()
            edges = edge_index_dict["author", "writes", "paper"]
            out = self.writes((author, x_dict["paper"]), edges)
            return out + self.papers(x_dict["paper"], ring[1])

    frame = expose(Making().double(), data).to_frame()
    assert list(dict.fromkeys(frame["group"])) == ["author writes paper", "paper to paper"]
    ring = frame[frame["group"] == "paper to paper"]
    assert set(ring["source_type"]) == {"paper"}
    assert ((ring["node"] + 1) % 30 == ring["source"]).all()


def test_a_convolution_that_reaches_the_type_by_no_relation() -> None:
    """HGT without a relation into papers beside one that has it."""
    data = graph()

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)
            kinds = [kind for kind in data.edge_types if kind[2] != "paper"]
            self.first = pyg.HGTConv(HIDDEN, HIDDEN, (data.node_types, kinds), 2)
            self.writes = pyg.SAGEConv((HIDDEN, HIDDEN), CLASSES)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
            x_dict = self.lins(x_dict)
            some = {k: e for k, e in edge_index_dict.items() if k[2] != "paper"}
            author = self.first(x_dict, some)["author"]
            return self.writes(
                (author, x_dict["paper"]), edge_index_dict["author", "writes", "paper"]
            )

    exposure = expose(Beside().double(), data)
    assert [group.name for group in exposure.groups] == ["author writes paper"]
    assert exposure.residual is not None and exposure.residual <= 1e-12


# Every model of the gallery is what it is said to be, and its exposure is that model.

EXPOSED = [name for name, entry in MODELS.items() if not entry.refused]
REFUSED = [name for name, entry in MODELS.items() if entry.refused]
WITHOUT_HOOKS = {"sparse products", "rows averaged by hand", "mixed convolutions",
                 "attention between relations", "to_hetero_with_bases", "attention over all nodes",
                 "GAT in one set"}  # fmt: skip
"""Sums by hand have no hooks; the others run their relations in an order of their own, scale their
messages by hooks themselves, or add loops."""


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("name", [n for n in EXPOSED if n not in WITHOUT_HOOKS | {"HAN"}])
def test_scaled_messages_scale_coefficients(name: str) -> None:
    """By PyG's hooks, message by message: every term has its edge's sender and recipient."""
    model, data = build(name)
    exposure, factors = expose(model, data), random_factors(data)
    seen = scaled_run(model, data, factors)
    said = exposure.logits(scaled_coefficients(exposure, data, factors))[0]
    torch.testing.assert_close(said, seen, rtol=0, atol=1e-10)
    assert float((seen - exposure.frozen_logits[0]).abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("name", ["to_hetero SAGE", "HGT", "HAN", "edge vectors"])
def test_single_precision(name: str) -> None:
    model, data = build(name, torch.float32)
    residual = expose(model, data).residual
    assert residual is not None and 1e-12 < residual <= 1e-5


def test_the_documentation_counts_them() -> None:
    page = Path(__file__).parents[3] / "docs" / "howto" / "hetero.md"
    if not page.exists():
        pytest.skip("not in a checkout")
    tailed = sum(bool(entry.tail) for entry in MODELS.values())
    plain = len(EXPOSED) - tailed
    sentence = (
        f"Of {len(MODELS)} styles {plain} are exposed without a nonlinear head, {tailed} with one, "
        f"{len(REFUSED)} unsupported"
    )
    assert sentence in " ".join(page.read_text(encoding="utf-8").split())


RELATIONS = 3


@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
@pytest.mark.parametrize("how", [{}, {"num_bases": 2}, {"num_blocks": 2}])
def test_every_relation_is_a_group_named_by_its_number(kind, how):
    torch.manual_seed(0)
    edges = torch.unique(torch.randint(0, 20, (2, 80)), dim=1)
    types = torch.arange(edges.shape[1]) % RELATIONS
    data = Data(x=torch.randn(20, 4).double(), edge_index=edges, edge_type=types)
    exposure = gr.expose(kind(4, 4, RELATIONS, **how).double(), data)
    assert [g.name.rpartition("relation ")[2] for g in exposure.groups] == ["0", "1", "2"]
    owner = torch.repeat_interleave(exposure.segments.diff())
    group, node = owner % RELATIONS, exposure.recipients[owner // RELATIONS]
    source = exposure.sources[exposure.rows.long()].long()
    found = sorted(zip(group.tolist(), source.tolist(), node.tolist(), strict=True))
    assert found == sorted(zip(types.tolist(), *edges.tolist(), strict=True))


# HANConv's attention between relations: what is exact while it is held, and by how much it moves.


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
    model_and_data: tuple[Paths, HeteroData], exposure: Exposure, monkeypatch: pytest.MonkeyPatch
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
    scope = "model with `han_conv` (HANConv) (mean) held"
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
