"""Small exposures with everything a report must cope with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_repair.exposure import Exposure
from tests.helpers.hand_made import hand_made

NASTY = ["<script>window.harm=1</script>", "</script><b id=harm>b</b>", "a & b", "plain"]
"""Names that try to be markup."""


def make_exposure(
    nodes: int = 40, classes: int = 4, groups: int = 1, members: int = 1, seed: int = 3
) -> tuple[Exposure, Tensor]:
    """A random exposure and labels.

    Node 0 has a single term per group, node 1 lacks the last of several groups, node 2 has terms
    from everybody; the rest have 2 to 7 terms per group. About a third of the nodes are wrong.
    """
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    y = torch.randint(classes, (nodes,), generator=generator)
    lengths, rows = [], []
    for node in range(nodes):
        for group in range(groups):
            size = 2 + int(6 * rand(1))
            sources = torch.randperm(nodes, generator=generator)[:size]
            if node == 0:
                sources = torch.tensor([0])
            if node == 1 and groups > 1 and group == groups - 1:
                sources = sources[:0]
            if node == 2:
                sources = torch.arange(nodes)
            lengths.append(len(sources))
            rows.append(sources + group * nodes)
    segments = torch.tensor([0, *lengths]).cumsum(0)
    table = torch.randn(members, groups * nodes, classes, generator=generator).double()
    signal = torch.nn.functional.one_hot(y, classes).double().repeat(groups, 1)
    table += 1.2 * signal
    terms = torch.cat(rows)
    coefficients = 0.1 + rand(members, len(terms))
    fixed = 0.3 * torch.randn(members, nodes, classes, generator=generator).double()
    state = torch.randn(1, nodes, 3, generator=generator)
    index = torch.arange(nodes).repeat(groups).int()
    exposure = hand_made(
        segments,
        terms,
        coefficients,
        table,
        fixed,
        groups,
        state=state,
        messages=state,
        message_rows=index,
        sources=index,
        origin="a random model",
    )
    return exposure, y


@dataclass(frozen=True)
class Tilted:
    """Stands for a fitted reweighting: α tilted by a fixed random score, masses kept."""

    seed: int = 5

    def coefficients(self, exposure: Exposure) -> Tensor:
        rows = exposure.rows.long()
        generator = torch.Generator().manual_seed(self.seed)
        score = torch.randn(exposure.contributions.shape[1], generator=generator).double()
        tilted = exposure.coefficients * score[rows].exp()
        ratio = exposure.mass / exposure.masses(tilted).clamp(min=1e-300)
        lengths = exposure.segments.diff()
        return tilted * torch.repeat_interleave(ratio.flatten(1), lengths, dim=1)

    def logits(self, exposure: Exposure) -> Tensor:
        return exposure.logits(self.coefficients(exposure))


@dataclass(frozen=True)
class Moved:
    """Stands for a fitted translation: a fixed centred shift per node."""

    seed: int = 8

    def shift(self, exposure: Exposure) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shift = torch.randn(exposure.num_nodes, exposure.num_classes, generator=generator).double()
        shift = shift - shift.mean(1, keepdim=True)
        return shift[exposure.recipients].expand(exposure.num_members, -1, -1)

    def logits(self, exposure: Exposure) -> Tensor:
        return exposure.frozen_logits[:, exposure.recipients] + self.shift(exposure)
