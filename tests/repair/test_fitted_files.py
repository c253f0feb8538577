"""Fitted repairs: to which model they belong, how they are kept, what they say of themselves."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from functools import cache

import pytest
import torch
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import (
    REPAIRS,
    CrossFitted,
    EvidenceLadder,
    FittedRepair,
    NodeTranslation,
    Reweighting,
    TemperatureScaling,
)
from gnn_repair.repair.base import TrainedRepair, fitted_of, repair_of
from gnn_repair.repair.baselines import LabelPropagation
from tests.helpers.repair.toy_exposures import Net, net, toy_exposure, toy_frozen, toy_graph

DATA = toy_graph()
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)
BUDGET = replace(NodeTranslation().budget, epochs=2, epoch_zero=False)
METHOD = NodeTranslation(hidden=4, budget=BUDGET)
FOLDED = {
    "folds": CrossFitted(TemperatureScaling(), folds=3),
    "kept": LabelPropagation(layers=2),
    "ladder": EvidenceLadder(rungs=("messages", "labels"), folds=2, hidden=3, budget=BUDGET),
}


@cache
def fitted(name: str) -> FittedRepair:
    repair = FOLDED.get(name) or REPAIRS[name]()
    if isinstance(repair, TrainedRepair):
        repair = replace(repair, budget=BUDGET)
    return repair.fit(toy_exposure("gcn"), *MASKS, data=DATA, device="cpu")


def parts_of(name: str):
    """What its file holds."""
    return json.loads(json.dumps(fitted(name).header())), fitted(name).tensors()


# What no repair could hold is refused by name -----------------------------------------------------


@pytest.mark.parametrize("name", [*REPAIRS, *FOLDED])
def test_every_number_is_needed_whole_and_of_its_type_and_no_other_is_held(name):
    header, tensors = parts_of(name)
    assert fitted_of(header, tensors).num_members == 2
    for held, value in tensors.items():
        others = {name: other for name, other in tensors.items() if name != held}
        wrong = [{}, {held: value.to(torch.int8)}]
        if held != "constants/entries":  # of which there may be any number
            wrong.append({held: value[..., :-1]})
        for own in wrong:
            with pytest.raises(InputError):
                fitted_of(header, others | own)
    for more in ("more", "constants/more", "parameters/more"):
        with pytest.raises(InputError):
            fitted_of(header, {**tensors, more: torch.zeros(2)})


BOUNDS = [
    ("correct-and-smooth", "labels", -1, 2),
    ("correct-and-smooth", "entries", 0, 29),
    ("folds", "best_epochs", 0, 0),
    ("kept", "single", 0, 2),
    ("ladder", "folds", -1, 1),
    ("ladder", "labels", -1, 2),
    ("ladder", "refitted", 0, 1),
    ("ladder", "nested_accuracy", 0, 1),
]
SINGLE = torch.stack([torch.arange(30), torch.arange(30) + 1]).unsqueeze(1) % 3


@pytest.mark.parametrize(("name", "held", "least", "most"), BOUNDS)
def test_numbers_beyond_their_bounds_are_refused(name, held, least, most):
    header, tensors = parts_of(name)
    value = tensors.get(f"constants/{held}", SINGLE)
    for wrong in (least - 1, most + 1):
        changed = value.clone()
        changed[-1].view(-1)[-1] = wrong
        with pytest.raises(InputError, match=held):
            fitted_of(header, {**tensors, f"constants/{held}": changed})


def put(place, value):
    def change(held):
        changed = held.clone()
        changed[place] = value
        return changed

    return change


DAMAGE = [
    ("set-translation", "best_epoch", put(0, 9)),
    ("set-translation", "epochs_run", put(0, 9)),
    ("set-translation", "parameters/head.0.weight", lambda held: held[:1]),
    ("temperature-scaling", "parameters/temperature", put(0, 0.0)),
    ("refit-head", "constants/scale", put((0, 0), 0.0)),
    ("correct-and-smooth", "constants/strengths", put((1, 0), 0.6)),
    ("folds", "constants/out_of_fold", lambda held: held[:1]),
    ("folds", "parameters/temperature", lambda held: held[:, :2]),
    ("kept", "constants/signature", torch.Tensor.double),
    ("kept", "constants/single", lambda held: SINGLE.float()),
    ("kept", "constants/single", lambda held: SINGLE[..., 1:]),
    ("ladder", "constants/weights", put((1, 0), 1.0 + 2e-9)),
    ("ladder", "constants/weights", put(1, torch.tensor([1.5, -0.5, 0.0]))),
    ("ladder", "constants/temperature", put(1, 0.0)),
    ("ladder", "constants/labels", lambda held: held.clamp(min=0)),
    ("ladder", "constants/count", put(1, -1)),
]


@pytest.mark.parametrize(("name", "held", "change"), DAMAGE)
def test_what_no_repair_could_hold_is_refused_by_name(name, held, change):
    header, tensors = parts_of(name)
    with pytest.raises(InputError, match=held.rpartition("/")[2]):
        fitted_of(header, {**tensors, held: change(tensors.get(held))})


def test_a_single_model_s_classes_and_a_count_may_stand_beside_a_kept_prediction():
    header, tensors = parts_of("kept")
    beside = {"constants/single": SINGLE, "constants/count": torch.tensor([7, 7])}
    held = fitted_of(header, {**tensors, **beside})
    assert torch.equal(held.single, SINGLE) and held.num_parameters == 7
    assert fitted("kept").single is None and fitted("kept").num_parameters == 0


SETTINGS = asdict(Reweighting())
BAD_SETTINGS = [("hidden", 2**40), ("hidden", -1), ("hidden", "3"), ("dropout", 1.5), ("seed", -1)]
BAD_SETTINGS += [("dropout", None), ("epochs", 0)]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_settings_in_files_are_those_that_could_be_given(name, value):
    changed = copy.deepcopy(SETTINGS)
    (changed["budget"] if name == "epochs" else changed)[name] = value
    assert repair_of("Reweighting", SETTINGS) == Reweighting()
    with pytest.raises(InputError, match=name):
        repair_of("Reweighting", changed)


def test_names_and_sizes_in_files():
    for name, settings, said in (
        ("Nothing", {}, "Nothing"),
        # Of version 0.2.
        ("EvidenceLadder", {"rungs": ["summary"], "combine": "weighted"}, "fit EvidenceLadder"),
        ("SummaryKin", {}, "fit EvidenceLadder"),
    ):
        with pytest.raises(InputError, match=said):
            repair_of(name, settings)
    repair = fitted("set-translation")
    for change in ({"width": "7"}, {"width": 0}, {"num_classes": 1}, {"outputs": "values"}):
        with pytest.raises(InputError):
            fitted_of({**repair.header(), **change}, repair.tensors())
    header, tensors = parts_of("ladder")
    nobody = torch.full_like(tensors["constants/folds"], -1)
    with pytest.raises(InputError, match="labels"):
        fitted_of(header, tensors | {f"constants/{name}": nobody for name in ("folds", "labels")})


def test_a_fitted_repair_cannot_be_changed():
    repair = fitted("set-translation")
    with pytest.raises(TypeError):
        repair.parameters["head.0.weight"] = torch.zeros(1)
    with pytest.raises(AttributeError):
        repair.width = 3


# A repair belongs to the model it was fitted on, whatever graph that model sees -------------------


def fitted_binding(exposure: Exposure) -> FittedRepair:
    masks = (mask[:, : exposure.num_members] for mask in MASKS[1:])
    return METHOD.fit(exposure, DATA.y, *masks, device="cpu")


def both(backbone: str = "gcn", **changes) -> Exposure:
    return replace(toy_exposure(backbone), **changes)


OTHERS = {
    "other weights": (lambda: expose(net(0), DATA), lambda: expose(net(1), DATA)),
    "state width 8 but the exposure has 9": (both, lambda: both("sgc")),
    "members 2 but the exposure has 1": (both, lambda: both().member(0)),
    "labels": (both, lambda: both(outputs="labels")),
    "member 0": (both, lambda: both(fingerprint=both().fingerprint[::-1])),
    "member 1": (both, lambda: both(fingerprint=both().fingerprint[:1] * 2)),
    "the repair does not say which model": (lambda: both(fingerprint=()), both),
    "the exposure does not say which model": (both, lambda: both(fingerprint=())),
    # Both are 8 wide, but h is not the same.
    "other weights ": (
        lambda: both().member(0),
        lambda: expose(toy_frozen("gcn").network(0), DATA),
    ),
    "exposure is Frozen": (both, lambda: toy_frozen("gcn")),
}


@pytest.mark.parametrize("said", OTHERS)
def test_an_exposure_of_another_model_is_refused(said):
    mine, other = (make() for make in OTHERS[said])
    repair = fitted_binding(mine)
    for call in (repair.member_logits, repair.logits, repair.shift, repair.predict):
        assert len(call(mine)) in (2, 30, 1)
        with pytest.raises(InputError, match=said.strip()):
            call(other)
    if said == "other weights":  # whoever knows may
        assert bool(repair.unbound().member_logits(other).isfinite().all())
        assert torch.equal(repair.unbound().member_logits(mine), repair.member_logits(mine))


@pytest.mark.parametrize("name", [*REPAIRS, *FOLDED])
def test_every_repair_asks_for_an_exposure_of_its_own_model(name):
    for other in (toy_frozen("gcn"), toy_exposure("sgc"), toy_exposure("gcn").member(0)):
        with pytest.raises(InputError):
            fitted(name).member_logits(other)


def test_members_cuts_files_and_other_graphs_stay_the_same_model(tmp_path):
    exposure = toy_exposure("sage")
    repair = fitted_binding(exposure)
    expected = repair.member_logits(exposure)
    part = exposure.restrict(torch.tensor([5, 2]))
    assert torch.equal(repair.member_logits(part), expected[:, [5, 2]])
    exposure.save(tmp_path / "exposure")
    repair.save(tmp_path / "repair")
    again, loaded = Exposure.load(tmp_path / "exposure"), FittedRepair.load(tmp_path / "repair")
    assert torch.equal(loaded.member_logits(again), expected)
    assert len(set(again.fingerprint)) == 2 and again.fingerprint == exposure.fingerprint
    one = repair.member(1)
    torch.testing.assert_close(one.member_logits(exposure.member(1))[0], expected[1])
    with pytest.raises(InputError, match="other weights"):
        one.member_logits(exposure.member(0))
    repair.unbound().save(tmp_path / "repair")
    assert FittedRepair.load(tmp_path / "repair").fingerprint is None
    model = net(0)
    other = Data(x=DATA.x.flip(0)[:20], edge_index=torch.arange(20).repeat(2, 1), y=DATA.y[:20])
    found = fitted_binding(expose(model, DATA)).member_logits(expose(model, other))
    assert found.shape == (1, 20, 3)


@pytest.mark.parametrize("change", ["first.bias", "last.bias", "offset", "nothing", "precision"])
def test_every_weight_counts_and_neither_device_nor_a_wider_type(change):
    model, other, data = net(0), net(0), DATA
    if change == "precision":
        other, data = Net(0).eval(), Data(x=DATA.x.float(), edge_index=DATA.edge_index, y=DATA.y)
    held = other.state_dict()
    if change in held:
        held[change][3 if change == "offset" else 0] += 1e-9
    same = expose(model, DATA).fingerprint == expose(other, data).fingerprint
    assert same == (change not in held)


# What fitted values say of themselves, and whether anything was learned ---------------------------


def planted_hopeless() -> FittedRepair:
    """Member 0's frozen model is perfect on validation, so nothing can be strictly better."""
    exposure = toy_exposure("gcn")
    logits = exposure.frozen_logits.clone()
    logits[0] = 0
    logits[0, torch.arange(30), DATA.y] = 5
    logits[1, torch.arange(30), (DATA.y + 1) % 3] = 1.5
    logits[1, torch.arange(30), DATA.y] = 1.4
    fixed = exposure.fixed_logits + logits - exposure.frozen_logits
    shifted = replace(exposure, frozen_logits=logits, fixed_logits=fixed)
    method = NodeTranslation(hidden=16, epochs=60, lr=0.05)
    return method.fit(shifted, *MASKS, device="cpu")


