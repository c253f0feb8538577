"""The value itself: what it accepts, what follows from it, how it travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.kernels import cpu
from tests.helpers.models import pool_models, typed_models
from tests.helpers.models.convolutions import CASES, Net, graph
from tests.helpers.models.gallery import exposed
from tests.helpers.models.gallery_judge import drawn
from tests.helpers.models.planted import CLASSES, GROUPS, NODES, matrices, pieces, tables

HEADS = (
    "ReLU", "opaque softplus", "where", "LayerNorm, jumping max", "BatchNorm, jumping cat",
    "GAT, ELU", "SAGE normalised", "gate of both", "relations, ReLU", "TAGConv, tanh", "softmax",
    "UniMP",
)  # fmt: skip
"""Between them every kind of operation."""


@pytest.fixture
def exposure() -> Exposure:
    return Exposure(**pieces())


def test_identities_against_dense_algebra(exposure: Exposure) -> None:
    alpha, table = matrices(), tables()
    torch.testing.assert_close(exposure.mass, alpha.sum(3).transpose(1, 2))
    torch.testing.assert_close(exposure.logits(), exposure.frozen_logits)
    halved = exposure.logits(exposure.coefficients / 2)
    beta = exposure.frozen_logits - torch.einsum("sgvu,sguc->svc", alpha, table)
    expected = beta + torch.einsum("sgvu,sguc->svc", alpha / 2, table)
    torch.testing.assert_close(halved, expected)
    shared = exposure.logits(exposure.coefficients[:1])
    expected = beta + torch.einsum("gvu,sguc->svc", alpha[0], table)
    torch.testing.assert_close(shared, expected)


def test_restriction(exposure: Exposure) -> None:
    target = torch.arange(NODES) % CLASSES
    for nodes in (
        torch.tensor([4, 0, 6]),
        torch.arange(NODES) > 2,
        torch.tensor([], dtype=torch.long),
    ):
        part = exposure.restrict(nodes)
        numbers = nodes.nonzero().view(-1) if nodes.dtype == torch.bool else nodes
        torch.testing.assert_close(part.recipients, numbers)
        torch.testing.assert_close(part.logits(), exposure.frozen_logits[:, numbers])
        torch.testing.assert_close(part.mass, exposure.mass[:, numbers])
        torch.testing.assert_close(part.margins(target), exposure.margins(target)[:, numbers])
    twice = exposure.restrict(torch.tensor([5, 4, 2])).restrict(torch.tensor([2, 5]))
    torch.testing.assert_close(twice.logits(), exposure.frozen_logits[:, [2, 5]])
    with pytest.raises(InputError, match="node 3 is not among the recipients"):
        twice.restrict(torch.tensor([3]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(exposure: Exposure) -> None:
    moved = exposure.to("cuda")
    torch.testing.assert_close(moved.logits().cpu(), exposure.logits())
    torch.testing.assert_close(moved.mass.cpu(), exposure.mass)


@pytest.mark.parametrize("chunks", [1, 3, 64])
def test_chunks_change_nothing(
    chunks: int, exposure: Exposure, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, masses = exposure.logits(), exposure.mass
    monkeypatch.setattr(cpu, "CHUNKS", chunks)
    again = Exposure(**pieces())
    torch.testing.assert_close(again.logits(), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(again.mass, masses, rtol=0, atol=1e-15)


def test_chunks_of_terms_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """MFConv's W differs by node, so its contributions are formed term by term."""
    torch.manual_seed(0)
    net = Net(CASES["MFConv"]).double()
    whole = expose(net, graph())
    monkeypatch.setattr("gnn_repair.exposure.heads.logit_form.CHUNK", 7)
    torch.testing.assert_close(
        expose(net, graph()).contributions, whole.contributions, rtol=0, atol=1e-15
    )


# What is not accepted ----------------------------------------------------------------------------


def nan_at(tensor: Tensor) -> Tensor:
    out = tensor.clone()
    out.view(-1)[0] = torch.nan
    return out


def change(name: str, how: Any) -> dict[str, Any]:
    values = pieces()
    return {**values, name: how(values[name])}


