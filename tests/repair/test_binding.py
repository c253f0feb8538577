"""A repair belongs to the model it was fitted on, whatever graph that model sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import FittedRepair, NodeTranslation
from tests.helpers.repair.toy_exposures import (
    CLASSES,
    Net,
    net,
    toy_exposure,
    toy_frozen,
    toy_graph,
)

DATA = toy_graph()
BUDGET = replace(NodeTranslation().budget, epochs=2, epoch_zero=False)
METHOD = NodeTranslation(hidden=4, budget=BUDGET)


def exposed(model: nn.Module, data: Data = DATA) -> Exposure:
    return expose(model, data)


def fitted(exposure: Exposure):
    masks = DATA.train_mask[:, : exposure.num_members], DATA.val_mask[:, : exposure.num_members]
    return METHOD.fit(exposure, DATA.y, *masks, device="cpu")


def test_another_model_of_equal_width_is_refused():
    repair = fitted(exposed(net(0)))
    with pytest.raises(InputError, match=r"other weights .* or \.unbound\(\)"):
        repair.member_logits(exposed(net(1)))
    with pytest.raises(InputError, match="other weights"):
        repair.shift(exposed(net(1)))
    with pytest.raises(InputError, match="other weights"):
        repair.predict(exposed(net(1)))


def test_whoever_knows_may():
    repair, other = fitted(exposed(net(0))), exposed(net(1))
    assert bool(repair.unbound().member_logits(other).isfinite().all())
    own = exposed(net(0))
    assert torch.equal(repair.unbound().member_logits(own), repair.member_logits(own))


def test_the_same_model_on_another_graph_is_accepted():
    model = net(0)
    other = Data(x=DATA.x.flip(0)[:20], edge_index=torch.arange(20).repeat(2, 1), y=DATA.y[:20])
    assert exposed(model, other).fingerprint == exposed(model).fingerprint
    assert fitted(exposed(model)).member_logits(exposed(model, other)).shape == (1, 20, CLASSES)


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
    repair = fitted(exposure)
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
        fitted(exposure).member(0).member_logits(network)


def test_cuts_of_an_exposure_stay_the_same_model(tmp_path):
    exposure = toy_exposure("sage")
    repair = fitted(exposure)
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
    repair = fitted(exposure)
    repair.member_logits(exposure)
    with pytest.raises(InputError, match="the repair does not say which model"):
        repair.member_logits(toy_exposure("sage"))
    with pytest.raises(InputError, match="the exposure does not say which model"):
        fitted(toy_exposure("sage")).member_logits(exposure)
    with pytest.raises(InputError, match="fingerprint has 1 entries for 2 members"):
        replace(exposure, fingerprint=("a",))
