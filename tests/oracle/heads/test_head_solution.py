"""Nonlinear heads: certificates that were tampered with, sentences, files; trained models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.explain import Explainer, ModelConfig
from torch_geometric.nn import SAGEConv

from benchmarks.head_solvers import compare_with_milp, run_highs, triangle_model
from benchmarks.heads import HEADS, head_exposure, trained
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure.heads.operations import Curved
from gnn_repair.highs import new_highs
from gnn_repair.oracle import OracleExplainer, Rate, reach, solve
from gnn_repair.oracle.heads.bound import base_of
from gnn_repair.oracle.heads.proof import ProofCase, covers
from gnn_repair.oracle.solution import Solution
from tests.helpers.oracle.head_cases import CLASSES, NODES, tailed
from tests.helpers.oracle.head_graph import CLASSES as CLASSES_HEAD_MODELS
from tests.helpers.oracle.head_graph import MODELS, model_of, small_graph
from tests.helpers.oracle.head_references import exact, triangle

# Certificates that were tampered with, sentences, files, reach, and what is refused.


@pytest.fixture(scope="module")
def exposure():
    return tailed("relu", 15, 2)


@pytest.fixture(scope="module")
def solution(exposure):
    found = solve(exposure, "all")
    assert found.decided.all() and (np.diff(found.proofs.indptr) > 2).any()
    return found


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def with_proofs(solution, **arrays):
    return replace(solution, proofs=replace(solution.proofs, **arrays))


@pytest.mark.parametrize("name", ["margin", "weights", "slopes", "multiplier"])
@pytest.mark.parametrize("where", [slice(None), -1])
def test_what_is_no_number_proves_nothing(solution, exposure, name, where):
    holder = solution if hasattr(solution, name) else solution.proofs
    torn = {name: changed(getattr(holder, name), where, np.nan)}
    other = replace(solution, **torn) if holder is solution else with_proofs(solution, **torn)
    assert not other.check(exposure).ok


def test_a_bound_that_says_too_much_is_found(solution, exposure):
    tight = int(np.flatnonzero(solution.excluded)[0])
    low = replace(solution, bound=changed(solution.bound, tight, solution.bound[tight] - 0.01))
    assert low.check(exposure).excess > 1e-4 and not low.check(exposure)


def test_other_slopes_prove_something_else(solution, exposure):
    assert solution.check(exposure).ok
    damaged = with_proofs(solution, slopes=1.0 - solution.proofs.slopes)
    assert damaged.check(exposure).excess > 1e-3
    assert damaged.check(exposure).unproved > 0


def test_weights_must_be_a_mixture_of_rivals(solution, exposure):
    weights = solution.proofs.weights
    for change in (weights * 1.01, changed(weights, (0, 1), -0.1)):
        assert with_proofs(solution, weights=change).check(exposure).negative > 1e-3
    own = changed(weights, (0, int(solution.target[0])), 0.5)
    assert with_proofs(solution, weights=own).check(exposure).negative >= 0.5


def test_multiples_must_not_be_negative(solution, exposure):
    beta = solution.proofs.multiplier - 1.0
    assert with_proofs(solution, multiplier=beta).check(exposure).negative > 0.9


def test_a_case_that_is_left_out_is_missed(solution, exposure):
    first = int(np.flatnonzero(np.diff(solution.proofs.indptr) > 2)[0])
    one, proofs = solution[first : first + 1], solution[first : first + 1].proofs
    assert one.check(exposure).ok
    last = int(proofs.splits[1])
    fewer = replace(
        proofs, indptr=np.array([0, proofs.count - 1]), weights=proofs.weights[1:],
        slopes=proofs.slopes[1:], splits=proofs.splits[1:] - last,
        operation=proofs.operation[last:], unit=proofs.unit[last:], sign=proofs.sign[last:],
        multiplier=proofs.multiplier[last:], part=proofs.part[1:],
    )  # fmt: skip
    assert not replace(one, proofs=fewer).check(exposure).ok


def test_signs_that_were_not_assumed_prove_nothing(solution, exposure):
    first = int(np.flatnonzero(np.diff(solution.proofs.indptr) > 2)[0])
    one = solution[first : first + 1]
    assert not with_proofs(one, sign=-one.proofs.sign).check(exposure).ok


def case(*signs, edges=()):
    splits = tuple((0, *sign, 0.0) for sign in signs)
    return ProofCase(np.empty(0), np.empty(0), splits=splits, halvings=edges)


@pytest.mark.parametrize(
    ("cases", "all_of_them"),
    [
        ([case()], True),
        ([case((1, 1)), case((1, -1))], True),
        ([case((1, 1))], False),
        ([case((1, 1), (2, 1)), case((1, 1), (2, -1)), case((1, -1))], True),
        ([case((1, 1), (2, 1)), case((2, -1), (1, -1))], False),
        ([case((1, 1)), ProofCase(np.empty(0), np.empty(0), splits=((1, 1, -1, 0.0),))], False),
        ([case(edges=((0, 1, 1),)), case(edges=((0, 1, -1),))], True),
        ([case(edges=((0, 1, 1),)), case(edges=((0, 2, -1),))], False),
        ([case(edges=((0, 1, 1),)), case(edges=((0, 1, 1),))], False),
        ([case(edges=((0, 1, 1),)), case((3, 1), edges=((0, 1, -1),))], False),
        (
            [
                case(edges=((0, 1, 1),)),
                case((3, 1), edges=((0, 1, -1),)),
                case((3, -1), edges=((0, 1, -1), (1, 2, 1))),
                case((3, -1), edges=((0, 1, -1), (1, 2, -1))),
            ],
            True,
        ),
    ],
)
def test_cases_cover_everything_or_not(cases, all_of_them):
    assert covers(cases) == all_of_them


def test_a_wrong_support_is_found(solution, exposure):
    more = replace(solution, coefficients=1.01 * solution.coefficients)
    assert more.check(exposure).mass > 1e-3
    other = replace(solution, terms=(solution.terms + 40) % exposure.aggregate.num_terms)
    assert other.check(exposure).negative >= 1
    claim = replace(solution, margin=solution.margin + 10.0)
    assert claim.check(exposure).margin > 0.1
    count = np.ones(len(solution))
    losing = replace(solution, margin=count, bound=2 * count)  # all can, they say
    assert losing.check(exposure).unconfirmed == solution.excluded.sum()
    winning = replace(solution, margin=-2 * count, bound=-count)
    assert winning.check(exposure).unproved == solution.reachable.sum()


def test_a_replay_that_changed_is_noticed(solution, exposure):
    other = replace(exposure, replay=lambda coefficients: torch.zeros(NODES, CLASSES))
    assert solution.check(other).unconfirmed == solution.reachable.sum()
    without = replace(exposure, replay=None)
    assert solution.check(without).ok and not solution.check(without).replayed
    with pytest.raises(InputError, match=r"does not belong|instead of"):
        solution.check(replace(exposure, frozen_logits=torch.zeros(1, NODES, 3).double()))


def test_sentences_say_what_is_proved(solution):
    sentences = {str(answer.verdict): str(answer) for answer in solution}
    assert "can win by" in sentences["can"] and "the model itself" in sentences["can"]
    assert "cannot win: every reweighting loses by at least" in sentences["cannot"]
    text = str(solution)
    assert f"{int(solution.reachable.sum())} can" in text and "0 undecided" in text
    split = int(np.flatnonzero((np.diff(solution.proofs.indptr) > 2) & solution.excluded)[0])
    assert f"by {np.diff(solution.proofs.indptr)[split]} cases" in str(solution[split])


def test_dense_coefficients_reproduce_the_margins(exposure):
    y = torch.arange(NODES) % CLASSES
    found = solve(exposure, y)
    logits = exposure.replay(found.dense(exposure)[0]).double().numpy()
    own = logits[np.arange(NODES), y.numpy()].copy()
    logits[np.arange(NODES), y.numpy()] = -np.inf
    np.testing.assert_allclose(own - logits.max(1), found.margin, atol=1e-5)
    table = found.by_class(1, NODES)
    np.testing.assert_array_equal(table[0, np.arange(NODES), y.numpy()], found.margin)


def test_files(solution, exposure, tmp_path):
    path = tmp_path / "tail.safetensors"
    solution.save(path)
    again = Solution.load(path)
    assert again.check(exposure).ok and str(again) == str(solution)
    np.testing.assert_array_equal(again.verdict, solution.verdict)
    np.testing.assert_array_equal(again.proofs.slopes, solution.proofs.slopes)
    broken = with_proofs(solution, unit=solution.proofs.unit[:-1])
    with pytest.raises(InputError, match="do not fit"):
        broken.save(path)


@pytest.mark.parametrize("kind", ["relu", "gelu", "layer_norm"])
def test_another_tail_s_answers_are_not_confirmed_of_one_without_bounds(kind):
    y = torch.arange(NODES) % CLASSES
    answers = solve(tailed(kind, 3), y)
    found = answers.check(tailed("opaque", 3))
    assert not found and found.unproved == (answers.verdict == "cannot").sum() > 0


def test_reach_is_an_interval_that_collapses(exposure):
    y = torch.arange(NODES) % CLASSES
    found, answers = reach(exposure, y), solve(exposure, y)
    wrong = exposure.frozen_logits[0].argmax(1).numpy() != y.numpy()
    (own,) = found.members
    assert own.error == Rate(int((answers.reachable & wrong).sum()), int(wrong.sum()))
    assert found.chance.low == found.chance.high and "undecided" not in str(found)
    unknown = tailed("opaque", 15, 2)
    loose = reach(unknown, y)
    proved = int(solve(unknown, y).reachable.sum())
    assert loose.members[0].true_class == Rate(proved, NODES, NODES - proved)
    assert "undecided" in str(loose) and loose.undecided == NODES - proved


def test_inner_slopes_of_any_size_prove_nothing_wrong():
    exposure = tailed("mlp", 4, 2)
    found = solve(exposure, "all", torch.arange(0, 24, 5), effort="fast")
    inner = np.random.default_rng(2).normal(size=found.proofs.inner.shape)
    worse = with_proofs(found, inner=inner).check(exposure)
    assert found.proofs.inner.size and found.check(exposure).ok
    assert worse.excess > 0 and not worse.unconfirmed


def test_proofs_without_inner_slopes_are_to_be_solved_again():
    exposure = tailed("mlp", 4, 1)
    found = solve(exposure, "all", torch.arange(0, 24, 8), effort="fast")
    old = with_proofs(found, inner=np.empty((1, 0)), part=np.zeros_like(found.proofs.part))
    with pytest.raises(InputError, match="solve the questions again"):
        old.check(exposure)


def test_a_sign_that_is_assumed_twice_covers_nothing(solution, exposure):
    first = int(np.flatnonzero(np.diff(solution.proofs.indptr) > 2)[0])
    one = solution[first : first + 1]
    proofs = one.proofs
    again = np.repeat(np.arange(len(proofs.unit)), 2)
    both = np.tile(np.array([-1, 1], np.int8), len(proofs.unit))
    doubled = replace(
        proofs, splits=2 * proofs.splits, operation=proofs.operation[again],
        unit=proofs.unit[again], sign=both, multiplier=proofs.multiplier[again],
    )  # fmt: skip
    assert not replace(one, proofs=doubled).check(exposure).ok


# Ordinary PyG models with nonlinear heads: exposed, judged, replayed and checked.


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_a_tail_is_judged_and_the_verdicts_hold(name):
    data = small_graph()
    exposure = expose(model_of(name), data)
    assert exposure.head is not None
    solution = solve(exposure, "all")
    assert solution.replayed and solution.reachable.any()
    verification = solution.check(exposure)
    assert verification.ok, verification
    if name == "softplus":
        assert "softplus" in next(iter(solution.reasons.values()))
    else:
        assert solution.excluded.any() and solution.decided.mean() > 0.85
    part = exposure.restrict(torch.tensor([4, 9]))
    assert solve(part, "all").check(part).ok
    assert solution.excluded.sum() == 0 or "%" in str(reach(exposure, data.y))


@pytest.mark.parametrize("bias_free_head", [False, True])
def test_a_length_that_no_margin_reads_changes_no_verdict(bias_free_head):
    """Divided by its length at the very end, a vector has the margins' signs it had before."""
    torch.manual_seed(5)
    first, head = (
        SAGEConv(5, CLASSES_HEAD_MODELS),
        nn.Linear(CLASSES_HEAD_MODELS, CLASSES_HEAD_MODELS, bias=False),
    )
    head = head if bias_free_head else nn.Identity()

    class Last(nn.Module):
        def __init__(self, length):
            super().__init__()
            self.first, self.head, self.length = first, head, length

        def forward(self, x, edge_index):
            out = self.first(x, edge_index)
            return self.head(nn.functional.normalize(out) if self.length else out)

    data = small_graph()
    plain = solve(expose(Last(False), data), "all")
    exposure = expose(Last(True), data)
    solution = solve(exposure, "all")
    assert exposure.head is not None and solution.check(exposure).ok
    clear = abs(plain.margin) > 1e-4
    assert (solution.reachable == plain.reachable)[clear & solution.decided].all()
    assert solution.decided[clear].all() and plain.reachable[clear].any()


