"""The value itself: what it accepts, what follows from it, how it is cut and travels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.exposure.parts import focus
from gnn_repair.kernels import cpu
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.models.convolutions import CASES, Net, graph
from tests.helpers.models.planted import CLASSES, GROUPS, MEMBERS, NODES, matrices, pieces
from tests.helpers.report.report_worlds import make_exposure

# The value itself: what it accepts, what follows from it, how it travels.


@pytest.fixture
def exposure() -> Exposure:
    return Exposure(**pieces())


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


# What an exposure's methods accept: anything of the right size, and a sentence otherwise.


TERMS = int((matrices()[0] != 0).sum())


@pytest.mark.parametrize("method", ["logits", "masses", "margins"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: torch.ones(1, 3), rf"shape \[1, 3\] instead of \[1 or 2, {TERMS}\]"),
        (lambda: torch.ones(1, TERMS + 1), r"instead of \[1 or 2"),
        (lambda: torch.ones(3, TERMS), r"shape \[3, \d+\] instead of"),
        (lambda: torch.ones(TERMS, 1), "instead of"),
        (lambda: torch.ones(1, 1, TERMS), "instead of"),
        (lambda: torch.ones(()), r"shape \[\] instead of"),
        (lambda: torch.full((1, TERMS), torch.nan), "coefficients holds NaN or infinite"),
        (lambda: torch.full((1, TERMS), torch.inf), "coefficients holds NaN or infinite"),
        (lambda: torch.ones(1, TERMS, dtype=torch.long), r"holds torch.int64; convert it"),
        (lambda: torch.ones(1, TERMS, device="meta"), "is on meta and the exposure on cpu"),
        (lambda: [1.0] * TERMS, "coefficients is a list; pass a tensor"),
    ],
)
def test_coefficients_of_another_size(
    method: str, given: Any, message: str, exposure: Exposure
) -> None:
    before = [torch.zeros(NODES, dtype=torch.long)] if method == "margins" else []
    with pytest.raises(InputError, match=message):
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
    ("target", "message"),
    [
        (torch.zeros(5, dtype=torch.long), r"target has shape \[5\] instead of \[7\]"),
        (torch.zeros(NODES, 1, dtype=torch.long), r"target has shape \[7, 1\]"),
        (torch.zeros(NODES), "target holds torch.float32; pass class numbers"),
        (torch.full((NODES,), CLASSES), f"target is {CLASSES} at node 0; classes are 0 to 2"),
        (torch.tensor([0, 0, 0, -2, 0, 0, 0]), "target is -2 at node 3"),
        ("mine", "target is a str; pass a class for every node"),
        (None, "target is a NoneType"),
    ],
)
def test_targets_of_another_kind(target: Any, message: str, exposure: Exposure) -> None:
    with pytest.raises(InputError, match=message):
        exposure.margins(target)


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
    ("nodes", "message"),
    [
        ([1.5], "nodes holds torch.float32; pass node numbers or a boolean mask"),
        ([-1], "node -1 does not exist; nodes are 0 to 6"),
        ([0, 7], "node 7 does not exist; nodes are 0 to 6"),
        (torch.ones(NODES, 2, dtype=torch.bool), r"nodes has shape \[7, 2\]; pass one mask \[N\]"),
        (torch.ones(5, dtype=torch.bool), "the mask has 5 entries for 7 nodes"),
        (torch.tensor(True), r"nodes has shape \[\]"),
        ("all", "nodes is a str; pass a mask"),
        (None, "nodes is a NoneType"),
        ([[1], [2, 3]], "nodes is a list"),
        ([1j], "nodes holds torch.complex64"),
    ],
)
def test_nodes_that_are_none(nodes: Any, message: str, exposure: Exposure) -> None:
    with pytest.raises(InputError, match=message):
        exposure.restrict(nodes)


def test_a_restricted_exposure_knows_its_own_recipients(exposure: Exposure) -> None:
    part = exposure.restrict([6, 2])
    with pytest.raises(InputError, match="node 3 is not among the recipients"):
        part.restrict([2, 3])
    generator = torch.Generator().manual_seed(5)
    given = torch.rand(MEMBERS, part.num_terms, generator=generator, dtype=torch.float64)
    places = torch.repeat_interleave(torch.arange(2 * GROUPS), part.segments.diff())
    for slot, node in enumerate((6, 2)):
        expected = exposure.fixed_logits[:, node].clone()
        for term in (places // GROUPS == slot).nonzero().view(-1).tolist():
            row = int(part.rows[term])
            expected += given[:, term : term + 1] * exposure.contributions[:, row]
        torch.testing.assert_close(part.logits(given)[:, slot], expected)


@pytest.mark.parametrize(("index", "number"), [(0, 0), (1, 1), (-1, 1), (-2, 0), (np.int64(1), 1)])
def test_members_are_counted_as_python_counts(index: int, number: int, exposure: Exposure) -> None:
    alone = exposure.member(index)
    assert alone.num_members == 1
    torch.testing.assert_close(alone.logits()[0], exposure.frozen_logits[number])
    torch.testing.assert_close(alone.coefficients[0], exposure.coefficients[number])
    torch.testing.assert_close(alone.fixed_logits[0], exposure.fixed_logits[number])


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("contributions", Tensor.float, r"contributions holds torch.float32 instead of float64"),
        ("fixed_logits", Tensor.float, r"fixed_logits holds torch.float32 instead of float64"),
        ("frozen_logits", Tensor.float, "frozen_logits holds torch.float32"),
        ("coefficients", Tensor.long, "coefficients holds torch.int64"),
        ("rows", Tensor.long, r"rows holds torch.int64 instead of int32; convert it with"),
        ("segments", Tensor.int, "segments holds torch.int32 instead of int64"),
        ("contributions", lambda t: t[0], r"contributions has shape \[14, 3\]; it needs 3 axes"),
        ("coefficients", lambda t: t[0], r"coefficients has shape \[\d+\]; it needs 2 axes"),
        ("rows", Tensor.tolist, "rows is a list, not a tensor"),
        ("state", lambda t: t.to("meta"), "state is on meta and recipients on cpu"),
        ("groups", list, "groups must be a tuple of Group"),
        ("groups", lambda g: ("a", "b"), "groups must be a tuple of Group"),
    ],
)
def test_pieces_of_another_kind(name: str, how: Any, message: str) -> None:
    values = pieces()
    with pytest.raises(InputError, match=message):
        Exposure(**{**values, name: how(values[name])})


def test_the_reconstruction_is_relative_to_the_logit_where_that_is_large() -> None:
    """1e-5 of max(1, |z⁰|): pinned from both sides, at a small and at a large logit."""
    for size in (1.0, 1e3):
        for factor, accepted in ((0.9e-5, True), (1.1e-5, False)):
            values = pieces()
            frozen, fixed = values["frozen_logits"].clone(), values["fixed_logits"].clone()
            shift = size - frozen[1, 3, 2]
            frozen[1, 3, 2] += shift
            fixed[1, 3, 2] += shift + factor * size
            values = {**values, "frozen_logits": frozen, "fixed_logits": fixed}
            if accepted:
                assert Exposure(**values).num_members == MEMBERS
                continue
            with pytest.raises(InputError, match=r"differs from the frozen logits by 1.1e-05"):
                Exposure(**values)


# A part of an exposure that keeps nothing of the rest says the same about its recipients.


def test_a_term_that_nobody_sent_stays_nobodys() -> None:
    exposure, _ = make_exposure(nodes=20)
    sources = exposure.sources.clone()
    sources[5] = -1
    part = focus(replace(exposure, sources=sources), torch.tensor([2, 4])).exposure
    assert int((part.sources < 0).sum()) == 1  # node 2 has a term from every row


def test_a_repair_learns_the_same_from_the_part(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    exposure, y = make_exposure(nodes=300, groups=2, members=2)
    train, val = torch.zeros(2, 300, 2, dtype=torch.bool)
    train[:40, 0], train[20:60, 1], val[60:80] = True, True, True
    budget = Budget(epochs=6, patience=None, learning_rate=0.01, weight_decay=0.0)
    for kind in (gr.SetTranslation, gr.Reweighting):
        repair = kind(budget, dropout=0.0)
        before = repair.fit(exposure, y, train, val)
        monkeypatch.setattr("gnn_repair.repair.targets.LARGE", 0)
        seen = []
        monkeypatch.setattr(
            "gnn_repair.repair.base.RepairInputs",
            lambda exposure, given=RepairInputs, seen=seen: (
                seen.append(exposure.num_recipients) or given(exposure)
            ),
        )
        after = repair.fit(exposure, y, train, val)
        monkeypatch.undo()
        assert seen == [80]
        torch.testing.assert_close(
            after.member_logits(exposure), before.member_logits(exposure), rtol=1e-4, atol=1e-5
        )
        assert not torch.equal(before.member_logits(exposure), exposure.frozen_logits)


def test_shifts_of_many_recipients_are_worked_out_in_parts(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    exposure, y = make_exposure(nodes=200, groups=2, members=2)
    mask = torch.arange(200) < 80
    budget = Budget(epochs=4, patience=None, learning_rate=0.05, weight_decay=0.0)
    for repair in (gr.SetTranslation(budget), gr.NodeTranslation(budget)):
        fitted = repair.fit(exposure, y, mask, ~mask)
        whole = fitted.shift(exposure)
        monkeypatch.setattr("gnn_repair.repair.adapters.RECIPIENTS", 7)
        torch.testing.assert_close(fitted.shift(exposure), whole)
        monkeypatch.undo()
        assert float(whole.abs().max()) > 0.01
