"""The value itself: what it accepts, what follows from it, how it is cut and travels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import RECONSTRUCTION
from gnn_repair.exposure.record.replay import relative_gap
from gnn_repair.kernels import cpu
from tests.helpers.models.planted import CLASSES, GROUPS, MEMBERS, NODES, matrices, pieces
from tests.helpers.refusals import refused


@pytest.fixture
def exposure() -> Exposure:
    return Exposure(**pieces())


@pytest.mark.parametrize("chunks", [1, 3, 64])
def test_chunks_change_nothing(
    chunks: int, exposure: Exposure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "CHUNKS", chunks)
    again = Exposure(**pieces())
    torch.testing.assert_close(again.logits(), exposure.logits(), rtol=0, atol=1e-15)
    torch.testing.assert_close(again.mass, exposure.mass, rtol=0, atol=1e-15)


# What is refused ----------------------------------------------------------------------------------


def nan_at(tensor: Tensor) -> Tensor:
    return tensor.index_fill(1, torch.tensor([tensor.shape[1] - 1]), torch.nan)


def without_mass(coefficients: Tensor) -> Tensor:
    """A group of the second member alone."""
    out = coefficients.clone()
    out[1, : pieces()["segments"][1]] = 0
    return out


BAD: list[tuple[str, Any, tuple[str, ...]]] = [
    ("groups", lambda g: (), ("group",)),
    ("groups", list, ("groups", "tuple of Group")),
    ("groups", lambda g: ("a", "b"), ("groups", "tuple of Group")),
    ("contributions", lambda t: t[..., :1], ("two classes", "1")),
    ("contributions", Tensor.float, ("contributions", "torch.float32", "float64")),
    ("contributions", lambda t: t[0], ("contributions", "[14, 3]", "3 axes")),
    ("contributions", lambda t: t / 0, ("contributions", "NaN or infinite")),
    ("fixed_logits", Tensor.float, ("fixed_logits", "torch.float32", "float64")),
    ("fixed_logits", lambda t: t + 1, ("frozen logits", "fixed_logits")),
    ("frozen_logits", Tensor.float, ("frozen_logits", "torch.float32")),
    ("frozen_logits", lambda t: t[:1], ("frozen_logits", "[1, 7, 3]")),
    ("coefficients", Tensor.long, ("coefficients", "torch.int64")),
    ("coefficients", lambda t: t[0], ("coefficients", "2 axes")),
    ("coefficients", lambda t: t[:, 1:], ("coefficients", "[2, ")),
    ("coefficients", nan_at, ("coefficients", "NaN or infinite")),
    ("coefficients", lambda t: -t, ("coefficients", "nonnegative")),
    ("coefficients", without_mass, ("group first of node 0", "no mass")),
    ("segments", Tensor.int, ("segments", "torch.int32", "int64")),
    ("segments", lambda t: t[:-1], ("segments", "[14]")),
    ("segments", lambda t: t.flip(0), ("segments", "rise from 0")),
    ("segments", lambda t: t + (t > 0), ("segments", "rise from 0")),
    ("segments", lambda t: t.clone().index_fill(0, torch.tensor([3]), 0), ("segments", "rise")),
    ("rows", Tensor.long, ("rows", "torch.int64", "int32", ".to(")),
    ("rows", Tensor.tolist, ("rows", "list", "tensor")),
    ("rows", lambda t: t + GROUPS * NODES, ("rows", "0..13")),
    ("rows", lambda t: t - 1, ("rows", "0..13")),
    ("recipients", lambda t: t - 1, ("recipients", "0..6")),
    ("recipients", lambda t: t + 1, ("recipients", "0..6")),
    ("sources", lambda t: t + 1, ("sources", "-1..6")),
    ("sources", lambda t: t - 2, ("sources", "-1..6")),
    ("message_rows", lambda t: t + 1, ("message_rows", "0..6")),
    ("message_rows", lambda t: t - 1, ("message_rows", "0..6")),
    ("state", lambda t: t[:, 1:], ("state", "[1, 6, 5]")),
    ("state", lambda t: t.to("meta"), ("state", "meta", "cpu")),
    ("messages", lambda t: t[..., 1:], ("messages", "[1, 7, 4]")),
    ("fingerprint", lambda _: ("a",), ("fingerprint", "1 entries", "2 members")),
    ("outputs", lambda _: "label", ("outputs", "'label'", "labels")),
    ("n_id", lambda _: torch.arange(3), ("n_id", "[3]")),
    ("n_id", lambda _: -torch.arange(NODES), ("n_id", "negative")),
    ("graph_starts", lambda _: torch.arange(8) * 2, ("graph_starts", "rise from 0")),
]


@pytest.mark.parametrize(("name", "how", "words"), BAD)
def test_refused_at_construction(name: str, how: Any, words: tuple[str, ...]) -> None:
    values = pieces()
    with refused(*words):
        Exposure(**(values | {name: how(values.get(name))}))


def test_who_has_no_mass_is_named_by_its_own_number(exposure: Exposure) -> None:
    part = exposure.restrict([NODES - 1, 0]).member(1)
    with refused(f"group first of node {NODES - 1}", "no mass"):
        replace(part, coefficients=part.coefficients * 0)


@pytest.mark.parametrize("wrong", ["coefficients", "state", "residual", "fingerprint"])
def test_what_is_saved_is_validated_again(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "exposure.safetensors"
    Exposure(**pieces(), residual=1e-9, fingerprint=("a", "b")).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]  # as files of earlier versions were written
    tensors, header = load_file(path), json.loads(metadata["header"])
    if wrong in tensors:
        tensors[wrong] = -tensors[wrong] if wrong == "coefficients" else nan_at(tensors[wrong])
    else:
        header[wrong] = -1e-9 if wrong == "residual" else [1, 2]
    metadata["header"] = json.dumps(header)
    save_file(tensors, path, metadata=metadata)
    with refused(wrong):
        Exposure.load(path)


@pytest.mark.parametrize(("at_once", "node"), [(1, 1), (1 << 22, 6)])
@pytest.mark.parametrize("member", range(MEMBERS))
@pytest.mark.parametrize("size", [1.0, -1e3])
@pytest.mark.parametrize("factor", [0.9, -0.9, 1.1, -1.1])
def test_the_reconstruction_is_relative_to_the_logit_where_that_is_large(
    at_once: int,
    node: int,
    member: int,
    size: float,
    factor: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnn_repair.exposure.pieces.NUMBERS", at_once)
    values = pieces()
    frozen, fixed = values["frozen_logits"].clone(), values["fixed_logits"].clone()
    shift = size - frozen[member, node, 2]
    frozen[member, node, 2] += shift
    fixed[member, node, 2] += shift + factor * RECONSTRUCTION * size
    values |= {"frozen_logits": frozen, "fixed_logits": fixed}
    if abs(factor) < 1:
        assert Exposure(**values).num_members == MEMBERS
        return
    with refused("frozen logits", "1.1e-05"):
        Exposure(**values)


# What its methods accept: anything of the right size, and a sentence otherwise --------------------

TERMS = int((matrices()[0] != 0).sum())


@pytest.mark.parametrize("method", ["logits", "masses", "margins"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: torch.ones(1, 3), ("[1, 3]", f"[1 or 2, {TERMS}]")),
        (lambda: torch.ones(1, TERMS + 1), ("[1 or 2",)),
        (lambda: torch.ones(3, TERMS), (f"[3, {TERMS}]",)),
        (lambda: torch.ones(TERMS, 1), ("[1 or 2",)),
        (lambda: torch.ones(1, 1, TERMS), ("[1 or 2",)),
        (lambda: torch.ones(()), ("[]",)),
        (lambda: torch.full((1, TERMS), torch.nan), ("NaN or infinite",)),
        (lambda: torch.full((1, TERMS), torch.inf), ("NaN or infinite",)),
        (lambda: torch.ones(1, TERMS, dtype=torch.long), ("torch.int64", ".double()")),
        (lambda: torch.ones(1, TERMS, device="meta"), ("meta", "cpu", ".to()")),
        (lambda: [1.0] * TERMS, ("list", "tensor")),
    ],
)
def test_coefficients_of_another_size(
    method: str, given: Any, words: tuple[str, ...], exposure: Exposure
) -> None:
    before = [torch.zeros(NODES, dtype=torch.long)] if method == "margins" else []
    with refused("coefficients", *words):
        getattr(exposure, method)(*before, given())


def test_a_vector_of_coefficients_is_shared(exposure: Exposure) -> None:
    vector = torch.rand(TERMS, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    torch.testing.assert_close(exposure.logits(vector), exposure.logits(vector.expand(2, -1)))
    assert exposure.masses(vector).shape == (1, NODES, GROUPS)


def test_unknown_classes_have_no_margin(exposure: Exposure) -> None:
    target = torch.tensor([0, -1, 2, 0, 1, 2, -1])
    margins = exposure.margins(target)
    assert margins.isnan().all(0).tolist() == (target < 0).tolist()
    torch.testing.assert_close(margins[:, 0], exposure.margins(torch.zeros(NODES).long())[:, 0])
    assert exposure.margins(target.tolist()).shape == (MEMBERS, NODES)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (torch.zeros(5, dtype=torch.long), ("[5]", "[7]")),
        (torch.zeros(NODES, 1, dtype=torch.long), ("[7, 1]",)),
        (torch.zeros(NODES), ("torch.float32", "class numbers", "target.long()")),
        (torch.zeros(NODES) > 0, ("torch.bool", "target.long()")),
        (torch.full((NODES,), torch.nan), ("torch.float32", "−1 where unknown")),
        (torch.full((NODES,), 0.5), ("torch.float32", "whole numbers")),
        (torch.eye(CLASSES)[torch.arange(NODES) % CLASSES], ("[7, 3]", "target.argmax(1)")),
        (torch.ones(NODES, CLASSES), ("[7, 3]", "outputs='labels'")),
        (torch.full((NODES,), CLASSES), (f"{CLASSES} at node 0", "0 to 2")),
        (torch.tensor([0, 0, 0, -2, 0, 0, 0]), ("-2 at node 3",)),
        ("mine", ("str",)),
        (None, ("None",)),
    ],
)
def test_targets_of_another_kind(target: Any, words: tuple[str, ...], exposure: Exposure) -> None:
    with refused("target", *words):
        exposure.margins(target)


def test_margins_are_of_classes_alone(exposure: Exposure) -> None:
    for outputs in ("labels", "values"):
        with refused(outputs, "classes", "value_range"):
            replace(exposure, outputs=outputs).margins(torch.zeros(NODES).long())


@pytest.mark.parametrize(
    ("nodes", "numbers"),
    [
        ([1, 2], [1, 2]),
        ((6, 0), [6, 0]),
        (range(2, 5), [2, 3, 4]),
        (np.array([3, 1]), [3, 1]),
        (np.arange(NODES) > 4, [5, 6]),
        ([False, True, False, False, False, False, True], [1, 6]),
        (torch.tensor([5], dtype=torch.int32), [5]),
        (torch.tensor([5], dtype=torch.uint8), [5]),
        (4, [4]),
        ([1, 0], [1, 0]),
        ([], []),
        (np.array([]), []),
    ],
)
def test_nodes_in_many_forms(nodes: Any, numbers: list[int], exposure: Exposure) -> None:
    part = exposure.restrict(nodes)
    assert part.recipients.tolist() == numbers
    torch.testing.assert_close(part.logits(), exposure.frozen_logits[:, numbers])
    torch.testing.assert_close(part.mass, exposure.mass[:, numbers])


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([1.5], ("torch.float32", "node numbers")),
        ([-1], ("node -1", "0 to 6")),
        ([0, 7], ("node 7", "0 to 6")),
        (torch.ones(NODES, 2, dtype=torch.bool), ("[7, 2]", "[N]")),
        (torch.ones(5, dtype=torch.bool), ("5", "7 nodes")),
        (torch.tensor(True), ("[]",)),
        ("all", ("str", "mask")),
        (None, ("None",)),
        ([[1], [2, 3]], ("list",)),
        ([1j], ("torch.complex64",)),
        (torch.tensor([0, 1, 1, 0, 0, 0, 1]), ("zeros and ones for all 7 nodes", "nodes.bool()")),
        (np.array([1, 0, 0, 0, 0, 0, 0], np.uint8), ("zeros and ones", "nodes.bool()")),
    ],
)
def test_nodes_that_are_none(nodes: Any, words: tuple[str, ...], exposure: Exposure) -> None:
    with refused(*words):
        exposure.restrict(nodes)
    with refused("node 3"):
        exposure.restrict([6, 2]).restrict([2, 3])


@pytest.mark.parametrize(("index", "number"), [(0, 0), (1, 1), (-1, 1), (-2, 0), (np.int64(1), 1)])
def test_members_are_counted_as_python_counts(index: int, number: int, exposure: Exposure) -> None:
    alone = exposure.member(index)
    assert alone.num_members == 1
    for name in ("frozen_logits", "coefficients", "fixed_logits"):
        assert torch.equal(getattr(alone, name)[0], getattr(exposure, name)[number])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_residual_is_relative_to_what_moved(dtype):
    """Logits that reweighting leaves where they are make no difference smaller."""
    frozen = torch.ones(4, 3, dtype=torch.float64)
    expected = frozen + 0.5
    assert relative_gap(expected + 0.1, expected, frozen, dtype) == pytest.approx(0.2)
