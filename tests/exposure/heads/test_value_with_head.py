"""Exposures with a head: what is refused, altered files, and the model bound and run again."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, Sequential, SGConv, SSGConv

from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.heads.operations import Activation, Affine, HeadGraph, find_target
from tests.campaigns import file_mutations
from tests.campaigns.file_subjects import Subject, judge_exposure
from tests.helpers.models.gallery import TAILED, built, exposed, graph
from tests.helpers.models.gallery_judge import judged
from tests.helpers.refusals import refused


def heads() -> dict[tuple[str, ...], HeadGraph]:
    """By what the refusal names: heads that do not fit."""
    relu, affine = exposed("ReLU").head.operations
    assert isinstance(affine, Affine)
    unknown = Activation((0,), "step", torch.tensor(0.0, dtype=torch.float64))
    pairs: dict[tuple[str, ...], Any] = {
        ("7 channels", "8"): (7, relu, affine),
        ("frozen logits",): (8, relu, replace(affine, bias=affine.bias + 1)),
        ("operation 0", "later"): (8, replace(relu, inputs=(2,)), affine),
        ("bias", "operation 1", "NaN"): (8, relu, replace(affine, bias=affine.bias / 0)),
        ("bias", "torch.float32"): (8, relu, replace(affine, bias=affine.bias.float())),
        ("activation", "relu"): (8, unknown, affine),
        ("operation 1", "affine"): (8, relu, replace(affine, weight=affine.weight[:, :5])),
        ("3 classes", "4"): (
            8, relu, replace(affine, weight=affine.weight[:3], bias=affine.bias[:3])
        ),
        ("bias", "27 rows", "26 nodes"): (
            8, relu, replace(affine, bias=affine.bias.repeat(27, 1))
        ),
    }  # fmt: skip
    return {words: HeadGraph(width, tuple(steps)) for words, (width, *steps) in pairs.items()}


def test_what_does_not_fit_together() -> None:
    exposure = exposed("ReLU")
    for words, head in heads().items():
        with refused(*words):
            replace(exposure, head=head)
    with refused("frozen_aggregate"):
        replace(exposure, frozen_aggregate=None)
    with refused("coefficients", "[3]"):
        exposure.logits(torch.ones(3))
    with refused("replay", f"{exposure.num_terms} terms"):
        exposure.replay(torch.ones(3))
    with refused("target", "[3]"):
        exposure.margins(torch.zeros(3, dtype=torch.long))
    with refused("target is 9", "node 0"):
        exposure.margins(torch.full((26,), 9))
    with refused("member 1"):
        exposure.member(1)


# Altered files are refused in one sentence, or sound ----------------------------------------------

NAMES = (
    "opaque softplus",
    "where",
    "LayerNorm, jumping max",
    "gate of both",
    "SAGE normalised",
    "softmax",
)


def judge(value: Exposure) -> str:
    gap = (value.logits() - value.frozen_logits[:, value.recipients]).abs().amax()
    fault = "" if float(gap) < 1e-3 else f"its head misses its logits by {float(gap):.1e}"
    return judge_exposure(value.aggregate) or fault


def use(value: Exposure) -> object:
    some = value.restrict(value.recipients[:2])
    return str(value), some.logits(), some.margins(torch.zeros(value.num_nodes, dtype=torch.long))


def test_altered_heads_are_refused_or_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = []
    for name in NAMES:
        exposed(name).save(tmp_path / "sound")
        contents.append((tmp_path / "sound").read_bytes())
    subject = Subject("head", tuple(contents), Exposure.load, judge, use)
    monkeypatch.setattr(file_mutations, "make_subjects", lambda folder: [subject])
    found = file_mutations.campaign(3, 1e9, most=150)
    assert found.faults == ()
    assert found.details["head: refused"] > 60 and found.details["head: unchanged"] > 0


# The model itself ---------------------------------------------------------------------------------


def run(model: nn.Module, data: Any) -> Tensor:
    return model(data.x, data.edge_index)


@pytest.mark.parametrize("outputs", ["classes", "labels"])
@pytest.mark.parametrize("forward", [run, None])
def test_binding_knows_a_model_without_a_head(forward: Any, outputs: Any, tmp_path: Path) -> None:
    def made() -> nn.Module:
        end = nn.Sigmoid() if outputs == "labels" else nn.Identity()
        steps = [(GCNConv(graph().num_features, 3), "x, edge_index -> x"), end]
        return Sequential("x, edge_index", steps).double()

    torch.manual_seed(0)
    data, model = graph(), made()
    exposure = expose(model, data, outputs=outputs)
    exposure.save(tmp_path / "plain")
    read = Exposure.load(tmp_path / "plain")
    assert read.head is None and read.bind(model, data, forward=forward).forward is forward
    with refused("logits", "parameters"):
        read.bind(made(), data)


@pytest.mark.parametrize("name", ["normal_.default", "mm.default", "__class__.mro", "relu.none"])
def test_files_name_elementwise_operations_alone(name: str) -> None:
    with refused(repr(name), "elementwise"):
        find_target(name)


def test_binding_allows_what_its_tolerance_does() -> None:
    torch.manual_seed(0)
    data = graph(torch.float32)
    model = GCNConv(data.num_features, 3)
    exposure = expose(model, data)
    off = {n: getattr(exposure, n) + 5e-5 for n in ("frozen_logits", "fixed_logits")}
    apart = replace(exposure, replay=None, **off)
    with refused("logits"):
        apart.bind(model, data)
    bound = apart.bind(model, data, tolerance=1e-3)
    assert torch.equal(bound.frozen_logits, apart.frozen_logits)


def test_a_node_with_large_logits_hides_no_change_at_others() -> None:
    torch.manual_seed(0)
    data, model = graph(), GCNConv(graph().num_features, 3).double()
    data.x[0] *= 1e9
    exposure = expose(model, data)
    apart = exposure.frozen_logits.clone()
    apart[0, apart[0].abs().amax(1).argmin()] += 1e-6
    fixed = exposure.fixed_logits + apart - exposure.frozen_logits
    other = replace(exposure, replay=None, frozen_logits=apart, fixed_logits=fixed)
    with refused("logits"):
        other.bind(model, data)


def test_binding_brings_the_model_back(tmp_path: Path) -> None:
    entry = TAILED["LayerNorm, jumping sum"]
    model, data = built(entry.build, torch.float64), graph()
    exposure = expose(model, data)
    assert exposure.head is not None
    exposure.restrict(torch.tensor([7, 3])).save(tmp_path / "some")
    read = Exposure.load(tmp_path / "some")
    bound = read.bind(model, data)
    assert "use bind" in str(read) and "use bind" not in str(bound)
    whole = exposure.coefficients[0].clone()
    own = [slice(*exposure.segments[v : v + 2].tolist()) for v in (7, 3)]
    for part in own:  # the same new coefficients by hand and through the restricted exposure
        whole[part] = whole[part].flip(0)
    lam = torch.cat([whole[part] for part in own])
    expected = judged(entry, model, exposure, whole)
    torch.testing.assert_close(bound.replay(lam), expected)
    torch.testing.assert_close(bound.logits(lam)[0], expected[[7, 3]])
    assert not torch.allclose(expected[[7, 3]], exposure.frozen_logits[0, [7, 3]], atol=1e-3)
    other = data.clone()
    other.edge_index = data.edge_index[:, data.edge_index[1] != 7]
    with refused("other messages", "data"):
        bound.bind(built(TAILED["ReLU"].build, torch.float64), other)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    with refused("logits", "parameters"):
        read.bind(model, data)
    with refused(type(model).__name__, "changed"):
        bound.replay(lam)


class Normed(nn.Module):
    """Weights, running statistics and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = GCNConv(graph().num_features, 5), nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 3)
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last((self.norm(self.conv(x, edge_index)) + self.shift).relu())


