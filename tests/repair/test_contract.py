"""One contract for every repair of the registry on every kind of exposure."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from contract_exposures import (
    KINDS,
    renumbered_nodes,
    reordered_members,
    shuffled_terms,
    world,
)

from gnn_repair.repair import REPAIRS, FittedRepair
from gnn_repair.repair.base import TrainedRepair, about, untrained
from gnn_repair.repair.inputs import repair_inputs

START = {
    "reweighting": "frozen",
    "set-translation": "frozen",
    "node-translation": "frozen",
    "refit-head": "another head",
    "correct-and-smooth": "not trained",
    "temperature-scaling": "not trained",
}
"""What every repair is before it has learned: whoever adds a repair says so here."""
EVERY = pytest.mark.parametrize("name", REPAIRS)
ON_ALL = pytest.mark.parametrize("kind", KINDS)
CLOSE = {"rtol": 1e-8, "atol": 1e-9}
REFITTED = {"rtol": 1e-5, "atol": 1e-6}
"""Sums in another order round differently, and Adam divides a gradient by its own size: where one
nearly vanishes, rounding becomes a step. A wrong term moves logits by a thousand times more."""
pytestmark = pytest.mark.filterwarnings("ignore:member . is repaired without")


def method(name: str, dropout: float = 0.0):
    """The repair, small, fast to move and forced to learn something."""
    repair = REPAIRS[name]()
    if not isinstance(repair, TrainedRepair):
        return repair
    budget = replace(repair.budget, epochs=3, patience=2, learning_rate=0.03, epoch_zero=False)
    small = {"hidden": 5} if "hidden" in repair.__dataclass_fields__ else {}
    return replace(repair, budget=budget, dropout=dropout, **small)


@cache
def fitted(name: str, kind: str) -> FittedRepair:
    exposure, *rest = world(kind)
    return method(name, 0.2).fit(exposure, *rest, device="cpu", batch_size=3)


def test_every_repair_is_under_the_contract():
    assert set(START) == set(REPAIRS)
    for name, start in START.items():
        trained = issubclass(REPAIRS[name], TrainedRepair)
        assert trained == (start != "not trained")
        assert REPAIRS[name]().starts_frozen == (start == "frozen")


@ON_ALL
@pytest.mark.parametrize("name", [name for name, start in START.items() if start == "frozen"])
def test_epoch_zero_is_the_frozen_prediction(name, kind):
    exposure = world(kind).exposure
    repair = method(name)
    start = repair.fitted(
        **about(exposure), **untrained(exposure), parameters=repair.initial(repair_inputs(exposure))
    )
    frozen = exposure.frozen_logits[:, exposure.recipients]
    torch.testing.assert_close(start.member_logits(exposure), frozen, rtol=1e-12, atol=1e-12)


@EVERY
@ON_ALL
def test_something_is_learned_and_is_not_the_same_for_all(name, kind):
    """A repair that did nothing, or member 0's for everybody, would pass much of the rest."""
    exposure, repair = world(kind).exposure, fitted(name, kind)
    change = repair.member_logits(exposure) - exposure.frozen_logits[:, exposure.recipients]
    assert bool((change.abs().amax((1, 2)) > 1e-6).all())
    held = [*repair.parameters.values(), *repair.constants.values()]
    own = [value for value in held if value.shape[0] == exposure.num_members > 1 < value[0].numel()]
    assert not own or any(not torch.equal(value[0], value[-1]) for value in own)


@EVERY
@ON_ALL
def test_a_member_alone_is_that_member_of_the_stack(name, kind):
    exposure, y, train, val = world(kind)
    together = fitted(name, kind)
    for s in range(exposure.num_members):
        one = exposure.member(s)
        alone = method(name, 0.2).fit(one, y, train[:, s], val[:, s], device="cpu", batch_size=3)
        torch.testing.assert_close(
            together.member_logits(exposure)[s], alone.member_logits(one)[0], **CLOSE
        )
        torch.testing.assert_close(
            together.member(s).member_logits(one), alone.member_logits(one), **CLOSE
        )
        for statistic in ("best_epoch", "epochs_run", "diverged"):
            assert getattr(together, statistic)[s] == getattr(alone, statistic)[0]


@EVERY
@pytest.mark.parametrize("kind", ["by-hand", "gat", "h2gcn", "message-per-edge"])
def test_members_in_another_order(name, kind):
    exposure, y, train, val = world(kind)
    order = list(reversed(range(exposure.num_members)))
    moved = reordered_members(exposure, order)
    again = method(name, 0.2).fit(
        moved, y, train[:, order], val[:, order], device="cpu", batch_size=3
    )
    expected = fitted(name, kind).member_logits(exposure)[order]
    torch.testing.assert_close(again.member_logits(moved), expected, **CLOSE)


