"""Each clause of the check, broken alone; a solution as a sequence, its sentences and files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.oracle import Solution, certificate, fallback, lps, solve
from gnn_repair.oracle.problems import FAILED, OPTIMAL, UNCERTIFIED
from gnn_repair.oracle.solution import KIND
from gnn_repair.published import REACHABLE
from tests.campaigns.lp_families import draw
from tests.helpers.oracle.oracle_cases import exposure_of, members, random_node

# Each clause of the check, broken alone.

ERRORS = ("mass", "negative", "mixture", "margin", "bound", "gap")
COUNTS = ("undecided", "misplaced", "oversized", "uncertified", "failed")


def only(verdict, clause, size=None):
    """That ``clause`` is the only one that fails, by ``size``."""
    assert not verdict.ok and not verdict
    for name in ERRORS:
        value = getattr(verdict, name)
        if name == clause:
            assert value > verdict.tolerance
            assert size is None or value == pytest.approx(size, rel=1e-6)
        else:
            assert value <= verdict.tolerance, (name, value)
    for name in COUNTS:
        assert getattr(verdict, name) == (size or 1 if name == clause else 0), name


def edit(solution, name, place, value):
    array = getattr(solution, name).copy()
    array[place] = value
    return replace(solution, **{name: array})


def with_support(solution, terms, shares, groups=None, sources=None, **changes):
    """One LP with another support."""
    count = len(terms)
    return replace(
        solution,
        indptr=np.array([0, count]),
        terms=np.array(terms),
        coefficients=np.array(shares, float),
        groups=np.zeros(count, int) if groups is None else np.array(groups),
        sources=np.zeros(count, int) if sources is None else np.array(sources),
        **changes,
    )


def single(table, fixed=None, mass=2.0):
    """One node, one group; the oracle's answer for class 0."""
    table = np.array(table, float)
    fixed = np.zeros(table.shape[1]) if fixed is None else np.array(fixed, float)
    exposure = exposure_of([(fixed, [(np.full(len(table), mass / len(table)), table)])])
    solution = solve(exposure, torch.tensor([0]))
    assert solution.check(exposure).ok
    return exposure, solution


