"""RGCN on a graph whose edges have types: relations are groups, named by their numbers."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gnn_repair as gr

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
