"""Small parts of repairs by hand: sparse rows, empty sets, saved numbers of another kind."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch_geometric.data import Data

from gnn_repair.exposure import expose
from gnn_repair.repair import NodeTranslation, SetTranslation
from gnn_repair.repair.inputs import Description

BRIEF = replace(NodeTranslation().budget, epochs=2, epoch_zero=False)


def test_rows_of_mostly_zeros_are_multiplied_as_they_are():
    generator = torch.Generator().manual_seed(0)
    state = torch.zeros(1, 40, 50, dtype=torch.float64)
    state[0, torch.arange(40), torch.arange(40)] = torch.arange(40, dtype=torch.float64) + 1
    logits = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 53, 5, generator=generator, dtype=torch.float64)
    description = Description(state, logits)
    assert description.shared is not None and description.shared.sparse is not None
    expected = torch.cat([state.expand(2, -1, -1), logits], 2) @ weight
    torch.testing.assert_close(description.times(weight), expected)


class WithoutLoops(nn.Module):
    def __init__(self):
        super().__init__()
        from torch_geometric.nn import SimpleConv

        self.conv, self.lin = SimpleConv(aggr="sum"), nn.Linear(4, 3)

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index))


def test_a_node_that_nobody_writes_to_stays_finite():
    """Its set is empty: nothing is summed and ψ's bias does not speak for it."""
    torch.manual_seed(1)
    data = Data(x=torch.randn(8, 4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 1]]))
    exposure = expose(WithoutLoops().double(), data.update({"x": data.x.double()}))
    y, known = torch.arange(8) % 3, torch.ones(8, dtype=torch.bool)
    train = torch.arange(8) < 5
    fitted = SetTranslation(budget=BRIEF, dropout=0.0).fit(exposure, y, train, known & ~train)
    assert bool(torch.isfinite(fitted.member_logits(exposure)).all())
    loud = {**fitted.parameters, "encoder.2.bias": fitted.parameters["encoder.2.bias"] + 7.0}
    moved = (
        replace(fitted, parameters=loud).member_logits(exposure)[0]
        - fitted.member_logits(exposure)[0]
    )
    with_terms = torch.isin(torch.arange(8), data.edge_index[1])
    assert bool((moved[~with_terms] == 0).all()) and bool((moved[with_terms].abs() > 0).any())
