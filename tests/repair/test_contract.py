"""One contract for every repair on every kind of exposure: what may change and what may not."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch

from gnn_repair.budget import LADDER
from gnn_repair.exposure import Exposure
from gnn_repair.repair import (
    REPAIRS,
    CorrectAndSmooth,
    CrossFitted,
    EvidenceLadder,
    FittedRepair,
    RefitHead,
    SetTranslation,
    TemperatureScaling,
    evidence,
)
from gnn_repair.repair.base import TrainedRepair
from gnn_repair.repair.baselines import LabelPropagation
from gnn_repair.repair.folds import deal_folds
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.repair.contract_exposures import (
    KINDS,
    renumbered_nodes,
    reordered_classes,
    shuffled_terms,
    world,
)
from tests.helpers.repair.literal import random_parameters

START = {
    "reweighting": "frozen",
    "set-translation": "frozen",
    "node-translation": "frozen",
    "refit-head": "another head",
    "correct-and-smooth": "not trained",
    "temperature-scaling": "not trained",
}
"""What every repair is before it has learned: whoever adds a repair says so here."""
BRIEF = replace(LADDER, epochs=2, learning_rate=0.03, epoch_zero=False)
FOLDED = {
    "ladder": EvidenceLadder(hidden=5, folds=2, budget=BRIEF, dropout=0.0),
    "set-translation-in-folds": CrossFitted(SetTranslation(BRIEF, 0.0, hidden=5), folds=2),
    "smoothing-in-folds": CrossFitted(CorrectAndSmooth(layers=3), folds=2),
    "label-propagation": LabelPropagation(layers=4),
}
"""What is fitted in folds or reads the graph, on fewer kinds."""
SOME = ["by-hand", "gat", "h2gcn", "users-model"]
EVERY = [(name, kind) for name in REPAIRS for kind in KINDS]
EVERY += [(name, kind) for name in FOLDED for kind in SOME] + [("ladder", "head")]
ALL = pytest.mark.parametrize(("name", "kind"), EVERY)
CLOSE = {"rtol": 1e-8, "atol": 1e-9}
REFITTED = {"rtol": 1e-5, "atol": 1e-6}
"""Sums in another order round differently, and Adam divides a gradient by its own size: where one
nearly vanishes, rounding becomes a step. A wrong term moves logits by a thousand times more."""
pytestmark = pytest.mark.filterwarnings("ignore:member . is repaired without")


def method(name: str, dropout: float = 0.0):
    """The repair, small, fast to move and forced to learn something."""
    if name in FOLDED:
        return FOLDED[name]
    repair = REPAIRS[name]()
    if not isinstance(repair, TrainedRepair):
        return repair
    budget = replace(repair.budget, epochs=3, patience=2, learning_rate=0.03, epoch_zero=False)
    small = {"hidden": 5} if "hidden" in repair.__dataclass_fields__ else {}
    return replace(repair, budget=budget, dropout=dropout, **small)


def fit(name: str, exposure: Exposure, y, train, val, dropout: float = 0.0, **options):
    return method(name, dropout).fit(exposure, y, train, val, device="cpu", **options)


@cache
def fitted(name: str, kind: str) -> FittedRepair:
    return fit(name, *world(kind), dropout=0.2, batch_size=3)


@cache
def without_dropout(name: str, kind: str) -> torch.Tensor:
    exposure = world(kind).exposure
    return fit(name, *world(kind)).member_logits(exposure)


def everything(repair: FittedRepair, exposure: Exposure) -> torch.Tensor:
    """Its logits, and what each rung of a ladder says, which Frozen may keep from being heard."""
    logits = repair.member_logits(exposure)
    if not hasattr(repair, "rung_log_probs"):
        return logits
    return torch.cat([logits, *repair.rung_log_probs(exposure).values()], 2)


def close(name: str) -> dict[str, float]:
    """Predictions that are kept by node are single precision."""
    return REFITTED if name in FOLDED else CLOSE


def test_every_repair_is_under_the_contract():
    assert set(START) == set(REPAIRS)
    for name, start in START.items():
        trained = issubclass(REPAIRS[name], TrainedRepair)
        assert trained == (start != "not trained")
        assert REPAIRS[name]().starts_frozen == (start == "frozen")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name, start in START.items() if start == "frozen"])
def test_what_is_trained_is_what_predicts_and_epoch_zero_is_the_frozen_prediction(name, kind):
    exposure, repair = world(kind).exposure, method(name)
    inputs = RepairInputs(exposure)
    initial, moved = repair.initial(inputs), random_parameters(repair, inputs)
    start, later = (
        repair.fitted_on(exposure, parameters=p).member_logits(exposure) for p in (initial, moved)
    )
    frozen = exposure.frozen_logits[:, exposure.recipients]
    torch.testing.assert_close(start, frozen, rtol=1e-12, atol=1e-12)
    trained = repair.corrected(moved, inputs, repair.tables(moved, inputs), inputs.everyone, None)
    torch.testing.assert_close(later, trained.double(), **CLOSE)


@ALL
def test_logits_are_finite_decide_the_class_and_are_not_the_same_for_all(name, kind):
    """A repair that did nothing, or member 0's for everybody, would pass much of the rest."""
    exposure, repair = world(kind).exposure, fitted(name, kind)
    logits = repair.member_logits(exposure)
    shape = exposure.num_members, exposure.num_recipients, exposure.num_classes
    assert (tuple(logits.shape), logits.dtype) == (shape, torch.float64)
    assert bool(logits.isfinite().all())
    # Of one model there is no axis of members.
    shown = logits[0] if exposure.num_members == 1 else logits
    assert torch.equal(repair.logits(exposure), shown)
    assert torch.equal(repair.predict(exposure), shown.argmax(-1))
    change = logits - exposure.frozen_logits[:, exposure.recipients]
    assert bool((change.abs().amax((1, 2)) > 1e-6).all())
    held = [*repair.parameters.values(), *repair.constants.values()]
    several = [v for v in held if v.shape[0] == exposure.num_members > 1 < v[0].numel()]
    assert not several or any(not torch.equal(value[0], value[-1]) for value in several)
    if hasattr(repair, "shift"):
        moved = exposure.frozen_logits[:, exposure.recipients] + repair.shift(exposure)
        assert torch.equal(logits, moved)