def without_mass(values: dict[str, Any]) -> dict[str, Any]:
    first = values["segments"][1]
    coefficients = values["coefficients"].clone()
    coefficients[1, :first] = 0
    return {**values, "coefficients": coefficients}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no group": (change("groups", lambda g: ()), "at least one group"),
    "one class": (change("contributions", lambda t: t[..., :1]), "at least two classes, not 1"),
    "short segments": (change("segments", lambda t: t[:-1]), r"segments has shape \[14\] instead"),
    "falling segments": (change("segments", lambda t: t.flip(0)), "segments must rise from 0"),
    "coefficients": (
        change("coefficients", lambda t: t[:, 1:]),
        r"coefficients has shape \[2, \d+\] instead of \[2, \d+\]",
    ),
    "rows": (change("rows", lambda t: t + GROUPS * NODES), r"rows must lie in 0\.\.13"),
    "recipients": (change("recipients", lambda t: t - 1), r"recipients must lie in 0\.\.6"),
    "sources": (change("sources", lambda t: t + 1), r"sources must lie in -1\.\.6"),
    "message rows": (change("message_rows", lambda t: t + 1), r"message_rows must lie in 0\.\.6"),
    "state": (change("state", lambda t: t[:, 1:]), r"state has shape \[1, 6, 5\] instead"),
    "messages": (change("messages", lambda t: t[..., 1:]), r"messages has shape \[1, 7, 4\]"),
    "frozen logits": (change("frozen_logits", lambda t: t[:1]), r"frozen_logits has shape \[1, "),
    "NaN": (change("coefficients", nan_at), "coefficients holds NaN or infinite"),
    "infinite": (change("contributions", lambda t: t / 0), "contributions holds NaN or infinite"),
    "negative": (change("coefficients", lambda t: -t), "coefficients must be nonnegative"),
    "no mass": (without_mass(pieces()), "group first of node 0 has terms but no mass"),
    "wrong β": (
        change("fixed_logits", lambda t: t + 1),
        r"β \+ Σ α ℓ differs from the frozen logits by \S+ \(relative\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_at_construction(name: str) -> None:
    values, message = BAD[name]
    with pytest.raises(InputError, match=message):
        Exposure(**values)


# Files -------------------------------------------------------------------------------------------


KINDS: dict[str, Callable[[], Exposure]] = {
    "planted": lambda: replace(
        Exposure(**pieces()), root=True, origin="a test", fixed="β", residual=1e-9, called="f(x)"
    ),
    "sampled": lambda: replace(Exposure(**pieces()), n_id=7 * torch.arange(NODES) + 3),
    "labels": lambda: replace(Exposure(**pieces()), outputs="labels"),
    "types": lambda: expose(*typed_models.build("HeteroConv by sum")),
    "types, head": lambda: expose(*typed_models.build("HeteroConv then ReLU")),
    "graphs, head": lambda: expose(pool_models.built("mean, MLP"), pool_models.batch_of()),
    "held": lambda: expose(pool_models.built("max beside mean"), pool_models.batch_of()),
    **{f"head of {name}": partial(exposed, name) for name in HEADS},
}


@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_everything(kind: str, tmp_path: Path) -> None:
    exposure, path = KINDS[kind](), tmp_path / "here" / "exposure.safetensors"
    exposure.save(path)
    loaded = Exposure.load(path)
    for field in fields(Exposure):
        mine, other = getattr(loaded, field.name), getattr(exposure, field.name)
        if isinstance(other, Tensor):
            assert mine.dtype == other.dtype and torch.equal(mine, other), field.name
        elif field.name not in ("head", "replay"):
            assert mine == other, field.name
    lam = drawn(exposure, 5).unsqueeze(0)
    torch.testing.assert_close(loaded.logits(lam), exposure.logits(lam), rtol=1e-14, atol=1e-14)
    assert loaded.replay is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_is_saved_is_validated_again(exposure: Exposure, tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "exposure.safetensors"
    exposure.save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]  # as files of earlier versions were written
    tensors = load_file(path)
    tensors["coefficients"] = -tensors["coefficients"]
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(InputError, match="nonnegative"):
        Exposure.load(path)
