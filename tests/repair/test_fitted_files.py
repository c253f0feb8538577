"""Fitted repairs: to which model they belong, how they are kept, what they say of themselves."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch_geometric.data import Data

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import (
    REPAIRS,
    CorrectAndSmooth,
    FittedRepair,
    NodeTranslation,
    RefitHead,
    Reweighting,
    TemperatureScaling,
)
from gnn_repair.repair.base import TRY, TrainedRepair, repair_of
from tests.helpers.repair.toy_exposures import (
    CLASSES,
    Net,
    net,
    toy_exposure,
    toy_frozen,
    toy_graph,
)

# Saving, loading, and exposures that do not match.

DATA = toy_graph()


def fitted(name: str, backbone: str = "sage"):
    repair = REPAIRS[name]()
    if isinstance(repair, TrainedRepair):
        repair = replace(repair, budget=replace(repair.budget, epochs=3, epoch_zero=False))
    return repair.fit(toy_exposure(backbone), DATA.y, DATA.train_mask, DATA.val_mask)


@pytest.mark.parametrize("name", list(REPAIRS))
def test_an_exposure_of_another_model_is_refused(name):
    repair, exposure = fitted(name), toy_exposure("sage")
    with pytest.raises(InputError, match="state width 8 but the exposure has 9"):
        repair.member_logits(toy_exposure("sgc"))
    with pytest.raises(InputError, match="members 2 but the exposure has 1"):
        repair.member_logits(exposure.member(0))


def test_inconsistent_parameters_are_refused(tmp_path):
    from safetensors import safe_open

    path = tmp_path / "repair.safetensors"
    fitted("set-translation").save(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]  # as files of earlier versions were written
    tensors = load_file(path)
    key = "parameters/head.0.weight"
    save_file({**tensors, key: tensors[key][:, 1:].contiguous()}, path, metadata)
    with pytest.raises(FileFormatError, match="inconsistent"):
        FittedRepair.load(path)
    save_file({**tensors, key: tensors[key][:1].contiguous()}, path, metadata)
    with pytest.raises(FileFormatError, match="members"):
        FittedRepair.load(path)
    save_file({name: v for name, v in tensors.items() if name != "diverged"}, path, metadata)
    with pytest.raises(FileFormatError, match="incomplete"):
        FittedRepair.load(path)


def test_a_fitted_repair_cannot_be_changed():
    repair = fitted("set-translation")
    with pytest.raises(TypeError):
        repair.parameters["head.0.weight"] = torch.zeros(1)
    with pytest.raises(AttributeError):
        repair.width = 3


# A repair belongs to the model it was fitted on, whatever graph that model sees.
BUDGET = replace(NodeTranslation().budget, epochs=2, epoch_zero=False)
METHOD = NodeTranslation(hidden=4, budget=BUDGET)


def exposed(model: nn.Module, data: Data = DATA) -> Exposure:
    return expose(model, data)


def fitted_binding(exposure: Exposure):
    masks = DATA.train_mask[:, : exposure.num_members], DATA.val_mask[:, : exposure.num_members]
    return METHOD.fit(exposure, DATA.y, *masks, device="cpu")


def test_another_model_of_equal_width_is_refused():
    repair = fitted_binding(exposed(net(0)))
    with pytest.raises(InputError, match=r"other weights .* or \.unbound\(\)"):
        repair.member_logits(exposed(net(1)))
    with pytest.raises(InputError, match="other weights"):
        repair.shift(exposed(net(1)))
    with pytest.raises(InputError, match="other weights"):
        repair.predict(exposed(net(1)))


def test_whoever_knows_may():
    repair, other = fitted_binding(exposed(net(0))), exposed(net(1))
    assert bool(repair.unbound().member_logits(other).isfinite().all())
    own = exposed(net(0))
    assert torch.equal(repair.unbound().member_logits(own), repair.member_logits(own))


def test_the_same_model_on_another_graph_is_accepted():
    model = net(0)
    other = Data(x=DATA.x.flip(0)[:20], edge_index=torch.arange(20).repeat(2, 1), y=DATA.y[:20])
    assert exposed(model, other).fingerprint == exposed(model).fingerprint
    assert fitted_binding(exposed(model)).member_logits(exposed(model, other)).shape == (
        1,
        20,
        CLASSES,
    )


@pytest.mark.parametrize("change", ["first", "last", "buffer"])
def test_every_weight_counts(change):
    model, other = net(0), net(0)
    with torch.no_grad():
        if change == "buffer":
            other.offset[3] += 1e-9
        else:
            getattr(other, change).bias[0] += 1e-9
    assert exposed(model).fingerprint != exposed(other).fingerprint


def test_neither_device_nor_a_wider_type_counts():
    model = Net(0).eval()
    single = Data(x=DATA.x.float(), edge_index=DATA.edge_index, y=DATA.y)
    assert expose(model, single).fingerprint == expose(Net(0).double().eval(), DATA).fingerprint


def test_members_have_fingerprints_of_their_own():
    exposure = toy_exposure("gcn")
    assert len(set(exposure.fingerprint)) == 2
    assert exposure.member(1).fingerprint == exposure.fingerprint[1:]
    repair = fitted_binding(exposure)
    assert repair.member(1).member_logits(exposure.member(1)).shape == (1, 30, CLASSES)
    with pytest.raises(InputError, match="other weights"):
        repair.member(1).member_logits(exposure.member(0))
    swapped = replace(exposure, fingerprint=exposure.fingerprint[::-1])
    with pytest.raises(InputError, match="member 0"):
        repair.member_logits(swapped)


def test_a_backbone_and_its_network_are_exposed_differently():
    """Both are 8 wide, but h is not the same: a repair of one must not serve the other."""
    exposure = toy_exposure("gcn")
    network = expose(toy_frozen("gcn").network(0), DATA)
    with pytest.raises(InputError):
        fitted_binding(exposure).member(0).member_logits(network)


def test_cuts_of_an_exposure_stay_the_same_model(tmp_path):
    exposure = toy_exposure("sage")
    repair = fitted_binding(exposure)
    part = exposure.restrict(torch.tensor([5, 2]))
    assert torch.equal(repair.member_logits(part), repair.member_logits(exposure)[:, [5, 2]])
    exposure.save(tmp_path / "exposure")
    again = Exposure.load(tmp_path / "exposure")
    assert again.fingerprint == exposure.fingerprint
    repair.save(tmp_path / "repair")
    assert torch.equal(
        FittedRepair.load(tmp_path / "repair").member_logits(again), repair.member_logits(exposure)
    )
    repair.unbound().save(tmp_path / "repair")
    assert FittedRepair.load(tmp_path / "repair").fingerprint is None


def test_an_exposure_made_by_hand_names_no_model():
    exposure = replace(toy_exposure("sage"), fingerprint=())
    repair = fitted_binding(exposure)
    repair.member_logits(exposure)
    with pytest.raises(InputError, match="the repair does not say which model"):
        repair.member_logits(toy_exposure("sage"))
    with pytest.raises(InputError, match="the exposure does not say which model"):
        fitted_binding(toy_exposure("sage")).member_logits(exposure)
    with pytest.raises(InputError, match="fingerprint has 1 entries for 2 members"):
        replace(exposure, fingerprint=("a",))


# Bounds of repairs from both sides: settings, saved constants, sizes of tables, durations.


def masks():
    return DATA.train_mask[:, :2], DATA.val_mask[:, :2]


@pytest.mark.parametrize(
    ("name", "value"), [("hidden", 2**40), ("hidden", -1), ("dropout", 1.5), ("seed", -1)]
)
def test_settings_in_files_are_those_that_could_be_given(name, value):
    settings = asdict(Reweighting())
    assert repair_of("Reweighting", settings) == Reweighting()
    for wrong in (
        {**settings, name: value},
        {**settings, "budget": {**settings["budget"], "epochs": 0}},
    ):
        with pytest.raises(InputError, match=f"{name} is|epochs is"):
            repair_of("Reweighting", wrong)
    with pytest.raises(InputError, match="it holds a repair named 'Nothing'"):
        repair_of("Nothing", {})


def test_constants_of_smoothing_in_files():
    exposure = toy_exposure("gcn")
    method = CorrectAndSmooth(layers=2)
    fitted = method.fit(exposure, DATA.y, *masks(), device="cpu")
    method.check_constants(fitted)
    held = fitted.constants

    def with_(name, place, value):
        changed = held[name].clone()
        changed[place] = value
        return {**held, name: changed}

    nodes, classes = held["labels"].shape[1], exposure.num_classes
    for place, label in ((0, -1), (0, classes - 1)):
        method.check_constants(replace(fitted, constants=with_("labels", (1, place), label)))
    wrong = {
        "labels": [
            with_("labels", (1, 0), classes),
            with_("labels", (1, 0), -2),
            {**held, "labels": held["labels"].int()},
        ],
        "strengths": [
            with_("strengths", (1, 0), 0.6),
            {**held, "strengths": held["strengths"][:, :2]},
        ],
        "entries": [
            with_("entries", (0, 1, 0), nodes),
            with_("entries", (0, 0, 0), -1),
            {**held, "entries": held["entries"][:, :1]},
        ],
        "nothing else": [{**held, "more": held["labels"]}],
    }
    for words, cases in wrong.items():
        for constants in cases:
            with pytest.raises(InputError, match=words):
                method.check_constants(replace(fitted, constants=constants))


# What fitted values say of themselves, and whether anything was learned.


def planted_hopeless() -> FittedRepair:
    """Member 0's frozen model is perfect on validation, so nothing can be strictly better."""
    exposure = toy_exposure("gcn")
    logits = exposure.frozen_logits.clone()
    logits[0] = 0
    logits[0, torch.arange(30), DATA.y] = 5
    logits[1, torch.arange(30), (DATA.y + 1) % 3] = 1.5
    logits[1, torch.arange(30), DATA.y] = 1.4
    shifted = replace(
        exposure,
        frozen_logits=logits,
        fixed_logits=exposure.fixed_logits + logits - exposure.frozen_logits,
    )
    method = NodeTranslation(hidden=16, budget=replace(NodeTranslation().budget, epochs=60))
    method = replace(method, budget=replace(method.budget, learning_rate=0.05))
    return method.fit(shifted, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")


def test_a_repair_that_brings_nothing_says_so_by_member():
    fitted = planted_hopeless()
    assert fitted.unchanged.tolist() == [True, False]
    assert fitted.best_epoch[1] > 0
    assert "member 0" in repr(fitted) and TRY in repr(fitted) and "evidence ladder" in TRY
    assert "member 0" in fitted.advice and fitted.advice.endswith(TRY)
    assert fitted.member(1).advice == ""
    assert fitted.member(1).unchanged.tolist() == [False]
    assert "nothing learned" not in repr(fitted.member(1))
    assert str(fitted) == repr(fitted)


def test_what_has_no_epoch_zero_is_never_unchanged():
    masks = (DATA.y, DATA.train_mask, DATA.val_mask)
    temperature = TemperatureScaling().fit(toy_exposure("gcn"), *masks, device="cpu")
    assert temperature.best_epoch.tolist() == [0, 0]
    assert temperature.unchanged.tolist() == [False, False]
    head = RefitHead(budget=replace(RefitHead().budget, epochs=2))
    fitted = head.fit(toy_exposure("gcn"), *masks, device="cpu")
    assert fitted.unchanged.tolist() == [False, False]


def test_divergence_is_said():
    fitted = planted_hopeless()
    wild = replace(fitted, diverged=torch.tensor([False, True]))
    assert "member 0 (frozen prediction kept); member 1 diverged; try the" in repr(wild)


def test_a_member_alone_has_its_own_share_of_everything():
    whole = TemperatureScaling().fit(
        toy_exposure("gcn"), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu"
    )
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
