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


def support(terms, shares, groups=None, **arrays):
    """What changes where the first answer has another support."""
    zeros, count = np.zeros(len(terms), int), np.array([0, len(terms)])
    return arrays | {
        "indptr": count, "terms": np.array(terms), "coefficients": np.array(shares, float),
        "groups": zeros if groups is None else np.array(groups), "sources": zeros,
    }  # fmt: skip


def stated(weights=None, **numbers):
    """What changes where the first answer states other numbers."""
    arrays = {name: np.array([number]) for name, number in numbers.items()}
    return arrays if weights is None else arrays | {"rival_weights": np.array([weights], float)}


def single(table, fixed=None, mass=2.0):
    """One node, one group; the oracle's answer for class 0."""
    table = np.array(table, float)
    fixed = np.zeros(table.shape[1]) if fixed is None else np.array(fixed, float)
    exposure = exposure_of([(fixed, [(np.full(len(table), mass / len(table)), table)])])
    solution = solve(exposure, torch.tensor([0]))
    assert solution.check(exposure).ok
    return exposure, solution


PLAIN = ([[3, 0, 1], [0, 0, 0], [0, 0, 0]],)
"""Term 0 wins by (3, 2); terms 1 and 2 say nothing. γ = 2 · 2 against class 2: the margin is the
sum of one number, and so is the bound."""
LIKE = ([[3, 1, 1], [0, 1, 1]],)
"""Two rivals that are the same: weight may move between them."""
ZERO = ([[1, 1, 0], [0, 0, 0]],)
"""γ is zero, so that every multiple of w has the same bound."""
BESIDE = ([[3, 0, 1], [-1e12, 0, 0], [0, 0, 1e12]],)
"""Messages that are not used have no part in the scale."""
FIXED = ([[3, 0, -9], [0, 0, -9]], [0.0, 2, -9])
"""Margin 4 = 2 · 3 − 2: made of 6 and 2; the bound likewise."""
FIVE = ([[3, 0, 1]] * 5,)
"""Any split among them is optimal, but only C + B − 2 = 2 are basic."""
EDGE = ([[1, 0, 0], [0, 0, 0]], [0.0, 1 - 1e-7, -9], 1.0)
UNSURE = np.int8(UNCERTIFIED)
ALONE = {
    "a mass": (PLAIN, support([0, 1], [2.0, 0.002]), "mass", 0.001),
    "too little mass": (ZERO, support([0], [1.998]), "mass", 0.001),
    "a negative coefficient": (PLAIN, support([0, 1, 2], [2, 0.5, -0.5]), "negative", 0.25),
    "a negative weight": (LIKE, stated([0, 1.25, -0.25]), "negative", 0.25),
    "another weight": (LIKE, stated([0, 0.25, 0.75]), "", None),
    "weights of more than one": (ZERO, stated([0, 1.25, 0]), "mixture", 0.25),
    "a weight at the target": (ZERO, stated([0.25, 0.75, 0]), "mixture", 0.25),
    "a margin beside huge ones": (BESIDE, stated(margin=4 + 1e-6), "margin", 0.25e-6),
    "a bound beside huge ones": (BESIDE, stated(bound=4 - 1e-6), "bound", 0.125e-6),
    "a margin with fixed logits": (FIXED, stated(margin=4 + 8e-6), "margin", 1e-6),
    "a bound with fixed logits": (FIXED, stated(bound=4 + 8e-6), "bound", 0.5e-6),
    "a gap below": (
        PLAIN, support([0, 1], [1, 1]) | stated(margin=2.0), "gap",
        (4 - 2 - 4 * certificate.ROUNDING) / 2,
    ),
    "a gap above": (
        PLAIN, stated([0, 1, 0], bound=6.0), "gap", (6 - 4 - 6 * certificate.ROUNDING) / 4
    ),
    "a gap that is not claimed to be none": (
        PLAIN, support([0, 1], [1, 1]) | stated(margin=2.0, status=UNSURE), "uncertified", None
    ),
    "an LP on both sides": (EDGE, stated(margin=0.9999e-7, bound=1.0001e-7), "undecided", None),
    "an LP above": (EDGE, stated(margin=1.0001e-7, bound=1.0002e-7), "", None),
    "an LP below": (EDGE, stated(margin=0.9998e-7, bound=0.9999e-7), "", None),
    "an LP at the threshold": (EDGE, stated(margin=0.9999e-7, bound=1e-7), "", None),
    "a term twice": (PLAIN, support([0, 0], [1, 1]), "misplaced", None),
    "terms out of order": (FIVE, support([1, 0], [1, 1], sources=[0, 0]), "misplaced", None),
    "two basic terms": (FIVE, support([0, 1], [1, 1]), "", None),
    "three terms of two": (FIVE, support([0, 1, 2], [2 / 3] * 3), "oversized", None),
    "what is not active": (FIVE, support([0, 1, 2], [2 - 1.8e-7, 0.9e-7, 0.9e-7]), "", None),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_clause_alone(name):
    case, changes, clause, size = ALONE[name]
    exposure, solution = single(*case)
    found = replace(solution, **changes).check(exposure)
    if clause:
        only(found, clause, size)
    else:
        assert found.ok and found.lps == 1


@pytest.mark.parametrize("name", ["margin", "bound", "coefficients", "rival_weights"])
@pytest.mark.parametrize("table", [*PLAIN, [[0, 1, 0], [0, 2, 0]]], ids=["can", "cannot"])
def test_what_is_no_number_certifies_nothing(name, table):
    exposure, solution = single(table)
    assert not edit(solution, name, 0, np.nan).check(exposure)


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1.0, 1e200])
def test_margin_and_bound_at_their_own_scale(scale):
    exposure, solution = single(scale * np.array(PLAIN[0]))
    for name, size in (("margin", 4.0), ("bound", 4.0 + 4.0)):
        value = getattr(solution, name)
        for change in (1e-6, -1e-6):
            other = edit(solution, name, 0, value[0] * (1 + change)).check(exposure)
            only(other, name, 4e-6 / size)
        for change in (0.2e-9, -0.2e-9):
            assert edit(solution, name, 0, value[0] * (1 + change)).check(exposure).ok


