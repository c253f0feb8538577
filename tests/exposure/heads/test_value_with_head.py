"""The value itself: views, files, words, and what it refuses to be built from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import GCNConv

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.heads.operations import Activation, Affine, HeadGraph
from tests.helpers.models.gallery import TAILED, built, exposed, graph
from tests.helpers.models.gallery_judge import judged


def test_sizes_are_those_of_the_mixture() -> None:
    exposure = exposed("GAT, ELU")
    assert (exposure.num_members, exposure.num_nodes, exposure.num_recipients) == (1, 26, 26)
    assert (exposure.num_classes, exposure.num_groups) == (4, 3)
    assert exposure.aggregate.num_classes == exposure.head.width == 24
    mass = exposure.mass
    torch.testing.assert_close(mass, torch.ones_like(mass))  # attention, self-loops added
    assert exposure.member(0) is exposure
    with pytest.raises(InputError, match="member 1 does not exist"):
        exposure.member(1)


def test_binding_brings_the_model_back(tmp_path: Path) -> None:
    entry = TAILED["LayerNorm, jumping sum"]
    model, data = built(entry.build, torch.float64), graph()
    exposure = expose(model, data)
    assert exposure.head is not None
    some = exposure.restrict(torch.tensor([7, 3]))
    some.save(tmp_path / "some")
    bound = Exposure.load(tmp_path / "some").bind(model, data)
    assert bound.replay is not None
    whole = exposure.coefficients[0].clone()
    for node in (3, 7):  # the same new coefficients by hand and through the restricted exposure
        start, stop = exposure.segments[node], exposure.segments[node + 1]
        whole[start:stop] = whole[start:stop].flip(0)
    lam = torch.cat([whole[exposure.segments[v] : exposure.segments[v + 1]] for v in (7, 3)])
    expected = judged(entry, model, exposure, whole)
    torch.testing.assert_close(bound.replay(lam), expected)
    torch.testing.assert_close(bound.logits(lam)[0], expected[[7, 3]])
    assert not torch.allclose(expected[[7, 3]], exposure.frozen_logits[0, [7, 3]], atol=1e-3)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    with pytest.raises(InputError, match="has changed since it was exposed; expose it again"):
        bound.replay(lam)
    with pytest.raises(InputError, match="logits are not those of the exposure"):
        Exposure.load(tmp_path / "some").bind(model, data)
    with pytest.raises(InputError, match="sends other messages"):
        bound.bind(built(TAILED["ReLU"].build, torch.float64), graph_without_an_entry())


def graph_without_an_entry():  # type: ignore[no-untyped-def]
    data = graph()
    data.edge_index = data.edge_index[:, data.edge_index[1] != 7]
    return data


def test_restriction_is_the_same_function_on_fewer_nodes() -> None:
    exposure = exposed("SAGE, ReLU")
    mask = torch.arange(26) % 3 == 1
    some = exposure.restrict(mask)
    torch.testing.assert_close(some.logits(), exposure.logits()[:, mask])
    y = torch.arange(26) % 4
    y[4] = -1
    margins = exposure.margins(y)
    logits = exposure.logits()[0]
    for node in (0, 5, 11):
        others = [float(logits[node, c]) for c in range(4) if c != int(y[node])]
        assert float(margins[0, node]) == pytest.approx(float(logits[node, y[node]]) - max(others))
    assert bool(margins[0, 4].isnan())
    torch.testing.assert_close(some.margins(y), margins[:, mask], equal_nan=True)


def test_replaying_leaves_the_model_as_it_was() -> None:
    model = built(TAILED["GIN with BatchNorm"].build, torch.float32).train()
    exposure = expose(model, graph(torch.float32))
    assert exposure.head is not None and exposure.replay is not None
    before = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = exposure.replay(exposure.coefficients[0])
    torch.testing.assert_close(frozen, exposure.frozen_logits[0], rtol=1e-5, atol=1e-5)
    assert model.training and all(p.requires_grad for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_what_is_left_out_is_said() -> None:
    assert "held as it is: `right` (SAGEConv) (scatter_reduce)" in str(
        exposed("a max branch beside")
    )


def test_what_does_not_fit_together() -> None:
    exposure = exposed("ReLU")
    tail = exposure.head
    with pytest.raises(InputError, match="reads 7 channels but the aggregate has 8"):
        replace(exposure, head=HeadGraph(7, tail.operations))
    relu, affine = tail.operations
    assert isinstance(affine, Affine)
    with pytest.raises(InputError, match="differs from the frozen logits"):
        replace(exposure, head=HeadGraph(8, (relu, replace(affine, bias=affine.bias + 1))))
    with pytest.raises(InputError, match="that come later"):
        replace(exposure, head=HeadGraph(8, (replace(relu, inputs=(2,)), affine)))
    with pytest.raises(InputError, match="NaN or infinite"):
        replace(exposure, head=HeadGraph(8, (relu, replace(affine, bias=affine.bias / 0))))
    with pytest.raises(InputError, match=r"is torch\.float32, not float64"):
        replace(exposure, head=HeadGraph(8, (relu, replace(affine, bias=affine.bias.float()))))
    unknown = Activation((0,), "step", torch.tensor(0.0, dtype=torch.float64))
    with pytest.raises(InputError, match="is none of relu"):
        replace(exposure, head=HeadGraph(8, (unknown, affine)))
    with pytest.raises(InputError, match=r"operation 1 \(affine\) of the head does not fit"):
        replace(exposure, head=HeadGraph(8, (relu, replace(affine, weight=affine.weight[:, :5]))))
    with pytest.raises(InputError, match="one number for every term"):
        exposure.logits(torch.ones(3))
    assert exposure.replay is not None
    with pytest.raises(InputError, match="one coefficient for each of"):
        exposure.replay(torch.ones(3))
    with pytest.raises(InputError, match="one class for every node"):
        exposure.margins(torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match="target is 9 at node 0"):
        exposure.margins(torch.full((26,), 9))


class Normed(torch.nn.Module):
    """Weights, running statistics and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = GCNConv(graph().num_features, 5), torch.nn.BatchNorm1d(5)
        self.last = torch.nn.Linear(5, 3)
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.last((self.norm(self.conv(x, edge_index)) + self.shift).relu())


@pytest.mark.parametrize("name", Normed().state_dict())
def test_a_model_is_not_replayed_after_any_of_its_tensors_was_written(name: str) -> None:
    torch.manual_seed(0)
    model, data = Normed().double().eval(), graph()
    exposure = expose(model, data)
    assert exposure.replay is not None
    torch.testing.assert_close(
        exposure.replay(exposure.coefficients[0]), model(data.x, data.edge_index)
    )
    model.state_dict()[name].add_(1)
    with pytest.raises(InputError, match="has changed since it was exposed"):
        exposure.replay(exposure.coefficients[0])
