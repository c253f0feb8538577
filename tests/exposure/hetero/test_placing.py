"""Whose messages a group's are: every term is an edge, from the type that sends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import scatter

import gnn_repair as gr
from gnn_repair import Exposure, expose, reach, solve
from tests.helpers.models.made import Made
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

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")
LIKE, CITES = ("paper", "like", "paper"), ("paper", "cites", "paper")
WRITES, PUBLISHES = ("author", "writes", "paper"), ("venue", "publishes", "paper")
PAPER = WIDTHS["paper"]


class Placed(NamedTuple):
    """A model, its graph, and the edges of every group; the first word of its name sends."""

    model: nn.Module
    data: HeteroData
    groups: dict[str, Tensor]
    node_type: str | None = None


def edges_of(data: HeteroData, *kinds: tuple[str, str, str], words: str = "") -> dict[str, Tensor]:
    return {" ".join(kind) + words: data[kind].edge_index for kind in kinds}


def sage(*kinds: tuple[str, str, str], width: int = CLASSES) -> pyg.HeteroConv:
    return pyg.HeteroConv(
        {k: pyg.SAGEConv((WIDTHS[k[0]], WIDTHS[k[2]]), width, bias=False) for k in kinds}
    )


# Where sizes, names or edges alone do not tell


Change = Callable[[Tensor], Tensor]


def reordered(edges: Tensor) -> Tensor:
    return edges[:, torch.argsort(edges[0], stable=True)].contiguous()


def with_loops(edges: Tensor) -> Tensor:
    return torch.cat([edges, torch.arange(SIZES["paper"]).repeat(2, 1)], dim=1)


def with_one_more(edges: Tensor) -> Tensor:
    """Another order, and an edge that no relation has."""
    return torch.cat([edges, torch.tensor([[29], [28]])], dim=1).flip(1)


def between_the_same_types(change: Change | None, crossed: bool) -> Placed:
    """Papers hear papers over two relations; ``crossed``: modules do not bear their names."""
    data = graph()
    generator = torch.Generator().manual_seed(9)
    data[LIKE].edge_index = torch.unique(torch.randint(30, (2, 50), generator=generator), dim=1)
    names = (
        {LIKE: "first", CITES: "second"} if crossed else {k: "__".join(k) for k in (LIKE, CITES)}
    )

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x, out = x_dict["paper"], 0.0
        for kind, name in names.items():
            conv, edges = getattr(self, name), edge_index_dict[kind]
            if change is None:  # by hand
                out = out + scatter(conv.lin_l(x)[edges[0]], edges[1], 0, len(x), reduce="sum")
            else:
                out = out + conv(x, change(edges))
        return out

    model = Made(forward, **{name: pyg.SAGEConv(PAPER, CLASSES) for name in names.values()})
    said = edges_of(data, LIKE, CITES)
    return Placed(model, data, {k: e if change is None else change(e) for k, e in said.items()})


def from_a_type_of_equal_size(kind: str) -> Placed:
    """New edges: who sends is followed, not guessed by size."""
    data, same = graph(), torch.arange(SIZES["author"]).repeat(2, 1)
    data["editor"].x = torch.randn(SIZES["author"], WIDTHS["author"]).double()

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        return self.conv((x_dict[kind], x_dict["paper"]), same)

    conv = pyg.SAGEConv((WIDTHS["author"], PAPER), CLASSES)
    return Placed(Made(forward, conv=conv), data, {f"{kind} to paper": same})


def one_to_one() -> Placed:
    """Papers and texts: a text's own messages are behind it, not the paper's."""
    data, count = HeteroData(), 12
    generator = torch.Generator().manual_seed(0)
    for kind in ("paper", "text", "word"):
        data[kind].x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    data["paper"].y = torch.arange(count) % CLASSES
    data["text", "of", "paper"].edge_index = torch.arange(count).repeat(2, 1)
    for kind in (("word", "in", "text"), ("paper", "like", "paper"), ("text", "near", "text")):
        data[kind].edge_index = torch.randint(count, (2, 40), generator=generator)

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Any:
        pair = x_dict["word"], x_dict["text"]
        text = self.words(pair, edge_index_dict["word", "in", "text"])
        return self.last({**x_dict, "text": text}, edge_index_dict)

    last = pyg.HeteroConv({kind: pyg.SAGEConv((4, 4), CLASSES) for kind in data.edge_types})
    groups = edges_of(data, ("text", "of", "paper"), LIKE)
    return Placed(Made(forward, last=last, words=pyg.SAGEConv((4, 4), 4)), data, groups)


def two_layers() -> Placed:
    """Where papers speak to nobody, both layers' sums are final, and the names say which."""
    data = graph()
    for kind in [kind for kind in data.edge_types if kind[0] == "paper"]:
        del data[kind]

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Any:
        paper = self.first(x_dict, edge_index_dict)["paper"]
        return self.second({**x_dict, "paper": paper}, edge_index_dict)["paper"]

    model = Made(
        forward, first=sage(WRITES, PUBLISHES, width=PAPER), second=sage(WRITES, PUBLISHES)
    )
    groups = edges_of(data, WRITES, PUBLISHES, words=" (first)")
    return Placed(model, data, groups | edges_of(data, WRITES, PUBLISHES, words=" (second)"))