def test_an_explanation_makes_the_model_say_so():
    data, model = small_graph(), model_of("relu")
    exposure = expose(model, data)
    solution = solve(exposure, "all")
    wrong = solution.reachable & (
        model(data.x, data.edge_index).argmax(1).numpy()[solution.node] != solution.target
    )
    i = int(wrong.nonzero()[0][0])
    node, target = int(solution.node[i]), int(solution.target[i])
    explainer = Explainer(
        model, OracleExplainer(exposure), explanation_type="phenomenon", edge_mask_type="object",
        model_config=ModelConfig("multiclass_classification", "node", "raw"),
    )  # fmt: skip
    labels = torch.full((data.num_nodes,), target)
    explanation = explainer(data.x, data.edge_index, target=labels, index=node)
    masked = explainer.get_masked_prediction(
        data.x, data.edge_index, edge_mask=explanation.edge_mask
    )
    assert int(masked[node].argmax()) == target
    assert explanation.solution.verdict[0] == "can"


# The peers of the bench answer the same questions; trained models' exposures are the models.


def unit_number(base) -> int:
    return next(k for k, op in enumerate(base.graph.operations) if isinstance(op, Curved))


def milp():
    highs = new_highs(1e-7)
    for name, value in (("presolve", "on"), ("solver", "choose"), ("mip_rel_gap", 0.0)):
        highs.setOptionValue(name, value)
    return highs


