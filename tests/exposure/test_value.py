"""The value itself: what it accepts, what follows from it, how it travels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.kernels import cpu
from tests.helpers.models.convolutions import CASES, Net, graph
from tests.helpers.models.planted import CLASSES, GROUPS, MEMBERS, NODES, matrices, pieces, tables


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


def test_margins_are_against_the_worst_rival(exposure: Exposure) -> None:
    target = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    margins = exposure.margins(target)
    for member in range(MEMBERS):
        for node in range(NODES):
            z = exposure.frozen_logits[member, node].tolist()
            own = z.pop(int(target[node]))
            assert float(margins[member, node]) == pytest.approx(own - max(z))


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


def test_one_member(exposure: Exposure) -> None:
    for index in range(MEMBERS):
        alone = exposure.member(index)
        assert alone.num_members == 1
        torch.testing.assert_close(alone.logits()[0], exposure.frozen_logits[index])
        torch.testing.assert_close(alone.mass[0], exposure.mass[index])


def test_moving_to_a_device_keeps_everything(exposure: Exposure) -> None:
    moved = exposure.to("cpu")
    torch.testing.assert_close(moved.logits(), exposure.logits())
    assert moved.groups == exposure.groups


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


def test_files_keep_everything(exposure: Exposure, tmp_path: Path) -> None:
    path = tmp_path / "here" / "exposure.safetensors"
    exposure = replace(exposure, root=True, origin="a test", fixed="β", residual=1e-9)
    exposure.save(path)
    loaded = Exposure.load(path)
    assert loaded.groups == exposure.groups
    assert (loaded.root, loaded.origin, loaded.fixed, loaded.residual) == (
        True,
        "a test",
        "β",
        1e-9,
    )
    for name, tensor in exposure._tensors().items():
        torch.testing.assert_close(getattr(loaded, name), tensor, rtol=0, atol=0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_damaged_and_foreign_files(exposure: Exposure, tmp_path: Path) -> None:
    path = tmp_path / "exposure.safetensors"
    with pytest.raises(FileFormatError, match="does not exist"):
        Exposure.load(path)
    exposure.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match="damaged or not a safetensors file"):
        Exposure.load(path)
    save_file({"x": torch.zeros(2)}, path, metadata={"kind": "gnn-repair backbone"})
    with pytest.raises(FileFormatError, match="holds gnn-repair backbone, not gnn-repair exposure"):
        Exposure.load(path)


def test_a_file_with_a_piece_missing(exposure: Exposure, tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "exposure.safetensors"
    exposure.save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]  # as files of earlier versions were written
    tensors = load_file(path)
    del tensors["rows"]
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(FileFormatError, match="rows"):
        Exposure.load(path)


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
