"""A solution as a sequence, its sentences, its dense form, and input that is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.oracle import (
    Solution,
    solve,
)
from gnn_repair.oracle.problems import FAILED, OPTIMAL, UNCERTIFIED
from gnn_repair.oracle.solution import KIND
from tests.helpers.oracle.oracle_cases import exposure_of, families, random_node


@pytest.fixture(scope="module")
def exposure():
    return exposure_of(families(9)["three groups"][:6])


@pytest.fixture(scope="module")
def solution(exposure):
    found = solve(exposure, "all")
    return replace(found, reasons={3: "three", 30: "thirty"}, skipped=4)


def same(one, two):
    assert (one.node, one.target, one.margin, one.bound, one.reason) == (
        two.node, two.target, two.margin, two.bound, two.reason,
    )  # fmt: skip
    for name in ("terms", "coefficients", "sources", "groups", "rival_weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_indexes_count_from_both_ends(solution):
    count = len(solution)
    for i in range(count):
        same(solution[i], solution[i - count])
        same(solution[i], solution[np.int64(i)])
    # An LP's own margin is that of its own terms.
    last = solution[-1]
    part = slice(int(solution.indptr[-2]), None)
    np.testing.assert_array_equal(last.terms, solution.terms[part])
    assert last.margin == solution.margin[-1]
    assert len(list(solution)) == count and len(list(reversed(solution))) == count
    for wrong in (count, -count - 1, 10**30):
        with pytest.raises(IndexError, match="does not exist"):
            solution[wrong]


@pytest.mark.parametrize("wrong", [True, np.bool_(False), 1.5, "1", None, [0], np.array([0, 1])])
def test_what_is_no_index_is_refused(solution, wrong):
    with pytest.raises(InputError, match="must be a whole number"):
        solution[wrong]


@pytest.mark.parametrize(
    "cut",
    [
        slice(None), slice(2, 9), slice(3, 31, 9), slice(None, None, -1), slice(-5, None),
        slice(4, 4), slice(100, 200), slice(20, 2, -3),
    ],
)  # fmt: skip
def test_a_slice_is_a_solution_of_those_lps(exposure, solution, cut):
    part, chosen = solution[cut], range(len(solution))[cut]
    assert len(part) == len(chosen) == len(part.indptr) - 1
    for k, i in enumerate(chosen):
        same(part[k], solution[i])
    assert part.indptr[0] == 0 and part.indptr[-1] == len(part.terms)
    assert part.skipped == (4 if len(part) == len(solution) else 0)
    assert part.check(exposure).ok and part.check(exposure).lps == len(chosen)
    str(part)


def test_dense_is_admissible_and_the_last_target_counts(exposure, solution):
    lam = solution.dense(exposure)
    torch.testing.assert_close(exposure.masses(lam), exposure.mass)
    last = torch.full((6,), 5)
    torch.testing.assert_close(lam, solve(exposure, last).dense(exposure))
    few = solve(exposure, last, torch.tensor([2]))
    zero, frozen = few.dense(exposure, "zero"), few.dense(exposure)
    ends = exposure.segments[::3]
    assert float(zero[:, : ends[2]].abs().sum() + zero[:, ends[3] :].abs().sum()) == 0
    torch.testing.assert_close(frozen[:, : ends[2]], exposure.coefficients[:, : ends[2]])
    with pytest.raises(InputError, match='fill must be "frozen" or "zero"'):
        few.dense(exposure, "nothing")


@pytest.fixture(scope="module")
def pair():
    """Class 0 against 1 and 2: γ is 4, or −4."""
    table = np.array([[3.0, 0, 1], [0.0, 5, 5]])
    worse = np.array([[0.0, 1, 3], [0, 1, 2]])
    nodes = [(np.zeros(3), [(np.ones(2), table)]), (np.zeros(3), [(np.ones(2), worse)])]
    return solve(exposure_of(nodes), torch.zeros(2, dtype=torch.long))


def claimed(pair, place, margin, bound, status=OPTIMAL):
    """What is said of one of two answers with other numbers."""
    numbers = {"margin": np.full(2, margin), "bound": np.full(2, bound)}
    reasons = {0: "why", 1: "why"}
    return str(replace(pair, **numbers, status=np.full(2, status), reasons=reasons)[place])


def test_sentences_say_what_is_proven(pair):
    good, bad = pair[0], pair[1]
    assert str(good) == "node 0, class 0 can win by 4 using node 0 (λ 2); no reweighting exceeds 4"
    assert str(bad) == (
        "node 1, class 0 cannot win: every reweighting loses by at least 4 to the rival mixture "
        "100.0 % class 2"
    )
    for margin in (5e-8, 0.0, -5e-8, 1e-7, -1e-7):
        text = claimed(pair, 0, margin, margin)
        assert text.startswith("node 0, class 0 ties at best: using node 0 (λ 2) its margin is")
        assert "cannot" not in text and "loses" not in text and "can win" not in text
    assert "can win by 1.1e-07" in claimed(pair, 0, 1.1e-7, 1.1e-7)
    assert "loses by at least 1.1e-07" in claimed(pair, 1, -1.1e-7, -1.1e-7)


def test_sentences_of_answers_that_are_not_certified(pair):
    open_ = claimed(pair, 0, -1.0, 2.0, UNCERTIFIED)
    assert open_ == (
        "node 0, class 0 may or may not win: its best margin lies between -1 and 2, "
        "not certified (why)"
    )
    wins = claimed(pair, 0, 1.0, 2.0, UNCERTIFIED)
    assert "can win by 1 using" in wins and "exceeds 2, not certified (why)" in wins
    loses = claimed(pair, 1, -9.0, -4.0, UNCERTIFIED)
    assert "loses by at least 4" in loses and "not certified" in loses
    below = claimed(pair, 1, -9.0, 0.0, UNCERTIFIED)
    assert "cannot win: its best margin lies between -9 and 0" in below
    failed = claimed(pair, 0, np.nan, np.nan, FAILED)
    assert failed == "node 0, class 0: no answer (why)"


def test_sentences_of_nodes_without_terms():
    empty = [(np.empty(0), np.empty((0, 3)))]
    nodes = [(np.array(beta), empty) for beta in ([1.0, 3, 2.5], [3.0, 3, 0], [4.0, 3, 0])]
    nodes.append(random_node(np.random.default_rng(0), [2], 3))
    found = solve(exposure_of(nodes), torch.zeros(4, dtype=torch.long))
    assert [str(answer) for answer in found][:3] == [
        "node 0, class 0 loses as it stands, by 2 to class 1; no message can be reweighted",
        "node 1, class 0 ties with class 1 as it stands; no message can be reweighted",
        "node 2, class 0 wins as it stands, by 1; no message can be reweighted",
    ]


def test_damaged_files_are_one_sentence(tmp_path, solution):
    path = tmp_path / "solution.safetensors"
    solution.save(path)
    header, tensors = load_tensors(path, KIND)

    def write(changes, **words):
        kept = {name: t for name, t in (tensors | changes).items() if t is not None}
        save_tensors(path, KIND, {**header, **words}, kept)

    for changes, text in (
        ({"margin": None}, "margin is missing"),
        ({"extra": torch.zeros(1)}, "extra is missing or no array"),
        ({"margin": tensors["margin"][1:]}, "margin has"),
        ({"terms": tensors["terms"][1:]}, "indptr must rise"),
        ({"indptr": tensors["indptr"].flip(0)}, "indptr must rise"),
        ({"status": tensors["status"] + 9}, "status holds numbers"),
    ):
        write(changes)
        with pytest.raises(FileFormatError, match=text):
            Solution.load(path)
    write({}, reasons=["x"])
    with pytest.raises(FileFormatError, match="not a set of named values"):
        Solution.load(path)
    write({})
    assert Solution.load(path).reasons == {3: "three", 30: "thirty"}


Y = torch.arange(6)


def test_lists_and_arrays_are_accepted(exposure):
    plain = solve(exposure, Y, torch.tensor([1, 4]))
    for target in (Y.tolist(), Y.numpy(), Y.int(), Y.to(torch.uint8)):
        for nodes in ([1, 4], np.array([1, 4]), (1, 4)):
            np.testing.assert_array_equal(solve(exposure, target, nodes).margin, plain.margin)
