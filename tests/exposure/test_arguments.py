"""What an exposure's methods accept: anything of the right size, and a sentence otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from tests.helpers.models.planted import CLASSES, GROUPS, MEMBERS, NODES, matrices, pieces, tables


@pytest.fixture
def exposure() -> Exposure:
    return Exposure(**pieces())


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


def test_masses_of_members_that_differ(exposure: Exposure) -> None:
    """Segment by segment in plain Python, for each member's own λ."""
    generator = torch.Generator().manual_seed(5)
    given = torch.rand(MEMBERS, TERMS, generator=generator, dtype=torch.float64)
    ends = exposure.segments.tolist()
    for member in range(MEMBERS):
        for node in range(NODES):
            for group in range(GROUPS):
                place = node * GROUPS + group
                part = given[member, ends[place] : ends[place + 1]].tolist()
                found = exposure.masses(given)[member, node, group]
                assert float(found) == pytest.approx(sum(part), abs=1e-14)


def test_margins_of_members_that_differ(exposure: Exposure) -> None:
    alpha, table = matrices(), tables()
    beta = exposure.frozen_logits - torch.einsum("sgvu,sguc->svc", alpha, table)
    scale = torch.tensor([2.0, 0.25], dtype=torch.float64)
    z = beta + torch.einsum("s,sgvu,sguc->svc", scale, alpha, table)
    target = torch.tensor([2, 2, 1, 0, 1, 0, 0])
    found = exposure.margins(target, exposure.coefficients * scale.view(-1, 1))
    for member in range(MEMBERS):
        for node in range(NODES):
            rivals = z[member, node].tolist()
            own = rivals.pop(int(target[node]))
            assert float(found[member, node]) == pytest.approx(own - max(rivals))


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
        (torch.ones(5, dtype=torch.bool), "the mask has 5 entries for the graph's 7 nodes"),
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


# Built by hand -----------------------------------------------------------------------------------


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


# In words ----------------------------------------------------------------------------------------


# The edges of what is accepted -------------------------------------------------------------------
