"""Saving, loading, and exposures that do not match."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.repair import REPAIRS, FittedRepair, SetTranslation
from gnn_repair.repair.base import TrainedRepair
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

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


def test_a_repair_of_float64_serves_a_float32_exposure():
    repair = fitted("set-translation").unbound()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits = repair.member_logits(toy_exposure("sage", torch.float32))
    assert logits.dtype == torch.float64
    assert isinstance(repair.repair, SetTranslation)