def beside_other_types() -> Placed:
    """One layer for all types: it is reweighted at papers alone, authors keep what they heard."""
    data = HeteroData()
    generator = torch.Generator().manual_seed(3)
    for kind in ("paper", "author"):
        data[kind].x = torch.randn(SIZES[kind], HIDDEN, generator=generator).double()
    data["paper"].y = torch.arange(SIZES["paper"]) % CLASSES
    for source, name, target in (WRITES, ("author", "knows", "author")):
        ends = [torch.randint(SIZES[k], (60,), generator=generator) for k in (source, target)]
        data[source, name, target].edge_index = torch.stack(ends)

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        writes, knows = edge_index_dict.values()
        edges = torch.cat([torch.stack([writes[0] + 30, writes[1]]), knows + 30], dim=1)
        hidden = self.first(torch.cat([x_dict["paper"], x_dict["author"]]), edges)
        return (self.straight(hidden, edges) + self.bent(hidden, edges).tanh())[:30]

    model = Made(
        forward, first=pyg.SAGEConv(HIDDEN, HIDDEN), straight=pyg.SAGEConv(HIDDEN, CLASSES),
        bent=pyg.SAGEConv(HIDDEN, CLASSES, root_weight=False),
    )  # fmt: skip
    words = (" (straight)", " (bent)")
    groups = [edges_of(data, WRITES, words=word) for word in words]
    return Placed(model, data, groups[0] | groups[1])


def steering_attention() -> Placed:
    """An author's first layer is read by nothing but the attention of its second: no group."""
    data = graph()

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        hidden = self.second(self.first(x_dict, edge_index_dict), edge_index_dict)
        return self.lin(hidden["author"])

    first, second = (
        pyg.HANConv(width, HIDDEN, data.metadata(), heads=2) for width in (WIDTHS, HIDDEN)
    )
    model = Made(forward, first=first, second=second, lin=nn.Linear(HIDDEN, CLASSES))
    heads = [
        edges_of(data, ("paper", "rev_writes", "author"), words=f" head {k}") for k in range(2)
    ]
    return Placed(model, data, heads[0] | heads[1], "author")


def a_map_per_paper() -> Placed:
    """Senders keep their numbers where every paper has a map of its own; nodes without edges."""
    data = graph()
    data[PUBLISHES].edge_index = torch.empty(2, 0, dtype=torch.long)
    kept = data[WRITES].edge_index
    data[WRITES].edge_index = kept[:, kept[1] != 4]

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        return self.conv(x_dict, edge_index_dict)["paper"] * x_dict["paper"][:, :1].exp()

    model = Made(forward, conv=sage(*data.edge_types))
    return Placed(model, data, edges_of(data, WRITES, CITES))


def beside_a_matrix() -> Placed:
    """The model is given lists of edges, though data has matrices of other edges, too."""
    data = graph()
    places, size = torch.tensor([[3, 4], [1, 2]]), (SIZES["paper"], SIZES["author"])
    data[WRITES].adj_t = torch.sparse_coo_tensor(places, torch.ones(2).double(), size).coalesce()

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        return self.conv((x_dict["author"], x_dict["paper"]), edge_index_dict[WRITES])

    model = Made(forward, conv=pyg.SAGEConv((WIDTHS["author"], PAPER), CLASSES))
    return Placed(model, data, edges_of(data, WRITES))