@ALL
def test_a_member_alone_is_that_member_of_the_stack(name, kind):
    exposure, y, train, val = world(kind)
    together = fitted(name, kind)
    for s in range(exposure.num_members):
        one = exposure.member(s)
        alone = fit(name, one, y, train[:, s], val[:, s], dropout=0.2, batch_size=3)
        expected = everything(alone, one)
        torch.testing.assert_close(everything(together, exposure)[s], expected[0], **close(name))
        torch.testing.assert_close(everything(together.member(s), one), expected, **close(name))
        for statistic in ("best_epoch", "epochs_run", "diverged"):
            assert getattr(together, statistic)[s] == getattr(alone, statistic)[0]


@ALL
def test_copies_predict_the_same_bits(name, kind, tmp_path):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    repair.save(tmp_path / "repair.safetensors")
    torch.save(repair, tmp_path / "repair.pt")
    copies = (
        FittedRepair.load(tmp_path / "repair.safetensors"),
        pickle.loads(pickle.dumps(repair)),
        copy.deepcopy(repair),
        torch.load(tmp_path / "repair.pt", weights_only=False),
    )
    expected = repair.member_logits(exposure)
    for again in copies:
        assert type(again) is type(repair)
        assert (again.repair, again.fingerprint) == (repair.repair, repair.fingerprint)
        assert again.num_parameters == repair.num_parameters
        assert torch.equal(again.member_logits(exposure), expected)
        assert repr(again) == repr(repair)


@ALL
def test_a_restricted_exposure_gives_the_restricted_rows(name, kind):
    if name == "smoothing-in-folds":
        pytest.skip("it spreads over the recipients that there are")
    exposure, repair = world(kind).exposure, fitted(name, kind)
    positions = torch.tensor([9, 3, 17, 4, 0])
    part = exposure.restrict(exposure.recipients[positions])
    expected = everything(repair, exposure)[:, positions]
    torch.testing.assert_close(everything(repair, part), expected, **close(name))


