"""Nonlinear heads: certificates that were tampered with, sentences, files; trained models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

from benchmarks.head_solvers import compare_with_milp
from benchmarks.heads import head_exposure, trained
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.oracle import Rate, reach, solve
from gnn_repair.oracle.heads.proof import ProofCase, covers
from gnn_repair.oracle.problems import FIRST_STAGE
from gnn_repair.oracle.solution import KIND, Solution
from tests.helpers.oracle.head_cases import CLASSES, NODES, tailed
from tests.helpers.oracle.head_graph import MODELS, model_of, small_graph

# Certificates that were tampered with.


@pytest.fixture(scope="module")
def exposure():
    return tailed("relu", 15, 2)


@pytest.fixture(scope="module")
def solution(exposure):
    found = solve(exposure, "all", torch.arange(12))
    assert found.decided.all() and found.check(exposure).ok
    return found


@pytest.fixture(scope="module")
def split(solution):
    """A question that several cases prove."""
    several = np.diff(solution.proofs.indptr) > 2
    first = int(np.flatnonzero(several & solution.excluded)[0])
    return solution[first : first + 1]


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def with_proofs(solution, **arrays):
    return replace(solution, proofs=replace(solution.proofs, **arrays))


def shifted(terms):
    return (terms + 40) % int(terms.max() + 1)


def low_bound(s):
    tight = int(np.flatnonzero(s.excluded)[0])
    return replace(s, bound=changed(s.bound, tight, s.bound[tight] - 0.01))


def on_target(share):
    """Its margin over itself is 0 whatever λ is, so that mixture would exclude every class."""

    def change(s):
        question = np.repeat(np.arange(len(s)), np.diff(s.proofs.indptr))
        own = np.eye(CLASSES)[s.target[question]]
        return with_proofs(s, weights=share * own + (1 - share) * s.proofs.weights)

    return change


TAMPERED = {
    "a bound that says too much": (low_bound, "excess", 1e-4),
    "other slopes": (lambda s: with_proofs(s, slopes=1.0 - s.proofs.slopes), "unproved", 0),
    "larger weights": (
        lambda s: with_proofs(s, weights=1.01 * s.proofs.weights), "negative", 1e-3
    ),
    "a negative weight": (
        lambda s: with_proofs(s, weights=changed(s.proofs.weights, (0, 1), -0.1)), "negative", 1e-3
    ),
    **{f"{share} on the target": (on_target(share), "negative", 0.9 * share)
       for share in (1.0, 0.5, 1e-3)},
    "negative multiples": (
        lambda s: with_proofs(s, multiplier=s.proofs.multiplier - 1.0), "negative", 0.9
    ),
    "more mass": (lambda s: replace(s, coefficients=1.01 * s.coefficients), "mass", 1e-3),
    "other terms": (lambda s: replace(s, terms=shifted(s.terms)), "negative", 0.9),
    "larger margins": (lambda s: replace(s, margin=s.margin + 10.0), "margin", 0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_tampered_with_is_found(name, solution, exposure):
    change, field, least = TAMPERED[name]
    found = change(solution).check(exposure)
    assert getattr(found, field) > least and not found.ok


@pytest.mark.parametrize("name", ["margin", "weights", "slopes", "multiplier"])
@pytest.mark.parametrize("where", [slice(None), -1])
def test_what_is_no_number_proves_nothing(solution, exposure, name, where):
    holder = solution if hasattr(solution, name) else solution.proofs
    torn = {name: changed(getattr(holder, name), where, np.nan)}
    other = replace(solution, **torn) if holder is solution else with_proofs(solution, **torn)
    assert not other.check(exposure).ok


def test_false_verdicts_are_counted(solution, exposure):
    count = np.ones(len(solution))
    losing = replace(solution, margin=count, bound=2 * count)  # all can, they say
    assert losing.check(exposure).unconfirmed == solution.excluded.sum()
    winning = replace(solution, margin=-2 * count, bound=-count)
    assert winning.check(exposure).unproved == solution.reachable.sum()
    other = replace(exposure, replay=lambda coefficients: torch.zeros(NODES, CLASSES))
    assert solution.check(other).unconfirmed == solution.reachable.sum()
    without = solution.check(replace(exposure, replay=None))
    assert without.ok and not without.replayed and solution.check(exposure).replayed
    with pytest.raises(InputError, match=r"does not belong|instead of"):
        solution.check(replace(exposure, frozen_logits=torch.zeros(1, NODES, 3).double()))


@pytest.mark.parametrize("how", ["left out", "other signs", "a sign twice"])
def test_cases_must_cover_everything(how, split, exposure):
    assert split.check(exposure).ok
    proofs = split.proofs
    wrong = replace(proofs, sign=-proofs.sign)
    if how == "left out":
        each = replace(proofs, indptr=np.arange(proofs.count + 1))  # one case by itself
        part = each.take(np.arange(1, proofs.count))
        wrong = replace(part, indptr=np.array([0, part.count]))
    elif how == "a sign twice":
        again = np.repeat(np.arange(len(proofs.unit)), 2)
        names = ("operation", "unit", "multiplier")
        doubled = {name: getattr(proofs, name)[again] for name in names}
        both = np.tile(np.array([-1, 1], np.int8), len(proofs.unit))
        wrong = replace(proofs, splits=2 * proofs.splits, sign=both, **doubled)
    assert not replace(split, proofs=wrong).check(exposure).ok


def case(*signs, edges=()):
    splits = tuple((0, *sign, 0.0) for sign in signs)
    return ProofCase(np.empty(0), np.empty(0), splits=splits, halvings=edges)


LEFT, RIGHT, OTHER = ((0, 1, 1),), ((0, 1, -1),), ((0, 2, -1),)
ELSEWHERE = ProofCase(np.empty(0), np.empty(0), splits=((1, 1, -1, 0.0),))


@pytest.mark.parametrize(
    ("cases", "all_of_them"),
    [
        ([case()], True),
        ([case((1, 1)), case((1, -1))], True),
        ([case((1, 1))], False),
        ([case((1, 1), (2, 1)), case((1, 1), (2, -1)), case((1, -1))], True),
        ([case((1, 1), (2, 1)), case((2, -1), (1, -1))], False),
        ([case((1, 1)), ELSEWHERE], False),
        ([case(edges=LEFT), case(edges=RIGHT)], True),
        ([case(edges=LEFT), case(edges=OTHER)], False),
        ([case(edges=LEFT), case(edges=LEFT)], False),
        ([case(edges=LEFT), case((3, 1), edges=RIGHT)], False),
        (
            [
                case(edges=LEFT),
                case((3, 1), edges=RIGHT),
                case((3, -1), edges=(*RIGHT, (1, 2, 1))),
                case((3, -1), edges=(*RIGHT, (1, 2, -1))),
            ],
            True,
        ),
    ],
)
def test_cases_cover_everything_or_not(cases, all_of_them):
    assert covers(cases) == all_of_them


def test_inner_slopes_of_any_size_prove_nothing_wrong_and_are_needed():
    exposure = tailed("mlp", 4, 2)
    found = solve(exposure, "all", torch.arange(0, 24, 8), effort="fast")
    inner = np.random.default_rng(2).normal(size=found.proofs.inner.shape)
    worse = with_proofs(found, inner=inner).check(exposure)
    assert found.proofs.inner.size and found.check(exposure).ok
    assert worse.excess > 0 and not worse.unconfirmed
    old = with_proofs(found, inner=np.empty((1, 0)), part=np.zeros_like(found.proofs.part))
    with pytest.raises(InputError, match="solve the questions again"):
        old.check(exposure)


@pytest.mark.parametrize("kind", ["relu", "layer_norm"])
def test_another_tail_s_answers_are_not_confirmed_of_one_without_bounds(kind):
    answers = solve(tailed(kind, 3), torch.arange(NODES) % CLASSES)
    found = answers.check(tailed("opaque", 3))
    assert not found and found.unproved == (answers.verdict == "cannot").sum() > 0


# Sentences, other forms and reach.


def test_sentences_and_files_say_what_is_proved(solution, exposure, split, tmp_path):
    sentences = {str(answer.verdict): str(answer) for answer in solution}
    assert "can win by" in sentences["can"] and "the model itself" in sentences["can"]
    assert "cannot win: every reweighting loses by at least" in sentences["cannot"]
    counts = [int((solution.verdict == word).sum()) for word in ("can", "cannot", "undecided")]
    told = (f"{counts[0]} can,", f"{counts[1]} cannot", f"{counts[2]} undecided")
    assert all(part in str(solution) for part in told)
    assert f"by {split.proofs.count} cases" in str(split[0])
    open_ = replace(solution, margin=np.full(len(solution), -1.0), bound=np.ones(len(solution)))
    said = str(open_.check(exposure))
    assert f"{len(solution)} verdicts, NOT" in said and f"({len(solution)} undecided)" in said
    path = tmp_path / "tail.safetensors"
    solution.save(path)
    again = Solution.load(path)
    assert again.check(exposure).ok and str(again) == str(solution)
    np.testing.assert_array_equal(again.verdict, solution.verdict)
    np.testing.assert_array_equal(again.proofs.slopes, solution.proofs.slopes)
    header, tensors = load_tensors(path, KIND)
    words = {name: header[name] for name in ("skipped", "reasons", "scope")}
    status = (tensors["status"] - FIRST_STAGE).to(torch.int8)
    old = tensors | {"status": status, "verdict": torch.zeros(len(solution), dtype=torch.int8)}
    save_tensors(path, "gnn-repair tail solution", words | {"replayed": True}, old)  # version 0.2
    np.testing.assert_array_equal(Solution.load(path).status, solution.status)
    with pytest.raises(InputError, match="do not fit"):
        with_proofs(solution, unit=np.append(solution.proofs.unit, 1)).save(path)


def test_dense_coefficients_reproduce_the_margins(exposure):
    y = torch.arange(NODES) % CLASSES
    found = solve(exposure, y)
    logits = exposure.replay(found.dense(exposure)[0]).double().numpy()
    place = np.arange(NODES), y.numpy()
    own = logits[place].copy()
    logits[place] = -np.inf
    np.testing.assert_allclose(own - logits.max(1), found.margin, atol=1e-5)
    np.testing.assert_array_equal(found.by_class(1, NODES)[0][place], found.margin)


def test_nodes_without_a_label_are_counted(exposure):
    y = torch.arange(NODES) % (CLASSES + 1) - 1
    found = solve(exposure, y, effort="fast")
    assert found.skipped == NODES - len(found) == int((y < 0).sum())
    assert f"{found.skipped} without a label" in str(found)


def test_reach_is_an_interval_that_collapses(exposure):
    y = torch.arange(NODES) % CLASSES
    found, answers = reach(exposure, y), solve(exposure, y)
    wrong = exposure.frozen_logits[0].argmax(1).numpy() != y.numpy()
    (own,) = found.members
    assert own.error == Rate(int((answers.reachable & wrong).sum()), int(wrong.sum()))
    assert found.chance.low == found.chance.high and "undecided" not in str(found)
    unknown = tailed("opaque", 15, 2)
    loose, proved = reach(unknown, y), int(solve(unknown, y).reachable.sum())
    assert loose.members[0].true_class == Rate(proved, NODES, NODES - proved)
    assert f"{proved} proved, {NODES - proved} undecided, of {NODES}" in str(loose)
    assert loose.undecided == NODES - proved


# Ordinary PyG models with nonlinear heads: exposed, judged, replayed and checked.


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_a_tail_is_judged_and_the_verdicts_hold(name):
    data = small_graph()
    exposure = expose(model_of(name), data)
    assert exposure.head is not None
    solution = solve(exposure, "all", torch.arange(0, 30, 2))
    assert solution.replayed and solution.reachable.any()
    verification = solution.check(exposure)
    assert verification.ok, verification
    if name == "softplus":
        assert "softplus" in next(iter(solution.reasons.values()))
    else:
        assert solution.excluded.any() and solution.decided.mean() > 0.85
    part = exposure.restrict(torch.tensor([4, 9]))
    assert solve(part, "all").check(part).ok


@pytest.mark.parametrize("with_head", [False, True])
def test_a_length_that_no_margin_reads_changes_no_verdict(with_head):
    """Divided by its length at the very end, a vector has the margins' signs it had before."""
    torch.manual_seed(5)
    first = SAGEConv(5, 3)
    head = nn.Linear(3, 3, bias=False) if with_head else nn.Identity()

    class Last(nn.Module):
        def __init__(self, length):
            super().__init__()
            self.first, self.head, self.length = first, head, length

        def forward(self, x, edge_index):
            out = self.first(x, edge_index)
            return self.head(nn.functional.normalize(out) if self.length else out)

    data = small_graph()
    plain, exposure = solve(expose(Last(False), data), "all"), expose(Last(True), data)
    solution = solve(exposure, "all")
    assert exposure.head is not None and solution.check(exposure).ok
    clear = abs(plain.margin) > 1e-4
    assert (solution.reachable == plain.reachable)[clear & solution.decided].all()
    assert solution.decided[clear].all() and plain.reachable[clear].any()


@pytest.mark.parametrize("kind", ["relu", "mlp", "jk-cat"])
def test_a_trained_models_exposure_is_the_model_and_no_milp_contradicts_it(kind):
    data = small_graph()
    exposure = head_exposure(trained(data, kind, 6, epochs=10), data)
    torch.testing.assert_close(exposure.logits(), exposure.frozen_logits, atol=1e-5, rtol=1e-5)
    more = exposure.aggregate.coefficients.double() * 1.3
    own = exposure.replay(more[0]).double()
    torch.testing.assert_close(exposure.logits(more)[0], own, atol=1e-5, rtol=1e-5)
    solution = solve(exposure, "all", torch.arange(0, 30, 4))
    assert solution.check(exposure).ok
    chosen = np.arange(0, len(solution), 2)
    found = compare_with_milp(exposure, solution, chosen)
    assert found.contradictions == () and found.compared > len(chosen) // 2
    assert {*solution.verdict[chosen]} == {"can", "cannot"}
    margin = np.where(solution.reachable, -2.0, 2.0)
    opposite = replace(solution, margin=margin, bound=margin + 1)
    wrong = compare_with_milp(exposure, opposite, chosen)
    assert len(wrong.contradictions) == wrong.compared == found.compared