def test_a_repair_that_brings_nothing_says_so_by_member():
    found = planted_hopeless()
    alone = found.member(1)
    assert found.unchanged.tolist() == [True, False] and alone.unchanged.tolist() == [False]
    assert found.best_epoch[1] > 0
    for text in (str(found), found.advice):
        assert "member 0" in text and "member 1" not in text and "EvidenceLadder" in text
    assert alone.advice == "" and "EvidenceLadder" not in repr(alone)
    assert found.to_frame()["unchanged"].tolist() == [True, False]
    assert replace(found, best_epoch=torch.tensor([1, 0])).unchanged.tolist() == [False, True]
    wild = replace(found, diverged=torch.tensor([False, True]))
    assert "member 1 diverged" in repr(wild) and "member 0 (" in repr(wild)


@pytest.mark.parametrize("name", ["temperature-scaling", "correct-and-smooth", "refit-head"])
def test_what_has_no_epoch_zero_is_never_unchanged(name):
    kept = replace(fitted(name), best_epoch=torch.zeros(2, dtype=torch.long))
    assert kept.unchanged.tolist() == [False, False] and kept.advice == ""


def test_a_member_alone_has_its_own_share_of_everything():
    whole = fitted("temperature-scaling")
    told = {"f1": ((0.1, 0.2), (0.3, 0.4)), "diverged": torch.tensor([False, True])}
    told |= {"best_epoch": torch.tensor([1, 2]), "epochs_run": torch.tensor([3, 4])}
    whole = replace(whole, **told)
    for k in range(2):
        alone = whole.member(k)
        for name in (*told, "fingerprint"):
            assert list(getattr(alone, name)) == [getattr(whole, name)[k]]
        for name, value in alone.parameters.items():
            assert torch.equal(value, whole.parameters[name][k : k + 1])
    assert not torch.equal(*whole.parameters["temperature"])
    assert [fitted(n).repair.starts_frozen for n in ("temperature-scaling", "folds")] == [False] * 2
    assert whole.member(-1).f1 == whole.member(1).f1
    for outside in (-3, 2):
        with pytest.raises(InputError, match=str(outside)):
            whole.member(outside)
