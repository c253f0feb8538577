"""Exposures of every kind a repair may meet, each with labels and masks, for the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv

from gnn_repair.backbones import BACKBONES
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.value import BY_MEMBER
from gnn_repair.oracle.questions.relaxed import relax
from tests.helpers.hand_made import hand_made
from tests.helpers.repair.toy_exposures import net, toy_exposure, toy_graph

DATA = toy_graph()


class World(NamedTuple):
    """An exposure with what is needed to fit on it."""

    exposure: Exposure
    y: Tensor
    train: Tensor
    """[N, S]."""
    val: Tensor
    """[N, S]."""


def by_hand(members: int = 3, width: int = 5, states: int | None = None) -> Exposure:
    """Members that share nothing: coefficients, masses, messages, states and logits differ.

    Two groups, a root, a recipient without terms, one without the second group, zero coefficients.
    With ``states=1`` all members have one state and one table of messages.
    """
    nodes, classes, states = 24, 4, states or members
    random = torch.Generator().manual_seed(8)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    lengths = torch.randint(1, 5, (nodes, 2), generator=random)
    lengths[3] = 0
    lengths[4, 1] = 0
    segments = torch.cat([lengths.new_zeros(1), lengths.view(-1).cumsum(0)])
    terms, table, messages = int(segments[-1]), 40, 31
    coefficients = randn(members, terms).square() + 0.05
    coefficients[:, segments[:-1][lengths.view(-1) > 1]] = 0
    rows = torch.randint(table, (terms,), generator=random).int()
    contributions = randn(members, table, classes)
    fixed = randn(members, nodes, classes)
    return hand_made(
        segments,
        rows,
        coefficients,
        contributions,
        fixed,
        2,
        state=randn(states, nodes, width),
        messages=randn(states, messages, width),
        message_rows=torch.randint(messages, (table,), generator=random).int(),
        sources=torch.randint(nodes, (table,), generator=random).int(),
        root=True,
        embedding=randn(members, nodes, 6),
        fingerprint=("one", "two", "three")[:members],
    )


def message_per_edge() -> Exposure:
    """A table row per term with a message of its own, as convolutions with edge features give."""
    exposure = toy_exposure("gat")
    random = torch.Generator().manual_seed(2)
    terms, row = exposure.num_terms, exposure.rows.long()
    noise = torch.randn(2, terms, exposure.state.shape[2], generator=random).double()
    return replace(
        exposure,
        rows=torch.arange(terms).int(),
        contributions=exposure.contributions[:, row],
        message_rows=torch.arange(terms).int().flip(0),
        messages=(exposure.messages[:, exposure.message_rows[row].long()] + noise).flip(1),
        sources=exposure.sources[row],
    )


def users_model() -> Exposure:
    exposure = expose(net(3), DATA)
    random = torch.Generator().manual_seed(4)
    embedding = torch.randn(1, 30, 5, generator=random, dtype=torch.float64)
    return exposure if exposure.embedding is not None else replace(exposure, embedding=embedding)


class Headed(nn.Module):
    """Heads side by side, a skip connection, LayerNorm, a gate per node, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(9, 8), GATConv(8, 4, heads=2, bias=False)
        self.skip, self.norm, self.lin = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        mixed = self.norm(self.conv2(x, edge_index) + self.skip(x)).relu()
        return self.lin(mixed * x.sigmoid())


def nonlinear_head() -> Exposure:
    torch.manual_seed(4)
    exposure = expose(Headed().double().eval(), DATA)
    assert exposure.head is not None
    return exposure


KINDS: dict[str, Callable[[], Exposure]] = {
    **{name: lambda name=name: toy_exposure(name) for name in BACKBONES},
    "by-hand": by_hand,
    # Wider than what is kept once a member: shared and own states take other ways.
    "wide": lambda: by_hand(2, 40),
    "wide-shared": lambda: by_hand(2, 40, states=1),
    "message-per-edge": message_per_edge,
    "merged-groups": lambda: relax(toy_exposure("mixhop"), 0.0, between_groups=True),
    "restricted": lambda: toy_exposure("sage").restrict(torch.arange(30).flip(0)[4:]),
    "users-model": users_model,
    "head": nonlinear_head,
}


@cache
def world(kind: str) -> World:
    """The exposure of that kind; every member has its own training and validation nodes."""
    exposure = KINDS[kind]()
    place = torch.arange(exposure.num_nodes)
    y = (place * 7 + place // 5) % exposure.num_classes
    known = torch.zeros(exposure.num_nodes, dtype=torch.bool)
    known[exposure.recipients] = True
    train, val = [], []
    for member in range(exposure.num_members):
        role = (place * 5 + 3 * member) % 8
        train.append(known & (role < 3 + member))
        val.append(known & (role >= 6))
    return World(exposure, y, torch.stack(train, 1), torch.stack(val, 1))


def reordered_members(exposure: Exposure, order: list[int]) -> Exposure:
    """The same members in another order."""
    values = {name: getattr(exposure, name) for name in BY_MEMBER}
    moved = {
        name: value[order]
        for name, value in values.items()
        if value is not None and value.shape[0] == exposure.num_members
    }
    return replace(exposure, fingerprint=tuple(exposure.fingerprint[s] for s in order), **moved)


def shuffled_terms(exposure: Exposure) -> tuple[Exposure, Tensor]:
    """Terms in another order within their segments and table rows in another order; where each
    term went."""
    random = torch.Generator().manual_seed(6)
    owner = torch.repeat_interleave(exposure.segments.diff())
    keys = owner + torch.rand(exposure.num_terms, generator=random).double()
    order = keys.argsort()
    table = torch.randperm(exposure.contributions.shape[1], generator=random)
    place = table.argsort()
    messages = torch.randperm(exposure.messages.shape[1], generator=random)
    moved = replace(
        exposure,
        rows=place[exposure.rows.long()][order].int(),
        coefficients=exposure.coefficients[:, order],
        contributions=exposure.contributions[:, table],
        messages=exposure.messages[:, messages],
        message_rows=messages.argsort()[exposure.message_rows.long()][table].int(),
        sources=exposure.sources[table],
    )
    return moved, order


def renumbered_nodes(exposure: Exposure) -> tuple[Exposure, Tensor]:
    """The nodes under other numbers, recipients in the same order; old number of each new one."""
    random = torch.Generator().manual_seed(7)
    old = torch.randperm(exposure.num_nodes, generator=random)
    new = old.argsort()
    embedding = exposure.embedding
    moved = replace(
        exposure,
        recipients=new[exposure.recipients],
        sources=new[exposure.sources.long()].int(),
        fixed_logits=exposure.fixed_logits[:, old],
        frozen_logits=exposure.frozen_logits[:, old],
        state=exposure.state[:, old],
        embedding=None if embedding is None else embedding[:, old],
    )
    return moved, old


def reordered_classes(exposure: Exposure, order: Tensor) -> Exposure:
    """Class c under the number order[c]."""
    back = order.argsort()
    fields = ("contributions", "fixed_logits", "frozen_logits")
    return replace(exposure, **{name: getattr(exposure, name)[..., back] for name in fields})