@pytest.mark.parametrize("name", Normed().state_dict())
def test_a_model_is_not_replayed_after_any_of_its_tensors_was_written(name: str) -> None:
    torch.manual_seed(0)
    model, data = Normed().double().eval(), graph()
    model.register_buffer("unused", torch.tensor([torch.nan]))
    exposure = expose(model, data)
    logits = run(model, data)
    model.load_state_dict(deepcopy(model.state_dict()))  # written, and still the same
    torch.testing.assert_close(exposure.replay(exposure.coefficients[0]), logits)
    model.state_dict()[name].data.add_(1)  # which PyTorch does not count as a write
    with refused("Normed", "changed", "expose it again"):
        exposure.replay(exposure.coefficients[0])


@pytest.mark.parametrize(("kind", "kept"), [(SGConv, "_cached_x"), (SSGConv, "_cached_h")])
def test_a_propagation_that_the_user_cached_does_not_stop_a_replay(kind: Any, kept: str) -> None:
    torch.manual_seed(0)
    words = {"alpha": 0.1} if kind is SSGConv else {}
    data, conv = graph(), kind(graph().num_features, 5, K=2, cached=True, **words)
    steps = [(conv, "x, edge_index -> x"), nn.ReLU(), nn.Linear(5, 3)]
    model = Sequential("x, edge_index", steps).double().eval()
    exposure = expose(model, data)
    run(model, data)  # fills the cache: the next run would send no message
    lam = exposure.coefficients[0].flip(0)
    torch.testing.assert_close(exposure.replay(lam), exposure.logits(lam)[0])
    assert getattr(conv, kept) is not None and conv.cached
