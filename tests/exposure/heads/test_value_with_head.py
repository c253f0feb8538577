"""Exposures with a head: views, files, altered files, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, SGConv, SSGConv

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.heads.operations import Activation, Affine, HeadGraph
from tests.campaigns import file_mutations
from tests.campaigns.file_subjects import Subject, judge_exposure
from tests.helpers.models.gallery import TAILED, built, exposed, graph
from tests.helpers.models.gallery_judge import judged

# The value itself: views, files, words, and what it refuses to be built from.


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


def test_binding_knows_a_model_without_a_head(tmp_path):
    torch.manual_seed(0)
    data, forward = graph(), lambda m, d: m(d.x, d.edge_index)
    model = GCNConv(data.num_features, 3).double()
    expose(model, data).save(tmp_path / "plain")
    read = Exposure.load(tmp_path / "plain")
    assert read.bind(model, data, forward=forward).forward is forward
    with pytest.raises(InputError, match="logits are not those of the exposure"):
        read.bind(GCNConv(data.num_features, 3).double(), data)


def test_binding_allows_what_its_tolerance_does():
    torch.manual_seed(0)
    data = graph()
    data.x = data.x.float()
    model = GCNConv(data.num_features, 3)
    exposure = expose(model, data)
    off = {n: getattr(exposure, n) + 5e-5 for n in ("frozen_logits", "fixed_logits")}
    apart = replace(exposure, replay=None, **off)
    with pytest.raises(InputError, match="logits are not those of the exposure"):
        apart.bind(model, data)
    bound = apart.bind(model, data, tolerance=1e-3)
    assert torch.equal(bound.frozen_logits, apart.frozen_logits)


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


# Altered files of tailed exposures: refused in one sentence, or sound.

NAMES = (
    "opaque softplus",
    "where",
    "LayerNorm, jumping max",
    "gate of both",
    "SAGE normalised",
    "softmax",
)


def told(value: Any) -> bytes:
    """Everything a value holds, as bytes."""
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}".encode() + value.numpy().tobytes()
    if isinstance(value, tuple | list):
        return b"(" + b",".join(told(item) for item in value) + b")"
    if hasattr(value, "__dataclass_fields__"):
        held = [(n, getattr(value, n)) for n in value.__dataclass_fields__ if n != "replay"]
        return type(value).__name__.encode() + told([part for pair in held for part in pair])
    return repr(value).encode()


def fingerprint(value: Any) -> str:
    return hashlib.sha256(told(value)).hexdigest()


def by_numpy(operation: Any, values: list[np.ndarray], nodes: int) -> np.ndarray:
    """One operation, written anew."""
    held = {n: t.numpy() for n, t in operation.constants()}
    x = values[operation.inputs[0]] if operation.inputs else None
    others = [values[i] for i in operation.inputs]
    match type(operation).__name__:
        case "Affine":
            return np.einsum("nd,kd->nk", x, held["weight"]) + held["bias"]
        case "Scale":
            return x * held["factor"] + held["shift"]
        case "Select":
            return np.stack([x[:, i] for i in held["index"]], 1)
        case "Constant":
            return np.zeros((nodes, 1)) + held["value"]
        case "Add":
            return sum(f * v for f, v in zip(operation.factors, others, strict=True))
        case "Multiply":
            return others[0] * others[1]
        case "Maximum":
            return np.max(others, 0)
        case "Softmax":
            return np.exp(x) / np.exp(x).sum(1, keepdims=True)
        case "Normalize":
            return x / np.maximum(np.sqrt((x**2).sum(1, keepdims=True)), operation.eps)
        case "LayerNorm":
            gap = x - x.mean(1, keepdims=True)
            scale = np.sqrt((gap**2).mean(1, keepdims=True) + operation.eps)
            return gap / scale * held["weight"] + held["bias"]
    elementwise = {
        "relu": lambda v: np.maximum(v, 0),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "softplus": lambda v: np.log1p(np.exp(v)),
        "gt": lambda v: v > 0,
    }
    if operation.title == "where":
        return np.where(others[0] != 0, others[1], others[2])
    return elementwise[operation.title](x)


def judge(value: Exposure) -> str:
    fault = judge_exposure(value.aggregate)
    if fault:
        return fault
    values = [value.aggregate.logits()[0].numpy()]
    for operation in value.head.operations:
        if operation.title not in PLAIN:
            return ""  # altered into an operation that this judge does not know
        values.append(by_numpy(operation, values, len(values[0])))
    frozen = value.frozen_logits[0].numpy()
    gap = np.abs(values[-1] - frozen) / np.maximum(1, np.abs(frozen).max(1, keepdims=True))
    return "" if gap.max() < 1e-4 else f"its tail misses its logits by {gap.max():.1e}"


PLAIN = {"affine", "scale", "select", "constant", "add", "multiply", "maximum", "softmax"}
PLAIN |= {"normalize", "layer_norm", "relu", "sigmoid", "softplus", "gt", "where"}


def use(value: Exposure) -> object:
    some = value.restrict(value.recipients[:2])
    return str(value), some.logits(), some.margins(torch.zeros(value.num_nodes, dtype=torch.long))


@pytest.fixture
def subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = []
    for name in NAMES:
        exposed(name).save(tmp_path / "sound")
        contents.append((tmp_path / "sound").read_bytes())
    subject = Subject("tail", tuple(contents), Exposure.load, judge, use)
    monkeypatch.setattr(file_mutations, "make_subjects", lambda folder: [subject])
    monkeypatch.setattr(file_mutations, "fingerprint", fingerprint)


def test_altered_tails_are_refused_or_sound(subjects: None) -> None:
    found = file_mutations.campaign(3, 1e9, most=150)
    assert found.faults == ()
    assert found.details["tail: refused"] > 60 and found.details["tail: unchanged"] > 0


def test_the_judge_is_awake() -> None:
    for name in NAMES:
        assert judge(exposed(name)) == ""
    value = exposed("ReLU")
    object.__setattr__(value, "frozen_logits", value.frozen_logits + 1e-3)
    assert "misses its logits" in judge(value)


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


@pytest.mark.parametrize("conv", [SGConv, SSGConv])
def test_a_propagation_that_the_user_cached_does_not_stop_a_replay(conv: Any) -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            words = {"alpha": 0.1} if conv is SSGConv else {}
            self.conv = conv(graph().num_features, 5, K=2, cached=True, **words)
            self.last = torch.nn.Linear(5, 3)

        def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
            return self.last(self.conv(x, edge_index).relu())

    torch.manual_seed(0)
    model, data = Cached().double().eval(), graph()
    exposure = expose(model, data)
    model(data.x, data.edge_index)  # fills the cache: the next run would send no message
    lam = exposure.coefficients[0].flip(0)
    torch.testing.assert_close(exposure.replay(lam), exposure.logits(lam)[0])
    kept = vars(model.conv)["_cached_x" if conv is SGConv else "_cached_h"]
    assert kept is not None and model.conv.cached