@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_keep_signs_support_and_masses(kind):
    exposure, repair = world(kind).exposure, fitted("reweighting", kind)
    found = repair.coefficients(exposure)
    alpha = exposure.coefficients.expand_as(found)
    assert bool((found >= 0).all()) and torch.equal(found > 0, alpha > 0)
    mass = exposure.mass.expand(exposure.num_members, -1, -1)
    torch.testing.assert_close(exposure.masses(found), mass, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(repair.member_logits(exposure), exposure.logits(found))


@ALL
def test_the_order_of_terms_and_tables_does_not_matter(name, kind):
    exposure, y, train, val = world(kind)
    moved, order = shuffled_terms(exposure)
    repair = fit(name, exposure, y, train, val)
    expected = everything(repair, exposure)
    torch.testing.assert_close(everything(repair, moved), expected, **close(name))
    if hasattr(repair, "coefficients"):
        found = repair.coefficients(moved)
        torch.testing.assert_close(found, repair.coefficients(exposure)[:, order], **CLOSE)
    again = everything(fit(name, moved, y, train, val), moved)
    loose = {"rtol": 1e-4, "atol": 1e-4} if name in FOLDED else REFITTED
    torch.testing.assert_close(again, expected, **loose)


@ALL
def test_the_numbers_of_nodes_do_not_matter(name, kind, monkeypatch):
    if kind == "head":
        pytest.skip("its head holds a constant per node")
    # Which labels are hidden while the ladder learns goes by their nodes' numbers.
    monkeypatch.setattr(evidence, "HIDDEN", 0.0)
    exposure, y, train, val = world(kind)
    moved, old = renumbered_nodes(exposure)
    expected = everything(fit(name, exposure, y, train, val), exposure)
    found = everything(fit(name, moved, y[old], train[old], val[old]), moved)
    loose = {"rtol": 1e-4, "atol": 1e-4} if name in FOLDED else REFITTED
    torch.testing.assert_close(found, expected, **loose)


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("name", ["correct-and-smooth", "temperature-scaling", "label-propagation"])
def test_the_numbers_of_classes_do_not_matter(name, kind):
    """Of what is not trained: trained weights start at chance, another one for every class."""
    exposure, y, train, val = world(kind)
    order = torch.arange(exposure.num_classes).flip(0)
    moved = reordered_classes(exposure, order)
    found = fit(name, moved, order[y], train, val).member_logits(moved)
    torch.testing.assert_close(found[..., order], without_dropout(name, kind), **REFITTED)


@pytest.mark.parametrize("kind", ["by-hand", "gat", "h2gcn", "message-per-edge"])
@pytest.mark.parametrize("name", [*REPAIRS, "label-propagation"])
def test_a_graph_beside_a_copy_of_itself_learns_the_same(name, kind):
    exposure, y, train, val = world(kind)
    twice = Exposure.concatenate([exposure, exposure])
    found = fit(name, twice, y.repeat(2), train.repeat(2, 1), val.repeat(2, 1))
    for half in found.member_logits(twice).chunk(2, dim=1):
        torch.testing.assert_close(half, without_dropout(name, kind), **REFITTED)


@ALL
def test_no_label_outside_a_member_s_masks_is_read(name, kind):
    exposure, y, train, val = world(kind)
    usual = fitted(name, kind).member_logits(exposure)
    garbage = torch.where(torch.arange(y.numel()) % 2 == 0, 1_000_003, -1)
    planted = torch.where((train | val).any(1), y, garbage)
    again = fit(name, exposure, planted, train, val, dropout=0.2, batch_size=3)
    assert torch.equal(again.member_logits(exposure), usual)
    if exposure.num_members == 1 or kind not in ("by-hand", "gat", "sgc"):
        return
    mine, other = (train | val)[:, 0], (train | val)[:, 1]
    planted = torch.where(other & ~mine, (y + 1) % exposure.num_classes, y)
    again = fit(name, exposure, planted, train, val, dropout=0.2, batch_size=3)
    assert torch.equal(again.member_logits(exposure)[0], usual[0])
    # Frozen may stay for the other member of a ladder; its rungs have learned something else.
    told = [everything(repair, exposure)[1] for repair in (again, fitted(name, kind))]
    assert not torch.equal(*told)


SIZES = {
    "repair.adapters.RECIPIENTS": 7, "repair.adapters.SCORED": 40,
    "repair.baselines.TABLE_BYTES": {"cpu": 1},
    "repair.evidence.BLOCK": 100, "repair.inputs.CHUNK": 16, "repair.inputs.FEW": 100.0,
    "repair.ladder.network.AT_ONCE": 1, "repair.ladder.network.CHUNK": 200,
    "repair.targets.LARGE": 0, "repair.targets.SHARE": 1.0, "kernels.sets.CHUNK": 100,
}  # fmt: skip
"""How much is worked out at once, as little as a large graph would leave of a small one."""


@pytest.mark.parametrize("name", [*REPAIRS, *FOLDED])
@pytest.mark.parametrize("kind", ["by-hand", "gat", "head"])
def test_how_much_is_worked_out_at_once_does_not_matter(name, kind, monkeypatch):
    if kind == "head" and name in FOLDED:
        pytest.skip("on fewer kinds")
    """Also where a part of the graph alone is looked at, whose other nodes no member has seen."""
    exposure, y, *masks = world(kind)
    seen = torch.arange(len(y)).unsqueeze(1) % 7 != 5
    rest = y, *(mask & seen for mask in masks)
    usual = fit(name, exposure, *rest)
    told = [everything(usual, exposure)]
    for place, value in SIZES.items():
        monkeypatch.setattr(f"gnn_repair.{place}", value)
    told += [everything(one, exposure) for one in (usual, fit(name, exposure, *rest))]
    for other in told[1:]:
        torch.testing.assert_close(other, told[0], **REFITTED)


@pytest.mark.parametrize("inner", [CorrectAndSmooth(layers=3), TemperatureScaling(), RefitHead()])
def test_a_copy_keeps_what_the_repair_keeps_that_learns_from_all_other_folds(inner):
    """Of what is not trained, or is worked out before: members whose folds differ in size."""
    exposure, y, train, val = world("by-hand")
    folded = CrossFitted(inner, folds=2, seed=3).fit(exposure, y, train, val, device="cpu")
    folds = deal_folds(val.t(), y, 2, 3).t()
    told = []
    for k in range(2):
        own, copied = folds == k, folded.copy(k)
        alone = inner.fit(exposure, y, train | (val & ~own), own, device="cpu")
        for name, value in (copied.constants or copied.parameters).items():
            torch.testing.assert_close(value, {**alone.parameters, **alone.constants}[name])
        told.append(copied.member_logits(exposure))
        assert torch.equal(copied.best_epoch, folded.constants["best_epochs"][:, k])
    assert not torch.allclose(*told)
    said = torch.stack(told).log_softmax(3).mean(0).log_softmax(2)
    torch.testing.assert_close(folded.member_logits(exposure), said)
    held = folded.out_of_fold()
    for s, node in (folds >= 0).t().nonzero().tolist():
        expected = told[int(folds[node, s])][s, node].log_softmax(0)
        torch.testing.assert_close(held[s, node], expected, rtol=1e-5, atol=1e-5)


def test_copies_start_apart_and_all_members_alike():
    """Copy k where the repair itself starts with seed + k: so they make different mistakes."""
    exposure, *rest = world("by-hand")
    still = SetTranslation(replace(BRIEF, learning_rate=1e-9), hidden=5, seed=4)
    folded = CrossFitted(still, folds=3).fit(exposure, *rest, device="cpu")
    for k in range(3):
        alone = replace(still, seed=4 + k).fit(exposure, *rest, device="cpu")
        for name, value in folded.copy(k).parameters.items():
            torch.testing.assert_close(value, alone.parameters[name], rtol=0, atol=1e-7)