# Term 0 wins by (3, 2); terms 1 and 2 say nothing. γ = 2 · 2 against class 2.
PLAIN = [[3, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_mass_alone():
    exposure, solution = single(PLAIN)
    more = with_support(solution, [0, 1], [2.0, 0.002])
    only(more.check(exposure), "mass", 0.001)


def test_mass_of_every_group_and_member():
    """Group 1 of member 1 alone, whose masses are not those of member 0."""
    exposure, solution = members()
    chosen = np.flatnonzero(np.repeat(solution.member, np.diff(solution.indptr)) == 1)
    entry = int(chosen[solution.groups[chosen] == 1][0])
    verdict = edit(solution, "coefficients", entry, solution.coefficients[entry] * 1.5).check(
        exposure
    )
    owner = int(np.searchsorted(solution.indptr, entry, side="right") - 1)
    mass = exposure.mass[1, solution.recipient[owner], 1].item()
    assert verdict.mass == pytest.approx(solution.coefficients[entry] * 0.5 / mass)
    missing = replace(
        solution, coefficients=np.where(solution.groups == 1, 0.0, solution.coefficients)
    )
    assert missing.check(exposure).mass == pytest.approx(1.0)


def test_a_negative_coefficient_alone():
    exposure, solution = single(PLAIN)
    signed = with_support(solution, [0, 1, 2], [2.0, 0.5, -0.5])
    only(signed.check(exposure), "negative", 0.25)


def test_a_negative_weight_alone():
    """Two rivals that are the same: weight may move between them, but not below zero."""
    exposure, solution = single([[3, 1, 1], [0, 1, 1]])
    weights = np.array([[0.0, 1.25, -0.25]])
    only(replace(solution, rival_weights=weights).check(exposure), "negative", 0.25)
    assert replace(solution, rival_weights=np.array([[0.0, 0.25, 0.75]])).check(exposure).ok


def test_a_mixture_alone():
    """γ is zero, so that every multiple of w has the same bound."""
    exposure, solution = single([[1, 1, 0], [0, 0, 0]])
    assert solution.margin[0] == 0
    weights = np.array([[0.0, 1.25, 0.0]])
    only(replace(solution, rival_weights=weights).check(exposure), "mixture", 0.25)
    weights = np.array([[0.25, 0.75, 0.0]])
    only(replace(solution, rival_weights=weights).check(exposure), "mixture", 0.25)


def test_margin_and_bound_alone_and_at_their_own_scale():
    # The margin is 4 = 2 · (3 − 1), the sum of one number; so is the bound.
    for scale in (1e-200, 1e-9, 1.0, 1e200):
        exposure, solution = single(scale * np.array(PLAIN))
        for name, size in (("margin", 4.0), ("bound", 4.0 + 4.0)):
            value = getattr(solution, name)
            for change in (1e-6, -1e-6):
                only(edit(solution, name, 0, value[0] * (1 + change)).check(exposure), name,
                     4e-6 / size)  # fmt: skip
            for change in (0.2e-9, -0.2e-9):
                assert edit(solution, name, 0, value[0] * (1 + change)).check(exposure).ok


def test_a_message_that_is_not_used_has_no_part_in_the_scale():
    exposure, solution = single([[3, 0, 1], [-1e12, 0, 0], [0, 0, 1e12]])
    only(edit(solution, "margin", 0, 4 + 1e-6).check(exposure), "margin", 0.25e-6)
    only(edit(solution, "bound", 0, 4 - 1e-6).check(exposure), "bound", 0.125e-6)


def test_fixed_logits_are_part_of_the_scale():
    """Margin 4 = 2 · 3 − 2: made of 6 and 2; the bound likewise."""
    exposure, solution = single([[3, 0, -9], [0, 0, -9]], [0.0, 2, -9])
    assert solution.margin[0] == 4
    only(edit(solution, "margin", 0, 4 + 8e-6).check(exposure), "margin", 1e-6)
    only(edit(solution, "bound", 0, 4 + 8e-6).check(exposure), "bound", 0.5e-6)


def test_a_gap_alone():
    exposure, solution = single(PLAIN)
    worse = with_support(solution, [0, 1], [1.0, 1.0], margin=np.array([2.0]))
    only(worse.check(exposure), "gap", (4 - 2 - 4 * certificate.ROUNDING) / 2)
    # Under w on class 1 the bound is 6.
    other = replace(solution, rival_weights=np.array([[0.0, 1, 0]]), bound=np.array([6.0]))
    only(other.check(exposure), "gap", (6 - 4 - 6 * certificate.ROUNDING) / 4)


def test_a_gap_of_what_is_not_claimed_is_none():
    exposure, solution = single(PLAIN)
    worse = with_support(solution, [0, 1], [1.0, 1.0], margin=np.array([2.0]))
    open_ = replace(worse, status=np.array([UNCERTIFIED], np.int8))
    only(open_.check(exposure), "uncertified")
    # Its margin and its bound must hold all the same.
    assert open_.check(exposure).lps == 1
    assert edit(open_, "margin", 0, 3.0).check(exposure).margin == pytest.approx(0.5)


def test_an_undecided_lp_alone():
    exposure, solution = single([[1, 0, 0], [0, 0, 0]], [0.0, 1 - 1e-7, -9], mass=1.0)
    torn = replace(solution, margin=np.array([0.9999e-7]), bound=np.array([1.0001e-7]))
    only(torn.check(exposure), "undecided")
    for margin, bound in ((1.0001e-7, 1.0002e-7), (0.9998e-7, 0.9999e-7), (0.9999e-7, 1e-7)):
        fine = replace(solution, margin=np.array([margin]), bound=np.array([bound]))
        assert fine.check(exposure).undecided == 0
    open_ = replace(torn, status=np.array([UNCERTIFIED], np.int8))
    assert open_.check(exposure).undecided == 0


def test_failed_lps_are_counted_and_not_verified():
    exposure = drawn(5)
    solution = solve(exposure, torch.zeros(5, dtype=torch.long))
    status = solution.status.copy()
    status[[1, 3]] = FAILED
    broken = replace(
        solution, status=status, margin=np.where(status == FAILED, np.nan, solution.margin)
    )
    verdict = broken.check(exposure)
    only(verdict, "failed", 2)
    assert verdict.lps == 3
    nothing = replace(broken, status=np.full(5, FAILED, np.int8)).check(exposure)
    assert nothing.lps == 0 and nothing.failed == 5 and not nothing.ok


def twins():
    """Two nodes with the same two messages in each of two groups."""
    parts = [(np.ones(2), np.array([[3.0, 0, 1], [0, 0, 0]]))] * 2
    exposure = exposure_of([(np.zeros(3), parts)] * 2)
    solution = solve(exposure, torch.zeros(2, dtype=torch.long))
    assert solution.terms.tolist() == [0, 2, 4, 6] and solution.check(exposure).ok
    return exposure, solution


def test_misplaced_terms_alone():
    exposure, solution = twins()
    sources = exposure.sources.numpy()
    for place, term in ((0, 4), (2, 0), (3, 2), (1, 6)):
        moved = edit(edit(solution, "terms", place, term), "sources", place, sources[term])
        only(moved.check(exposure), "misplaced")
    # λ of group 0 under the name of group 1: the masses notice too.
    swapped = edit(edit(solution, "groups", 0, 1), "groups", 1, 0)
    assert swapped.check(exposure).misplaced == 1
    renamed = edit(solution, "sources", 1, 1 - solution.sources[1])
    only(renamed.check(exposure), "misplaced")


def test_a_term_that_stands_twice_is_misplaced():
    exposure, solution = single(PLAIN)
    only(with_support(solution, [0, 0], [1.0, 1.0]).check(exposure), "misplaced")
    both = exposure_of([(np.zeros(3), [(np.ones(2), np.array([[3.0, 0, 1]] * 2))])])
    found = solve(both, torch.tensor([0]))
    assert with_support(found, [0, 1], [1.0, 1.0]).check(both).ok
    only(with_support(found, [1, 0], [1.0, 1.0]).check(both), "misplaced")


def test_a_support_that_is_too_large_alone():
    """Five equal messages: any split among them is optimal, but only C + B − 2 = 2 are basic."""
    exposure, solution = single([[3, 0, 1]] * 5)
    for count, fine in ((1, True), (2, True), (3, False)):
        share = np.full(count, 2.0 / count)
        verdict = with_support(solution, list(range(count)), share).check(exposure)
        assert verdict.ok == fine
        if not fine:
            only(verdict, "oversized")
    # What is not active does not count.
    tiny = with_support(solution, [0, 1, 2], [2.0 - 1.8e-7, 0.9e-7, 0.9e-7])
    assert tiny.check(exposure).ok


def test_a_group_is_too_large_before_the_whole_is():
    """The other group's mass is below what is active, so that three terms fit C + B − 2."""
    table = np.array([[3.0, 0, 1]] * 3)
    exposure = exposure_of([(np.zeros(3), [(np.ones(3), table), (np.array([5e-8]), table[:1])])])
    solution = solve(exposure, torch.tensor([0]))
    assert solution.check(exposure).ok
    wide = with_support(solution, [0, 1, 2, 3], [1.0, 1, 1, 5e-8], groups=[0, 0, 0, 1])
    only(wide.check(exposure), "oversized")
    two = with_support(solution, [0, 1, 3], [1.5, 1.5, 5e-8], groups=[0, 0, 1])
    assert two.check(exposure).ok


@pytest.mark.parametrize("shared", [False, True])
def test_every_member_is_judged_by_its_own_numbers(shared):
    exposure, solution = members(shared)
    verdict = solution.check(exposure)
    assert verdict.ok and verdict.lps == 3 * 4 * 4
    for s in range(3):
        own = solution.member == s
        alone = solve(exposure.member(s), "all")
        np.testing.assert_array_equal(solution.margin[own], alone.margin)
    # The same answers under another member's name do not hold, whichever clause it is.
    foreign = replace(solution, member=(solution.member + 1) % 3).check(exposure)
    assert not foreign.ok
    assert foreign.mass < 1e-9 if shared else foreign.mass > 1e-3
    assert foreign.margin > 1e-3 and foreign.bound > 1e-3


def test_the_worst_of_all_portions_counts(monkeypatch):
    """LPs are looked at a few at a time; a fault in any portion is found, and counts add up."""
    exposure, solution = members()
    monkeypatch.setattr(certificate, "PORTION", 7)
    assert solution.check(exposure).ok and solution.check(exposure).lps == len(solution)
    for place in (0, 23, len(solution) - 1):
        size = 1.0 + abs(solution.margin[place])
        assert edit(solution, "margin", place, size * 9).check(exposure).margin > 0.1
    status = np.full(len(solution), UNCERTIFIED, np.int8)
    assert replace(solution, status=status).check(exposure).uncertified == len(solution)
    wrong = np.where(np.arange(len(solution.sources)) % 2, solution.sources, 1 + solution.sources)
    owners = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
    expected = len(np.unique(owners[::2]))
    assert replace(solution, sources=wrong).check(exposure).misplaced == expected


def test_tolerances_by_method():
    exposure, solution = single(PLAIN)
    near = edit(solution, "margin", 0, 4 + 4e-7)
    assert not near.check(exposure).ok and near.check(exposure).tolerance == 1e-9
    general = replace(near, method="highs")
    assert general.check(exposure).ok and general.check(exposure).tolerance == 1e-6
    assert not replace(edit(solution, "margin", 0, 4 + 8e-6), method="highs").check(exposure).ok


def test_the_smallest_floats_are_rounded_coarsely_and_that_is_no_fault():
    tiny = 5e-324
    exposure, solution = single(9 * tiny * np.array(PLAIN))
    assert edit(solution, "margin", 0, solution.margin[0] + 2 * tiny).check(exposure).ok
    only(edit(solution, "margin", 0, 1e-315).check(exposure), "margin")


def test_foreign_solutions_are_refused():
    exposure, solution = members()
    for name, value in (
        ("recipient", 4), ("recipient", -1), ("member", 3), ("member", -1), ("target", 4),
        ("target", -1), ("terms", exposure.num_terms), ("terms", -1), ("groups", 2),
        ("groups", -1), ("node", 3),
    ):  # fmt: skip
        with pytest.raises(InputError, match="does not belong to this exposure"):
            edit(solution, name, 0, value).check(exposure)
    with pytest.raises(InputError, match="does not belong to this exposure"):
        replace(solution, rival_weights=solution.rival_weights[:, :3]).check(exposure)
    assert solution[:0].check(exposure).ok and solution[:0].check(exposure).lps == 0


@pytest.mark.parametrize(("excess", "fine"), [(0.03, True), (0.06, False)])
def test_a_huge_best_term_excuses_its_rounding_and_no_more(excess, fine):
    """Under w = (½, ½) the second term scores 2 + excess / 2, a difference of numbers of 1e12."""
    exposure, solution = single([[2, 0, 0], [0, -1e12, 1e12 - 4 - excess]])
    claim = with_support(
        solution,
        [0],
        [2.0],
        margin=np.array([4.0]),
        bound=np.array([4.0 + excess]),
        rival_weights=np.array([[0.0, 0.5, 0.5]]),
    )
    verdict = claim.check(exposure)
    assert verdict.ok == fine
    if not fine:
        only(verdict, "gap")


def test_absent_groups_have_no_part():
    exposure = draw("absent groups", 9, 200)[0]
    assert int((exposure.segments.diff() == 0).sum()) > 20
    solution = solve(exposure, "all")
    assert solution.check(exposure).ok
    for place in (0, len(solution) // 2, len(solution) - 1):
        bound = solution.bound[place]
        worse = edit(solution, "bound", place, bound + 1 + abs(bound))
        assert worse.check(exposure).bound > 1e-3
    empty = (np.empty(0), np.empty((0, 3)))
    last = exposure_of([(np.zeros(3), [(np.ones(2), np.eye(3)[:2]), empty])])
    assert solve(last, "all").check(last).ok


# A solution as a sequence, its sentences, its dense form, and input that is refused.


def drawn(count):
    """So many nodes with three groups and six classes."""
    rng = np.random.default_rng(9)
    return exposure_of([random_node(rng, rng.integers(1, 40, 3).tolist(), 6) for _ in range(count)])


@pytest.fixture(scope="module")
def exposure():
    return drawn(6)


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


# Certificates, bad input, fallbacks, files and metrics.


@pytest.fixture(scope="module")
def exposure_solution():
    return drawn(12)


@pytest.fixture(scope="module")
def solution_solution(exposure_solution):
    return solve(exposure_solution, "all")


def test_a_single_class_is_refused():
    with pytest.raises(InputError, match="at least two classes"):
        exposure_of([(np.zeros(1), [(np.ones(1), np.ones((1, 1)))])])


def give_up_on(numbers):
    """Our solver with a few LPs marked as failed, and every LP of a second attempt."""
    real = lps._solve_chunk

    def chunk(tables, asked, room):
        piece = real(tables, asked, room)
        for k in numbers if len(asked) == 72 else range(len(asked)):
            piece.status[k] = FAILED
            piece.margin[k] = 1e9
        return piece

    return chunk


def test_highspy_takes_over_what_we_give_up_on(monkeypatch, exposure_solution, solution_solution):
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on([0, 5, 40]))
    again = solve(exposure_solution, "all")
    np.testing.assert_allclose(again.margin, solution_solution.margin, atol=1e-8)
    assert np.flatnonzero(again.status == 1).tolist() == [0, 5, 40] == list(again.reasons)
    assert set(again.reasons.values()) == {"highspy, with shortened columns"}
    assert again.check(exposure_solution).ok
    assert "3 fallback" in str(again)


def tired(_, problem, *__):
    return fallback.no_answer(problem, "too tired")


def test_where_highspy_fails_rational_arithmetic_takes_over(
    monkeypatch, exposure_solution, solution_solution
):
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on([5]))
    monkeypatch.setattr(fallback.Highs, "solve", tired)
    again = solve(exposure_solution, "all")
    assert again.reasons == {5: "rational arithmetic"} and again.status[5] == 1
    np.testing.assert_allclose(again.margin, solution_solution.margin, atol=1e-13)
    assert again.check(exposure_solution).ok


def test_where_all_fail_a_failure_is_a_status(monkeypatch, exposure_solution, solution_solution):
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on([5]))
    monkeypatch.setattr(fallback, "LIMIT", 3)
    monkeypatch.setattr(fallback.Highs, "solve", tired)
    again = solve(exposure_solution, "all")
    assert list(again.reasons) == [5] and "rational arithmetic" in again.reasons[5]
    assert np.isnan(again.margin[5]) and not again.reachable[5] and not again.decided[5]
    assert "no answer" in str(again[5])
    others = np.arange(len(again)) != 5
    np.testing.assert_array_equal(again.margin[others], solution_solution.margin[others])
    verdict = again.check(exposure_solution)
    assert verdict.failed == 1 and not verdict.ok and verdict.gap < 1e-9