def test_the_smallest_floats_are_rounded_coarsely_and_that_is_no_fault():
    tiny = 5e-324
    exposure, solution = single(9 * tiny * np.array(PLAIN[0]))
    assert edit(solution, "margin", 0, solution.margin[0] + 2 * tiny).check(exposure).ok
    only(edit(solution, "margin", 0, 1e-315).check(exposure), "margin")


@pytest.mark.parametrize(("excess", "fine"), [(0.03, True), (0.06, False)])
def test_a_huge_best_term_excuses_its_rounding_and_no_more(excess, fine):
    """Under w = (½, ½) the second term scores 2 + excess / 2, a difference of numbers of 1e12."""
    exposure, solution = single([[2, 0, 0], [0, -1e12, 1e12 - 4 - excess]])
    numbers = stated([0, 0.5, 0.5], margin=4.0, bound=4.0 + excess)
    verdict = replace(solution, **support([0], [2]), **numbers).check(exposure)
    assert verdict.ok == fine
    if not fine:
        only(verdict, "gap")


def test_tolerances_by_method():
    exposure, solution = single(*PLAIN)
    near, far = (edit(solution, "margin", 0, 4 + x) for x in (4e-7, 8e-6))
    assert not near.check(exposure).ok and near.check(exposure).tolerance == 1e-9
    general = replace(near, method="highs").check(exposure)
    assert general.ok and general.tolerance == 1e-6
    assert not replace(far, method="highs").check(exposure).ok


def test_failed_lps_are_counted_and_not_verified():
    exposure = drawn(5)
    solution = solve(exposure, torch.zeros(5, dtype=torch.long))
    status, margin = solution.status.copy(), solution.margin.copy()
    status[[1, 3]], margin[[1, 3]] = FAILED, np.nan
    verdict = replace(solution, status=status, margin=margin).check(exposure)
    only(verdict, "failed", 2)
    assert verdict.lps == 3
    nothing = replace(solution, status=np.full(5, FAILED, np.int8)).check(exposure)
    assert nothing.lps == 0 and nothing.failed == 5 and not nothing.ok


