"""Laws of every exposure: what follows from its terms one by one, however it came about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GraphConv, SAGEConv

import gnn_repair as gr
from gnn_repair.exposure import Exposure, calling, expose
from gnn_repair.exposure.value import HeldPart, sends_to_itself
from gnn_repair.exposure.value import focus as focus_on
from tests.helpers.models import link_models, pool_models, typed_models
from tests.helpers.models.convolutions import CASES, Net, graph
from tests.helpers.models.gallery import exposed
from tests.helpers.models.gallery_judge import drawn
from tests.helpers.models.planted import MEMBERS, NODES, pieces
from tests.helpers.refusals import refused
from tests.helpers.repair.toy_exposures import toy_exposure

HEADS = (
    "ReLU", "opaque softplus", "where", "LayerNorm, jumping max", "BatchNorm, jumping cat",
    "GAT, ELU", "SAGE normalised", "gate of both", "relations, ReLU", "TAGConv, tanh", "softmax",
    "UniMP",
)  # fmt: skip
"""Between them every kind of operation."""


def planted(**changes: Any) -> Exposure:
    """Two members that differ in everything, and every field told."""
    values = pieces()
    one = torch.Generator().manual_seed(8)
    values |= {
        "root": True, "origin": "a test", "fixed": "β", "residual": 1e-9, "called": "f(x)",
        "fingerprint": ("a", "b"), "embedding": torch.randn(MEMBERS, NODES, 4, generator=one),
        "state": torch.randn(MEMBERS, NODES, 5, generator=one),
        "messages": torch.randn(MEMBERS, 9, 5, generator=one),
        "message_rows": torch.randint(0, 9, (2 * NODES,), generator=one).int(),
        "held": (HeldPart("`a`", ("max", "sort"), False), HeldPart("`b`", ("mean",), True)),
    }  # fmt: skip
    return Exposure(**(values | changes))


def sampled() -> Exposure:
    """Copies of one node, and terms that nobody sent."""
    sources = torch.arange(NODES, dtype=torch.int32).repeat(2)
    sources[5] = -1
    return planted(n_id=torch.tensor([30, 3, 12, 3, 99, 0, 44]), sources=sources)


def batches(name: str, count: int = 11) -> Exposure:
    """Three graphs in each."""
    with patch.object(calling, "LARGEST_BATCH", 12):
        return expose(pool_models.built(name), in_pairs()[:count])


def in_pairs() -> list[Any]:
    """Of the batches of three, two are told the same."""
    graphs = pool_models.doubled()
    for one, other in zip(graphs[3:6], graphs, strict=False):
        one.u = other.u
    return graphs


class Twice(nn.Module):
    """Two sums over the same edges, joined by a product or by addition."""

    def __init__(self, bent: bool) -> None:
        super().__init__()
        self.one, self.two = GraphConv(5, 3), GraphConv(5, 3, aggr="mean")
        self.three, self.bent = SAGEConv(5, 3, aggr="sum"), bent

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        parts = [conv(x, edge_index) for conv in (self.two, self.one, self.three)]
        return parts[0] * parts[1] + parts[2] if self.bent else sum(parts)


def twice(bent: bool) -> Exposure:
    torch.manual_seed(1)
    data = graph()
    return expose(Twice(bent).double(), type(data)(x=data.x, edge_index=data.edge_index))


LINKS = torch.tensor([[4, 4, 4, 9, 12, 4], [7, 8, 9, 4, 7, 12]])


def links(name: str, vary: str) -> Exposure:
    torch.manual_seed(5)
    x, edges = torch.randn(50, link_models.WIDTH).double(), torch.randint(0, 50, (2, 180))
    case = {**link_models.EXACT, **link_models.BENT}[name]
    model, decoder = case[0]().double(), case[1] and case[1]()
    decoder = decoder.double() if isinstance(decoder, nn.Module) else decoder
    data = {"x": x, "edge_index": edges}
    return gr.expose_links(model, data, LINKS, decoder=decoder, vary=vary).mixture


def convolved(name: str) -> Exposure:
    torch.manual_seed(5)
    return expose(Net(CASES[name]).double(), graph(), hops=CASES[name].hops)


SUBJECTS: dict[str, Callable[[], Exposure]] = {
    "planted": planted,
    "sampled": sampled,
    "labels": lambda: planted(outputs="labels"),
    "attention": lambda: toy_exposure("gat"),
    "groups that some lack": lambda: toy_exposure("h2gcn").restrict([9, 0, 25]),
    "signed": lambda: convolved("GCNConv signed weights"),
    "a table row per edge": lambda: convolved("GINEConv"),
    "types": lambda: expose(*typed_models.build("HeteroConv by sum")),
    "types, head": lambda: expose(*typed_models.build("HeteroConv then ReLU")),
    "graphs": lambda: expose(pool_models.built("sum beside mean"), pool_models.batch_of()),
    "graphs, head": lambda: expose(pool_models.built("mean, MLP"), pool_models.batch_of()),
    "held": lambda: expose(pool_models.built("max beside mean"), pool_models.batch_of()),
    "batches": lambda: batches("sum beside mean"),
    "batches, head": lambda: batches("jumping knowledge, MLP"),
    "batches, attributes": lambda: batches("attributes of the graph"),
    "batches of one size": lambda: batches("attributes of the graph", 6),
    "tied": lambda: twice(False).tied(),
    "tied, head": lambda: twice(True).tied(),
    "restricted, tied, head": lambda: twice(True).restrict([7, 2, 19]).tied(),
    "links": lambda: links("encode and decode", "target"),
    "links, head": lambda: links("perceptron of both ends", "source"),
    **{f"head: {name}": partial(exposed, name) for name in HEADS},
}


@cache
def subject(name: str) -> Exposure:
    return SUBJECTS[name]()


each = pytest.mark.parametrize("name", SUBJECTS)


def terms_of(exposure: Exposure) -> list[tuple[Any, ...]]:
    """Every term by itself: recipient, group, sender, α, ℓ and message."""
    found, ends, count = [], exposure.segments.tolist(), exposure.num_groups
    for place, recipient in enumerate(exposure.recipients.tolist()):
        for group in range(count):
            for term in range(*ends[place * count + group :][:2]):
                row = int(exposure.rows[term])
                message = exposure.messages[:, int(exposure.message_rows[row])]
                values = exposure.coefficients[:, term], exposure.contributions[:, row], message
                found.append((recipient, group, int(exposure.sources[row]), *values))
    return found


def same_terms(found: list[Any], expected: list[Any]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(a[:3] == b[:3] and all(map(torch.equal, a[3:], b[3:])) for a, b in pairs)


def same_fields(one: Exposure, other: Exposure, *but: str) -> None:
    """What a part, a copy or a file says that it does not change."""
    for field in fields(Exposure):
        mine, yours = getattr(one, field.name), getattr(other, field.name)
        if field.name in but:
            continue
        if isinstance(yours, Tensor):
            assert mine.dtype == yours.dtype and torch.equal(mine, yours), field.name
        else:
            assert mine is yours or mine == yours, field.name


def some_of(exposure: Exposure) -> list[int]:
    """Every third recipient, the last first."""
    return exposure.recipients.tolist()[::-3]


@each
def test_masses_logits_and_margins_are_sums_of_terms(name: str) -> None:
    exposure = subject(name)
    lam = torch.stack([drawn(exposure, 3 + member) for member in range(exposure.num_members)])
    for member, own in enumerate(lam):
        mixed = exposure.fixed_logits[member].clone()
        masses: dict[tuple[int, int], float] = {}
        for number, (node, group, *_, said, _) in enumerate(terms_of(exposure)):
            mixed[node] += own[number] * said[member]
            masses[node, group] = masses.get((node, group), 0.0) + float(own[number])
        chosen = exposure.recipients
        found = exposure.aggregate.logits(lam)[member]
        torch.testing.assert_close(found, mixed[chosen], rtol=1e-10, atol=1e-10)
        own = exposure.masses(lam)[member]
        for place, node in enumerate(chosen.tolist()):
            told = [masses.get((node, group), 0.0) for group in range(exposure.num_groups)]
            assert own[place].tolist() == pytest.approx(told, abs=1e-12)
    if exposure.outputs == "classes":
        target = torch.arange(exposure.num_nodes) % exposure.num_classes
        for z, margins in zip(exposure.logits(lam), exposure.margins(target, lam), strict=True):
            for place, node in enumerate(exposure.recipients.tolist()):
                rivals = z[place].tolist()
                asked = rivals.pop(int(target[node]))
                assert float(margins[place]) == pytest.approx(asked - max(rivals), abs=1e-12)


@each
def test_the_model_itself_run_with_other_weights_says_the_same(name: str) -> None:
    """For every recipient, and each of them moves."""
    exposure = subject(name)
    if exposure.replay is None:
        assert exposure.head is None
        return
    lam = drawn(exposure, 4)
    seen, told = exposure.replay(lam)[exposure.recipients], exposure.logits(lam)[0]
    torch.testing.assert_close(seen.double(), told, rtol=1e-9, atol=1e-9)
    moved = (told - exposure.frozen_logits[0, exposure.recipients]).abs().amax(1)
    several = exposure.segments.diff().view(-1, exposure.num_groups).amax(1) > 1
    assert bool((moved[several] > 0).float().mean() > 0.8)
    frozen = exposure.replay(exposure.coefficients[0])[exposure.recipients]
    torch.testing.assert_close(
        frozen.double(), exposure.frozen_logits[0, exposure.recipients], rtol=1e-9, atol=1e-9
    )


@each
def test_a_part_says_of_its_recipients_what_the_whole_says(name: str) -> None:
    exposure = subject(name)
    chosen, lam = some_of(exposure), drawn(exposure, 6)
    part = exposure.restrict(chosen)
    by_node = {node: [t for t in terms_of(exposure) if t[0] == node] for node in chosen}
    assert part.recipients.tolist() == chosen
    assert same_terms(terms_of(part), [term for node in chosen for term in by_node[node]])
    same_fields(part, exposure, "recipients", "segments", "rows", "coefficients", "replay")
    places = [exposure.recipients.tolist().index(node) for node in chosen]
    ends = exposure.segments[:: exposure.num_groups].tolist()
    own = torch.cat([lam[ends[place] : ends[place + 1]] for place in places])
    told = exposure.logits(lam)[:, places]
    torch.testing.assert_close(part.logits(own), told, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(part.mass, exposure.mass[:, places], rtol=1e-12, atol=0)
    if part.replay is not None:
        torch.testing.assert_close(part.replay(own)[chosen].double(), told[0], rtol=1e-9, atol=1e-9)
    rows = [k for place in places for k in range(ends[place], ends[place + 1])]
    expected = exposure.to_frame().iloc[rows].reset_index(drop=True)
    assert part.to_frame().equals(expected) and exposure.to_frame(chosen).equals(expected)
    if exposure.head is None:
        focus = focus_on(exposure, torch.tensor(places))
        assert focus.terms.tolist() == rows
        assert focus.nodes[focus.exposure.recipients].tolist() == chosen or exposure.names.typed
        torch.testing.assert_close(focus.exposure.logits(own), told, rtol=1e-12, atol=1e-12)
        nodes = [-1, *focus.nodes.tolist()]
        for mine, whole in zip(terms_of(focus.exposure), terms_of(part), strict=True):
            sender = nodes[mine[2] + 1] if sends_to_itself(exposure) else mine[2]
            assert sender == whole[2] and all(map(torch.equal, mine[3:], whole[3:]))


@each
def test_a_member_alone_is_that_member(name: str) -> None:
    exposure = subject(name)
    by_member = ("coefficients", "contributions", "fixed_logits", "frozen_logits", "state",
                 "messages", "embedding", "fingerprint")  # fmt: skip
    for member in range(exposure.num_members):
        alone = exposure.member(member)
        for field in by_member:
            mine, whole = getattr(alone, field), getattr(exposure, field)
            if whole is not None and len(whole):
                own = whole[member] if len(whole) > 1 else whole[0]
                assert torch.equal(mine[0], own) if isinstance(own, Tensor) else mine == (own,)
        same_fields(alone, exposure, *by_member)
        assert alone.to_frame().equals(exposure.to_frame(member=member))


@each
def test_frames_list_the_terms_by_name(name: str) -> None:
    exposure = subject(name)
    frame, terms = exposure.to_frame(), terms_of(exposure)
    starts, pooled = [0], exposure.graph_starts is not None
    for _, size in exposure.names.senders:
        starts.append(starts[-1] + size)
    assert len(frame) == len(terms)
    said = {column: frame[column].tolist() for column in frame}
    numbers = range(exposure.num_nodes) if exposure.n_id is None else exposure.n_id.tolist()
    for k, (recipient, group, source, alpha, table, _) in enumerate(terms):
        assert said["graph" if pooled else "node"][k] == numbers[recipient]
        assert said["group"][k] == exposure.groups[group].name
        assert said["coefficient"][k] == pytest.approx(float(alpha[0]), abs=1e-15)
        if exposure.names.typed:
            kind = max(i for i, start in enumerate(starts[:-1]) if start <= source)
            if "source_type" in said:
                assert said["source_type"][k] == exposure.names.senders[kind][0]
            assert said["source"][k] == source - starts[kind]
        else:
            assert said["source"][k] == (numbers[source] if not pooled and source >= 0 else source)
        if pooled and not exposure.names.typed:
            assert said["node"][k] == source - int(exposure.graph_starts[recipient])
        if exposure.head is None:
            shown = [said[f"logit {c}"][k] for c in range(exposure.num_classes)]
            assert shown == table[0].tolist()


@each
def test_what_is_printed_is_counted(name: str) -> None:
    whole = subject(name)
    apart = replace(whole, residual=None, replay=None)
    for exposure in (whole, whole.restrict(some_of(whole)), apart):
        said, masses = str(exposure), exposure.masses(exposure.coefficients)
        lengths = exposure.segments.diff().view(-1, exposure.num_groups)
        counts, noun = lengths.sum(1), "node" if exposure.graph_starts is None else "graph"
        low, high, mean = int(counts.min()), int(counts.max()), float(counts.double().mean())
        spread = "" if low == high else f" to {high} per {noun}, {mean:.1f} on average"
        assert f" {int(counts.sum())} messages ({low}{spread or f' per {noun}'})" in said
        some, nodes = len(counts), exposure.num_nodes
        assert f"  {some}{f' of {nodes}' if some < nodes else ''} {noun}" in said
        for number, group in enumerate(exposure.groups):
            own = lengths[:, number] > 0
            ends = [f"{float(end):.4g}" for end in torch.aminmax(masses[:, own, number])]
            mass, lacking = " to ".join(dict.fromkeys(ends)), int((~own).sum())
            line = f"    group {group.name}: {int(lengths[:, number].sum())} messages, mass {mass}"
            lost = f", absent at {lacking} {noun}{'s' * (lacking > 1)}" if lacking else ""
            assert f"{line}{lost}\n" in said
        residual, bare = exposure.residual, exposure.head is None
        assert residual is None or f"residual {residual:.1e} on the model" in said
        assert ("exact by algebra" in said) == (residual is None and bare)
        assert ("use bind" in said) == (exposure.replay is None and not bare)
        for words, beside in (("  held", True), ("  before the messages, held", False)):
            parts = ", ".join(str(part) for part in exposure.held if part.beside == beside)
            assert (f"\n{words} as it is: {parts}\n" in said) == bool(parts)


@each
def test_files_keep_everything(name: str, tmp_path: Path) -> None:
    exposure, path = subject(name), tmp_path / "exposure.safetensors"
    exposure.save(path)
    loaded = Exposure.load(path)
    same_fields(loaded, exposure, "head", "replay", "forward")
    lam = drawn(exposure, 5)
    torch.testing.assert_close(loaded.logits(lam), exposure.logits(lam), rtol=1e-14, atol=1e-14)
    assert loaded.replay is None and loaded.scope == exposure.scope
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# Several as one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [3, 1])
def test_joined_parts_are_the_parts(parts: int) -> None:
    given = [sampled(), sampled().restrict([5, 1]), sampled()][:parts]
    other = [replace(part, state=part.state + k) for k, part in enumerate(given)]
    joined = Exposure.concatenate(other)
    found, at = terms_of(joined), 0
    for number, part in enumerate(other):
        own = terms_of(part)
        shift = NODES * number
        moved = [(r + shift, g, s + shift if s >= 0 else -1, *rest) for r, g, s, *rest in own]
        assert same_terms(found[at : at + len(own)], moved)
        at += len(own)
        nodes = slice(shift, shift + NODES)
        for field in ("fixed_logits", "frozen_logits", "state", "embedding"):
            assert torch.equal(getattr(joined, field)[:, nodes], getattr(part, field)), field
        assert torch.equal(joined.n_id[nodes], part.n_id)
    assert at == len(found) and joined.num_nodes == NODES * parts
    same_fields(
        joined, given[0], "recipients", "segments", "rows", "coefficients", "contributions",
        "fixed_logits", "frozen_logits", "state", "messages", "message_rows", "sources",
        "embedding", "n_id",
    )  # fmt: skip


@pytest.mark.parametrize(
    "order", [(1e-9, 3e-7, None), (3e-7, None, 1e-9), (None, 1e-9, 3e-7), (None, 3e-7, 1e-9)]
)
def test_several_are_as_exact_as_the_worst_of_them(order: tuple[float | None, ...]) -> None:
    parts = [replace(sampled(), residual=residual) for residual in order]
    assert Exposure.concatenate(parts).residual == 3e-7
    graphs, scale = [graph.clone() for graph in pool_models.GRAPHS[:9]], {1e-9: 0, 3e-7: 3, None: 1}
    for number, one in enumerate(graphs):
        one.x = one.x * 10 ** scale[order[number // 3]]
    batches = [pool_models.Batch.from_data_list(graphs[k : k + 3]) for k in (0, 3, 6)]
    for name in ("mean", "mean, MLP"):
        model = pool_models.built(name, torch.float32)
        found = [expose(model, batch).residual for batch in batches]
        assert expose(model, batches).residual == max(found) > min(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": ("a", "c")}, {"fixed": "other"}, {"origin": "another"}, {"root": False},
        {"outputs": "values"}, {"groups": pieces()["groups"][::-1]}, {"n_id": None},
        {"state": torch.zeros(2, NODES, 6), "messages": torch.zeros(2, 9, 6)},
    ],
)  # fmt: skip
def test_parts_that_differ_are_not_joined(changes: dict[str, Any]) -> None:
    for parts in permutations([sampled(), replace(sampled(), **changes)]):
        with refused("part 1", "one model"):
            Exposure.concatenate(parts)


# What a user says the model is --------------------------------------------------------------------


class Plain(nn.Module):
    """A head, weights, a buffer and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = SAGEConv(5, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 4)
        self.register_buffer("shift", torch.full((6,), 0.3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last((self.norm(self.conv(x, edge_index)) + self.shift).relu())


def plain() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    data = graph()
    return Plain().double().eval(), type(data)(x=data.x, edge_index=data.edge_index)


@cache
def unbound() -> Exposure:
    return replace(expose(*plain()), replay=None)


@pytest.mark.parametrize("by", [0.5, -1e-6])
@pytest.mark.parametrize("name", [n for n in Plain().state_dict() if "num_batches" not in n])
def test_only_the_model_that_was_exposed_is_bound(name: str, by: float) -> None:
    model, data = plain()
    tensor = model.state_dict()[name]
    tensor += by * (1 + tensor.abs().max() if name.endswith("var") else 1)
    with refused("logits", "parameters"):
        unbound().bind(model, data)


# One weight per sender ----------------------------------------------------------------------------


def two_sums(senders: Tensor | None = None, apart: float = 0.0) -> Exposure:
    """Two members: a sum and one that is the same times a factor per member and recipient."""
    values = pieces()
    alpha = values["coefficients"].clone()
    ends, rows = values["segments"], values["rows"]
    first = torch.cat([torch.arange(*ends[2 * v : 2 * v + 2].tolist()) for v in range(NODES)])
    owner = torch.repeat_interleave(ends.diff()[::2])
    factor = 0.5 + torch.rand(MEMBERS, NODES, generator=torch.Generator().manual_seed(4)).double()
    sent = values["sources"][rows[first].long()] if senders is None else senders[owner]
    lengths = torch.repeat_interleave(ends.diff()[::2], 2)
    order = torch.argsort(torch.cat([2 * owner, 2 * owner + 1]), stable=True)
    both = torch.cat([alpha[:, first], alpha[:, first] * factor[:, owner]], 1)[:, order]
    both[1, -1] *= 1 + apart
    table = torch.cat([values["contributions"], values["contributions"]], 1)
    rows = torch.cat([rows[first], sent.int() + 2 * NODES])[order]
    segments = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    changed = {
        "segments": segments, "rows": rows, "coefficients": both, "contributions": table,
        "sources": values["sources"].repeat(2), "message_rows": values["message_rows"].repeat(2),
    }  # fmt: skip
    mixed = torch.zeros_like(values["fixed_logits"])
    node = torch.repeat_interleave(lengths.view(-1, 2).sum(1))
    mixed.index_add_(1, node, both.unsqueeze(2) * table[:, rows.long()])
    return Exposure(**(values | changed | {"fixed_logits": values["frozen_logits"] - mixed}))


def test_a_shared_weight_counts_in_every_group_by_the_factor_of_its_member() -> None:
    exposure = two_sums()
    tied = exposure.tied()
    assert tied.num_groups == 1 and 2 * tied.num_terms == exposure.num_terms
    lam = drawn(tied, 3)
    weight = {(r, s): w for (r, _, s, *_), w in zip(terms_of(tied), lam.tolist(), strict=True)}
    for member in range(MEMBERS):
        ratio = exposure.mass[member, :, 1] / exposure.mass[member, :, 0]
        told = terms_of(exposure)
        own = [weight[r, s] * (float(ratio[r]) if g else 1.0) for r, g, s, *_ in told]
        found = exposure.member(member).logits(torch.tensor(own, dtype=torch.float64))[0]
        torch.testing.assert_close(tied.logits(lam)[member], found, rtol=1e-12, atol=1e-12)
    for recipient, _, sender, *_, message in terms_of(tied):
        told = [m for r, _, s, *_, m in terms_of(exposure) if (r, s) == (recipient, sender)]
        assert torch.equal(message, told[0]) and torch.equal(told[0], told[1])


@pytest.mark.parametrize(
    "exposure", [lambda: two_sums(torch.arange(NODES).flip(0)), lambda: two_sums(apart=1e-6)]
)
def test_other_senders_or_other_shares_are_not_tied(exposure: Callable[[], Exposure]) -> None:
    with refused("groups", "senders"):
        exposure().tied()


@pytest.mark.parametrize("name", [n for n in SUBJECTS if "tied" in n])
def test_what_repairs_read_of_a_shared_weight_is_its_one_message(name: str) -> None:
    exposure = subject(name)
    assert exposure.fingerprint != twice("head" in name).fingerprint  # its repairs fit no other
    for _, _, sender, *_, message in terms_of(exposure):
        assert torch.equal(message[0], graph().x[sender])


# What else cannot be ------------------------------------------------------------------------------


def test_a_row_for_each_node_of_the_graph_is_asked_for() -> None:
    exposure, largest = sampled(), 99
    values = torch.arange(largest + 1.0)
    assert exposure.local(values).tolist() == exposure.n_id.tolist()
    with refused(f"node {largest}", "each node"):
        exposure.local(values[:-1])
    with refused("values", "tensor"):
        exposure.local([1, 2])
    with refused("values has", f"{exposure.num_nodes}"):
        replace(exposure, n_id=None).local(torch.arange(exposure.num_nodes - 1))
    mask = exposure.restrict([5, 1]).local(values >= 0)  # copies that are no recipients stay out
    assert mask.nonzero().view(-1).tolist() == [1, 5]


def test_a_twin_that_sends_in_the_place_of_another_is_another_graph() -> None:
    """Its features are the same, so all logits are."""
    model, data = plain()
    data.x[7] = data.x[3]
    data.edge_index = torch.cat([data.edge_index[:, :-1], torch.tensor([[3], [11]])], 1)
    data.edge_index = data.edge_index[:, (data.edge_index[0] != 7) & (data.edge_index[1] != 7)]
    exposure, other = replace(expose(model, data), replay=None), data.clone()
    other.edge_index = data.edge_index.clone()
    other.edge_index[0, -1] = 7
    assert exposure.bind(model, data).replay is not None
    with refused("other messages", "data"):
        exposure.bind(model, other)


@pytest.mark.parametrize("messages", [lambda h: h[:, :5], lambda h: h + 1, lambda h: h])
def test_files_tell_messages_from_states(messages: Any, tmp_path: Path) -> None:
    """Whether they begin in the same place, have the same shape, or are the same."""
    state = torch.randn(MEMBERS, NODES, 5)
    shown = planted(state=state, messages=messages(state), message_rows=torch.arange(14).int() % 5)
    shown.save(tmp_path / "one")
    assert torch.equal(Exposure.load(tmp_path / "one").messages, shown.messages)