@EVERY
@ON_ALL
def test_predictions_follow_the_logits(name, kind):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    logits = repair.member_logits(exposure)
    shape = exposure.num_members, exposure.num_recipients, exposure.num_classes
    assert (tuple(logits.shape), logits.dtype) == (shape, torch.float64)
    assert bool(logits.isfinite().all())
    # Of one model there is no axis of members.
    shown = logits[0] if exposure.num_members == 1 else logits
    assert torch.equal(repair.logits(exposure), shown)
    assert torch.equal(repair.predict(exposure), shown.argmax(-1))
    if hasattr(repair, "shift"):
        moved = exposure.frozen_logits[:, exposure.recipients] + repair.shift(exposure)
        assert torch.equal(logits, moved)


@EVERY
@ON_ALL
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
        assert torch.equal(again.member_logits(exposure), expected)
        assert repr(again) == repr(repair)


@EVERY
@ON_ALL
def test_a_restricted_exposure_gives_the_restricted_rows(name, kind):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    positions = torch.tensor([9, 3, 17, 4, 0])
    part = exposure.restrict(exposure.recipients[positions])
    expected = repair.member_logits(exposure)[:, positions]
    torch.testing.assert_close(repair.member_logits(part), expected, **CLOSE)


@ON_ALL
@pytest.mark.parametrize(
    "name", [name for name in REPAIRS if hasattr(fitted(name, "gcn"), "coefficients")]
)
def test_coefficients_keep_signs_support_and_masses(name, kind):
    exposure, repair = world(kind).exposure, fitted(name, kind)
    found = repair.coefficients(exposure)
    alpha = exposure.coefficients.expand_as(found)
    assert bool((found >= 0).all())
    assert torch.equal(found > 0, alpha > 0)
    mass = exposure.mass.expand(exposure.num_members, -1, -1)
    torch.testing.assert_close(exposure.masses(found), mass, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(repair.member_logits(exposure), exposure.logits(found))


@EVERY
@ON_ALL
def test_the_order_of_terms_and_tables_does_not_matter(name, kind):
    exposure, y, train, val = world(kind)
    moved, order = shuffled_terms(exposure)
    repair = method(name).fit(exposure, y, train, val, device="cpu")
    torch.testing.assert_close(repair.member_logits(moved), repair.member_logits(exposure), **CLOSE)
    if hasattr(repair, "coefficients"):
        found, expected = repair.coefficients(moved), repair.coefficients(exposure)[:, order]
        torch.testing.assert_close(found, expected, **CLOSE)
    again = method(name).fit(moved, y, train, val, device="cpu")
    torch.testing.assert_close(
        again.member_logits(moved), repair.member_logits(exposure), **REFITTED
    )


@EVERY
@ON_ALL
def test_the_numbers_of_nodes_do_not_matter(name, kind):
    exposure, y, train, val = world(kind)
    moved, old = renumbered_nodes(exposure)
    expected = method(name).fit(exposure, y, train, val, device="cpu").member_logits(exposure)
    again = method(name).fit(moved, y[old], train[old], val[old], device="cpu")
    torch.testing.assert_close(again.member_logits(moved), expected, **REFITTED)


@EVERY
@pytest.mark.parametrize("kind", ["by-hand", "gat", "sgc", "restricted", "users-model"])
def test_no_label_outside_the_masks_is_read(name, kind):
    exposure, y, train, val = world(kind)
    garbage = torch.where(torch.arange(y.numel()) % 2 == 0, 1_000_003, -1)
    planted = torch.where((train | val).any(1), y, garbage)
    again = method(name, 0.2).fit(exposure, planted, train, val, device="cpu", batch_size=3)
    assert torch.equal(again.member_logits(exposure), fitted(name, kind).member_logits(exposure))


@EVERY
@pytest.mark.parametrize("kind", ["by-hand", "gat", "sgc"])
def test_a_member_reads_only_its_own_masks(name, kind):
    """Labels of nodes that only member 1 sees are changed: member 0 must not notice."""
    exposure, y, train, val = world(kind)
    mine, other = (train | val)[:, 0], (train | val)[:, 1]
    planted = torch.where(other & ~mine, (y + 1) % exposure.num_classes, y)
    assert not torch.equal(planted, y)
    again = method(name, 0.2).fit(exposure, planted, train, val, device="cpu", batch_size=3)
    expected = fitted(name, kind).member_logits(exposure)
    assert torch.equal(again.member_logits(exposure)[0], expected[0])
    assert not torch.equal(again.member_logits(exposure)[1], expected[1])