@pytest.mark.parametrize("kind", ["relu", "jk_cat", "bn_residual"])
def test_the_peers_models_are_those_of_the_references(kind):
    exposure = tailed(kind, 12, 2)
    base = base_of(exposure)
    number = unit_number(base)
    for position, target in ((3, 0), (7, 2)):
        model = triangle_model(base, position, target, number)
        found = run_highs(new_highs(1e-7), model, exact=False)
        assert found == pytest.approx(triangle(exposure, position, target), abs=1e-5)
        whole = run_highs(milp(), model, exact=True)
        assert whole == pytest.approx(exact(exposure, position, target), abs=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_a_trained_models_exposure_is_the_model(kind):
    data = small_graph()
    model = trained(data, kind, 6, epochs=10)
    exposure = head_exposure(model, data)
    torch.testing.assert_close(exposure.logits(), exposure.frozen_logits, atol=1e-5, rtol=1e-5)
    shifted = exposure.aggregate.coefficients.double() * 1.3
    own = exposure.replay(shifted[0]).double()
    torch.testing.assert_close(exposure.logits(shifted)[0], own, atol=1e-5, rtol=1e-5)
    solution = solve(exposure, data.y)
    assert solution.check(exposure).ok


@pytest.mark.parametrize("kind", ["relu", "bn-residual", "jk-cat", "mlp", "layer-norm"])
def test_a_milp_of_another_build_contradicts_no_verdict(kind):
    data = small_graph()
    exposure = head_exposure(trained(data, kind, 6, epochs=10), data)
    solution = solve(exposure, "all")
    chosen = np.arange(0, len(solution), 7)
    found = compare_with_milp(exposure, solution, chosen)
    assert found.contradictions == () and found.compared > len(chosen) // 2
    assert {*solution.verdict[chosen]} == {"can", "cannot"}
    margin = np.where(solution.reachable, -2.0, 2.0)
    opposite = replace(solution, margin=margin, bound=margin + 1)
    wrong = compare_with_milp(exposure, opposite, chosen)
    assert len(wrong.contradictions) == wrong.compared == found.compared


def test_no_weight_on_the_asked_class_itself_proves_anything(solution, exposure):
    """Its margin over itself is 0 whatever λ is, so that mixture would exclude every class."""
    question = np.repeat(np.arange(len(solution)), np.diff(solution.proofs.indptr))
    own = np.eye(CLASSES)[solution.target[question]]
    for share in (1.0, 0.5, 1e-3):
        weights = share * own + (1 - share) * solution.proofs.weights
        found = with_proofs(solution, weights=weights).check(exposure)
        assert found.negative >= share and not found.ok