@pytest.mark.parametrize("size", [1e3, 1e6])
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("times", [0.0, 0.5, 0.9, 1.1, 4.0])
def test_a_margin_within_its_rounding_of_the_threshold_decides_nothing(size, side, times):
    margin = REACHABLE + side * times * 2 * lps.BLUR * size  # each is off by a BLUR
    proof = fallback.Proof(margin, size, margin, size, margin)
    assert proof.meets(fallback.ACCEPT)
    told = proof.doubt(fallback.ACCEPT)
    assert ("both sides of the threshold" in told) == (times < 1) == bool(told)


def test_two_groups_are_too_large_together():
    """Two terms a group are basic, and three of both; four are more than C + B − 2 = 3."""
    part = np.ones(2), np.array([[3.0, 0, 1]] * 2)
    exposure = exposure_of([(np.zeros(3), [part, part])])
    solution = solve(exposure, torch.tensor([0]))
    three = with_support(solution, [0, 1, 2], [1.0, 1, 2], groups=[0, 0, 1])
    assert three.check(exposure).ok
    four = with_support(solution, [0, 1, 2, 3], [1.0] * 4, groups=[0, 0, 1, 1])
    only(four.check(exposure), "oversized")


@pytest.mark.parametrize("name", ["margin", "bound", "coefficients", "rival_weights"])
@pytest.mark.parametrize("table", [PLAIN, [[0, 1, 0], [0, 2, 0]]], ids=["can", "cannot"])
def test_what_is_no_number_certifies_nothing(name, table):
    exposure, solution = single(table)
    assert not edit(solution, name, 0, np.nan).check(exposure)


def test_a_part_of_a_solution_knows_of_no_nodes_without_a_label():
    nodes = [random_node(np.random.default_rng(k), [2], 3) for k in range(5)]
    solution = solve(exposure_of(nodes), torch.tensor([0, -1, 1, -1, 2]))
    assert solution.skipped == 2 and "2 without a label skipped" in str(solution)
    for part in (solution[:2], solution[1:]):
        assert part.skipped == 0 and "without a label" not in str(part)
    assert solution[::-1].skipped == 2


def test_messages_that_are_not_in_use_are_not_named():
    _, solution = single([[3, 0, 1]] * 2)
    tiny = with_support(solution, [0, 1], [2.0 - 1e-8, 1e-8], sources=[0, 1])
    assert tiny.key_messages() == ["node 0 (λ 2)"]