def made_on_the_way() -> Placed:
    """Papers hear papers, and authors authors, over edges that the model makes itself."""
    data = graph()
    data["editor"].x = torch.randn(SIZES["paper"], 2).double()  # as many as papers: no doubt here
    rings = [torch.stack([torch.arange(n), torch.arange(n).roll(1)]) for n in (18, 30)]

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        author = self.authors(x_dict["author"], rings[0]).relu()
        out = self.writes((author, x_dict["paper"]), edge_index_dict[WRITES])
        return out + self.papers(x_dict["paper"], rings[1])

    model = Made(
        forward, authors=pyg.SAGEConv(WIDTHS["author"], HIDDEN),
        writes=pyg.SAGEConv((HIDDEN, PAPER), CLASSES), papers=pyg.SAGEConv(PAPER, CLASSES),
    )  # fmt: skip
    return Placed(model, data, edges_of(data, WRITES) | {"paper to paper": rings[1]})


def after_one_that_sends_elsewhere() -> Placed:
    """HGT without a relation into papers before a convolution that has it."""
    data = graph()
    kinds = [kind for kind in data.edge_types if kind[2] != "paper"]

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x_dict = self.lins(x_dict)
        author = self.first(x_dict, {k: edge_index_dict[k] for k in kinds})["author"]
        return self.writes((author, x_dict["paper"]), edge_index_dict[WRITES])

    model = Made(
        forward, lins=pyg.HeteroDictLinear(WIDTHS, HIDDEN),
        first=pyg.HGTConv(HIDDEN, HIDDEN, (data.node_types, kinds), 2),
        writes=pyg.SAGEConv((HIDDEN, HIDDEN), CLASSES),
    )  # fmt: skip
    return Placed(model, data, edges_of(data, WRITES))