def test_misplaced_terms_alone():
    """Two nodes with the same two messages in each of two groups."""
    parts = [(np.ones(2), np.array([[3.0, 0, 1], [0, 0, 0]]))] * 2
    exposure = exposure_of([(np.zeros(3), parts)] * 2)
    solution, sources = solve(exposure, torch.zeros(2, dtype=torch.long)), exposure.sources.numpy()
    assert solution.terms.tolist() == [0, 2, 4, 6] and solution.check(exposure).ok
    for place, term in ((0, 4), (2, 0), (3, 2), (1, 6)):
        moved = edit(edit(solution, "terms", place, term), "sources", place, sources[term])
        only(moved.check(exposure), "misplaced")
    # λ of group 0 under the name of group 1: the masses notice too.
    swapped = edit(edit(solution, "groups", 0, 1), "groups", 1, 0)
    assert swapped.check(exposure).misplaced == 1
    renamed = edit(solution, "sources", 1, 1 - solution.sources[1])
    only(renamed.check(exposure), "misplaced")


@pytest.mark.parametrize(
    ("mass", "shares", "fine"),
    [
        # Two terms a group are basic, and three of both; four are more than C + B − 2 = 3.
        (2.0, [1, 1, 0, 2, 0, 0], True),
        (2.0, [1, 1, 0, 1, 1, 0], False),
        # The other group's mass is below what is active, so that three terms fit C + B − 2.
        (5e-8, [1, 1, 0, 5e-8, 0, 0], True),
        (5e-8, [2 / 3, 2 / 3, 2 / 3, 5e-8, 0, 0], False),
    ],
)
def test_a_group_and_all_groups_may_be_too_large(mass, shares, fine):
    table, terms = np.array([[3.0, 0, 1]] * 3), np.flatnonzero(shares)
    parts = [(np.full(3, m / 3), table) for m in (2.0, mass)]
    exposure = exposure_of([(np.zeros(3), parts)])
    solution = solve(exposure, torch.tensor([0]))
    assert solution.check(exposure).ok
    claim = support(terms, np.array(shares)[terms], terms // 3)
    verdict = replace(solution, **claim).check(exposure)
    assert verdict.ok == fine
    if not fine:
        only(verdict, "oversized")


@pytest.mark.parametrize("shared", [False, True])
def test_every_member_is_judged_by_its_own_numbers(shared):
    exposure, solution = members(shared)
    verdict = solution.check(exposure)
    assert verdict.ok and verdict.lps == 3 * 4 * 4
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


def test_indexes_count_from_both_ends(solution):
    """Slices are a law (test_value_laws.py); here is what one place is, and what is none."""
    count = len(solution)
    for i in range(count):
        for other in (i - count, np.int64(i)):
            assert str(solution[i]) == str(solution[other])
            np.testing.assert_array_equal(solution[i].terms, solution[other].terms)
    last = solution[-1]
    np.testing.assert_array_equal(last.terms, solution.terms[int(solution.indptr[-2]) :])
    assert last.margin == solution.margin[-1] and solution[30].reason == "thirty"
    assert len(list(solution)) == count and len(list(reversed(solution))) == count
    for wrong in (count, -count - 1, 10**30):
        with pytest.raises(IndexError):
            solution[wrong]
    for wrong in (True, np.bool_(False), 1.5, "1", None, [0], np.array([0, 1])):
        with pytest.raises(InputError, match="whole number"):
            solution[wrong]


def test_parts_keep_their_reasons_and_know_of_no_nodes_without_a_label(solution):
    assert solution[2:5].reasons == {1: "three"} and solution[::-1].reasons[32] == "three"
    joined = Solution.concatenate([solution[:20], solution[20:]])
    assert joined.reasons == solution.reasons
    assert solution[:2].skipped == 0 and solution[::-1].skipped == 4


def test_dense_is_admissible_and_the_last_target_counts(exposure, solution):
    lam = solution.dense(exposure)
    torch.testing.assert_close(exposure.masses(lam), exposure.mass)
    last = torch.full((6,), 5)
    torch.testing.assert_close(lam, solve(exposure, last).dense(exposure))
    margins = exposure.margins(last, lam)[0]
    np.testing.assert_allclose(margins, solution.margin[5::6], atol=1e-12)
    few = solve(exposure, last, torch.tensor([2]))
    zero, frozen = few.dense(exposure, "zero"), few.dense(exposure)
    ends = exposure.segments[::3]
    assert float(zero[:, : ends[2]].abs().sum() + zero[:, ends[3] :].abs().sum()) == 0
    torch.testing.assert_close(frozen[:, : ends[2]], exposure.coefficients[:, : ends[2]])
    # What has no answer keeps what it had, whatever was asked of the node before.
    none = np.zeros(0, int)
    arrays = dict.fromkeys(("terms", "sources", "groups"), none) | {"coefficients": np.zeros(0)}
    status = np.array([FAILED], np.int8)
    failed = replace(few, indptr=np.array([0, 0]), status=status, **arrays)
    torch.testing.assert_close(failed.dense(exposure), exposure.coefficients)
    with pytest.raises(InputError, match='"frozen" or "zero"'):
        few.dense(exposure, "nothing")


@pytest.fixture(scope="module")
def pair():
    """Class 0 against 1 and 2: γ is 4, or −4."""
    table = np.array([[3.0, 0, 1], [0.0, 5, 5]])
    worse = np.array([[0.0, 1, 3], [0, 1, 2]])
    nodes = [(np.zeros(3), [(np.ones(2), table)]), (np.zeros(3), [(np.ones(2), worse)])]
    return solve(exposure_of(nodes), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("place", "margin", "bound", "status", "parts"),
    [
        (0, 4.0, 4.0, OPTIMAL, "can win by 4 using node 0 (λ 2)|exceeds 4"),
        (1, -4.0, -4.0, OPTIMAL, "cannot win|loses by at least 4 to|100.0 % class 2"),
        (0, 1.1e-7, 1.1e-7, OPTIMAL, "can win by 1.1e-07"),
        (1, -1.1e-7, -1.1e-7, OPTIMAL, "loses by at least 1.1e-07"),
        (0, 1e-7, 1e-7, OPTIMAL, "ties at best: using node 0 (λ 2) its margin is 1e-07"),
        (0, 0.0, 0.0, OPTIMAL, "ties at best"),
        (0, -1e-7, -1e-7, OPTIMAL, "ties at best"),
        (0, -1.0, 2.0, UNCERTIFIED, "may or may not win|between -1 and 2|not certified (why)"),
        (0, 1.0, 2.0, UNCERTIFIED, "can win by 1 using|exceeds 2, not certified (why)"),
        (1, -9.0, -4.0, UNCERTIFIED, "cannot win|loses by at least 4|not certified"),
        (1, -9.0, 0.0, UNCERTIFIED, "cannot win: its best margin lies between -9 and 0"),
        (0, np.nan, np.nan, FAILED, "node 0, class 0: no answer (why)"),
    ],
)
def test_sentences_say_what_is_proven(pair, place, margin, bound, status, parts):
    numbers = {"margin": np.full(2, margin), "bound": np.full(2, bound)}
    reasons = {0: "why", 1: "why"}
    said = str(replace(pair, **numbers, status=np.full(2, status), reasons=reasons)[place])
    assert said.startswith(f"node {place}, class 0")
    assert all(part in said for part in parts.split("|")), said
    if "ties" in parts:
        assert "cannot" not in said and "loses" not in said and "can win" not in said


def test_sentences_of_nodes_without_terms():
    empty = [(np.empty(0), np.empty((0, 3)))]
    nodes = [(np.array(beta), empty) for beta in ([1.0, 3, 2.5], [3.0, 3, 0], [4.0, 3, 0])]
    nodes.append(random_node(np.random.default_rng(0), [2], 3))
    found = solve(exposure_of(nodes), torch.zeros(4, dtype=torch.long))
    for answer, said in zip(
        found, ("loses|by 2 to class 1", "ties with class 1", "wins|by 1;"), strict=False
    ):
        assert all(part in str(answer) for part in (*said.split("|"), "as it stands"))


def test_the_largest_senders_are_named_and_the_rest_are_counted():
    _, solution = single([[3, 0, 1]] * 9)
    shares = np.array([0.1, 0.5, 0.3, 1e-8, 0.2, 0.4, 0.25, 0.15, 0.1])
    many = replace(solution, **support(range(9), shares) | {"sources": np.arange(9) % 8})
    (said,) = many.key_messages()  # node 0 has two terms, node 3 is not in use
    named = [(1, 0.5), (5, 0.4), (2, 0.3), (6, 0.25), (0, 0.2)]
    assert said == ", ".join(f"node {v} (λ {x:g})" for v, x in named) + " and 2 more"


def test_damaged_files_are_one_sentence(tmp_path, solution):
    path = tmp_path / "solution.safetensors"
    solution.save(path)
    header, tensors = load_tensors(path, KIND)

    def write(changes, **words):
        kept = {name: t for name, t in (tensors | changes).items() if t is not None}
        save_tensors(path, KIND, {**header, **words}, kept)

    for changes, text in (
        ({"margin": None}, "margin"),
        ({"extra": torch.zeros(1)}, "extra"),
        ({"margin": tensors["margin"][1:]}, "margin"),
        ({"terms": tensors["terms"][1:]}, "indptr"),
        ({"terms": tensors["terms"].flip(0)}, "terms"),
        ({"indptr": tensors["indptr"].flip(0)}, "indptr"),
        ({"status": tensors["status"] + 9}, "status"),
    ):
        write(changes)
        with pytest.raises(FileFormatError, match=text):
            Solution.load(path)
    write({}, reasons=["x"])
    with pytest.raises(FileFormatError, match="reasons"):
        Solution.load(path)
    write({})
    assert Solution.load(path).reasons == {3: "three", 30: "thirty"}


# Where our own method gives up.


def give_up_on(numbers, count):
    """Our solver with a few LPs marked as failed, and every LP of a second attempt."""
    real = lps._solve_chunk

    def chunk(tables, asked, room):
        piece = real(tables, asked, room)
        for k in numbers if len(asked) == count else range(len(asked)):
            piece.status[k] = FAILED
            piece.margin[k] = 1e9
        return piece

    return chunk


@pytest.mark.parametrize("who", ["highspy", "rational arithmetic", "nobody"])
def test_others_take_over_what_we_give_up_on(who, monkeypatch, exposure):
    known, left = solve(exposure, "all"), [0, 5, 30]
    monkeypatch.setattr(lps, "_solve_chunk", give_up_on(left, len(known)))
    if who != "highspy":
        tired = fallback.no_answer
        monkeypatch.setattr(fallback.Highs, "solve", lambda _, p, *__: tired(p, "too tired"))
    if who == "nobody":
        monkeypatch.setattr(fallback, "LIMIT", 3)
    again = solve(exposure, "all")
    verdict, others = again.check(exposure), ~np.isin(np.arange(len(known)), left)
    assert list(again.reasons) == left
    np.testing.assert_array_equal(again.margin[others], known.margin[others])
    if who == "nobody":
        assert np.isnan(again.margin[left]).all() and not again.decided[left].any()
        assert not again.reachable[left].any() and "no answer" in str(again[5])
        assert verdict.failed == 3 and not verdict.ok and verdict.gap < 1e-9
        assert "rational arithmetic" in again.reasons[5] and "3 failed" in str(again)
        return
    np.testing.assert_allclose(again.margin, known.margin, atol=1e-8)
    assert (again.status[left] == 1).all() and verdict.ok and "3 fallback" in str(again)
    assert all(who in reason for reason in again.reasons.values())


@pytest.mark.parametrize("size", [1e3, 1e6])
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("times", [0.0, 0.5, 0.9, 1.1, 4.0])
def test_a_margin_within_its_rounding_of_the_threshold_decides_nothing(size, side, times):
    margin = REACHABLE + side * times * 2 * lps.BLUR * size  # each is off by a BLUR
    proof = fallback.Proof(margin, size, margin, size, margin)
    assert proof.meets(fallback.ACCEPT)
    told = proof.doubt(fallback.ACCEPT)
    assert ("both sides of the threshold" in told) == (times < 1) == bool(told)
