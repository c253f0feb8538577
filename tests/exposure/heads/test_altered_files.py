"""Altered files of tailed exposures: refused in one sentence, or sound."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnn_repair.exposure import Exposure
from tests.campaigns import file_mutations
from tests.campaigns.file_subjects import Subject, judge_exposure
from tests.helpers.models.gallery import exposed

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