PLACED: dict[str, Callable[[], Placed]] = {
    "by hand": lambda: between_the_same_types(None, True),
    "in another order": lambda: between_the_same_types(reordered, True),
    "with loops": lambda: between_the_same_types(with_loops, True),
    "with one more edge": lambda: between_the_same_types(with_one_more, False),
    **{
        f"new edges from {kind}s": lambda kind=kind: from_a_type_of_equal_size(kind)  # type: ignore[misc]
        for kind in ("editor", "author")
    },
    **{
        one.__name__.replace("_", " "): one
        for one in (
            one_to_one, two_layers, beside_other_types, steering_attention, a_map_per_paper,
            made_on_the_way, beside_a_matrix, after_one_that_sends_elsewhere,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_terms_of_a_group_are_the_edges_that_its_name_says(name: str) -> None:
    torch.manual_seed(0)
    model, data, groups, node_type = PLACED[name]()
    exposure = expose(model.double(), data, node_type=node_type)
    frame = exposure.to_frame()
    assert [group.name for group in exposure.groups] == list(groups)
    assert exposure.residual is not None and exposure.residual <= 1e-12
    for group, edges in groups.items():
        rows = frame[frame["group"] == group]
        seen = sorted(zip(rows["source"], rows["node"], strict=True))
        assert seen == sorted(map(tuple, edges.t().tolist()))
        assert set(rows["source_type"]) == {group.split()[0]}


@pytest.mark.parametrize("kind", ["author", "venue"])
def test_rows_of_later_types(kind: str) -> None:
    """Their rows in HGTConv's sum do not begin at zero, and its first layer stays in the skip."""
    data = graph()

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Any:
        hidden = self.first(self.lins(x_dict), edge_index_dict)
        return self.heads(self.last(hidden, edge_index_dict))

    torch.manual_seed(0)
    first, last = (pyg.HGTConv(HIDDEN, HIDDEN, data.metadata(), 2) for _ in range(2))
    heads = pyg.HeteroDictLinear(HIDDEN, CLASSES, data.node_types)
    lins = pyg.HeteroDictLinear(WIDTHS, HIDDEN)
    model = Made(forward, lins=lins, first=first, last=last, heads=heads).double().eval()
    exposure, factors = expose(model, data, node_type=kind), random_factors(data)
    assert exposure.head is not None and exposure.num_groups == 2
    assert any(part.title == "`first` (HGTConv)" for part in exposure.held)
    with scaled(model, data, factors), torch.no_grad():
        seen = model(data.x_dict, data.edge_index_dict)[kind]
    scale = scaled_coefficients(exposure, data, factors)
    torch.testing.assert_close(exposure.logits(scale)[0], seen, rtol=0, atol=1e-10)


# Every model of the gallery -----------------------------------------------------------------------

EXPOSED = [name for name, entry in MODELS.items() if not entry.refused]
WITHOUT_HOOKS = {"sparse products", "rows averaged by hand", "mixed convolutions",
                 "attention between relations", "to_hetero_with_bases", "attention over all nodes",
                 "GAT in one set"}  # fmt: skip
"""Sums by hand have no hooks; the others run their relations in an order of their own, scale their
messages by hooks themselves, or add loops."""


@pytest.mark.parametrize("name", [n for n in EXPOSED if n not in WITHOUT_HOOKS | {"HAN"}])
def test_scaled_messages_scale_coefficients(name: str) -> None:
    """By PyG's hooks, message by message: every term has its edge's sender and recipient."""
    model, data = build(name)
    exposure, factors = expose(model, data), random_factors(data)
    seen = scaled_run(model, data, factors)
    said = exposure.logits(scaled_coefficients(exposure, data, factors))[0]
    torch.testing.assert_close(said, seen, rtol=0, atol=1e-10)
    assert float((seen - exposure.frozen_logits[0]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["to_hetero SAGE", "edge vectors"])
def test_single_precision(name: str) -> None:
    residual = expose(*build(name, torch.float32)).residual
    assert residual is not None and 1e-12 < residual <= 1e-5


def test_the_documentation_counts_them() -> None:
    page = Path(__file__).parents[3] / "docs" / "howto" / "hetero.md"
    tailed = sum(bool(entry.tail) for entry in MODELS.values())
    counts = len(MODELS), len(EXPOSED) - tailed, tailed, len(MODELS) - len(EXPOSED)
    told = "Of {} styles {} are exposed without a nonlinear head, {} with one, {} unsupported"
    assert told.format(*counts) in " ".join(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
@pytest.mark.parametrize("how", [{}, {"num_bases": 2}, {"num_blocks": 2}])
def test_every_relation_is_a_group_named_by_its_number(kind: Any, how: Any) -> None:
    torch.manual_seed(0)
    edges = torch.unique(torch.randint(0, 20, (2, 80)), dim=1)
    types = torch.arange(edges.shape[1]) % 3
    data = Data(x=torch.randn(20, 4).double(), edge_index=edges, edge_type=types)
    frame = gr.expose(kind(4, 4, 3, **how).double(), data).to_frame()
    group = frame["group"].str.rpartition("relation ")[2].astype(int)
    found = sorted(zip(group, frame["source"], frame["node"], strict=True))
    assert found == sorted(zip(types.tolist(), *edges.tolist(), strict=True))


# HANConv's attention between relations ------------------------------------------------------------


@pytest.fixture(scope="module")
def han() -> tuple[Paths, HeteroData, Exposure]:
    model, data = build("HAN")
    assert isinstance(model, Paths)
    with torch.no_grad():  # so that relations differ in weight
        model.han_conv.q.mul_(40)
    return model, data, expose(model, data)


def test_it_is_exact_with_the_weights_held(han: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, exposure = han
    _, found = model.han_conv(
        data.x_dict, data.edge_index_dict, return_semantic_attention_weights=True
    )
    held, factors = found["paper"].detach(), random_factors(data)

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


def test_every_answer_says_so(han: Any) -> None:
    _, data, exposure = han
    y, scope = data["paper"].y, exposure.scope
    assert "`han_conv` (HANConv) (mean)" in scope
    assert scope in str(solve(exposure, y, torch.arange(2))[0]) and scope in str(reach(exposure, y))


def test_one_relation_needs_no_attention() -> None:
    _, data = build("HAN")
    for kind in set(data.edge_types) - {WRITES}:
        del data[kind]
    torch.manual_seed(0)
    model, factors = Paths(data).double().eval(), random_factors(data)
    seen = scaled_run(model, data, factors)
    exposure = expose(model, data)
    said = exposure.logits(scaled_coefficients(exposure, data, factors))[0]
    assert exposure.num_groups == 2
    torch.testing.assert_close(said, seen, rtol=0, atol=1e-10)
