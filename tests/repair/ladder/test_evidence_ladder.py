"""The ladder finds the evidence that was planted, says so, and reads no label it must not."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pandas as pd
import pytest
import torch
from planted_graphs import CLASSES, LADDER, climbed, planted, planted_exposure, test_accuracy

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.repair import EvidenceLadder, load_repair
from gnn_repair.repair.ladder.catalogue import LEARNED


def test_features_that_the_network_threw_away_are_found():
    fitted, data = climbed("features"), planted("features")[1]
    exposure = planted_exposure("features")
    frozen = test_accuracy(exposure.frozen_logits, data)
    assert frozen < 0.6
    assert test_accuracy(fitted.logits(exposure), data) > 0.9
    assert "features" in fitted.chosen[0]
    finding = fitted.findings().of("labels-features")
    assert finding.clear and finding.gain > 25
    assert not fitted.findings().of("labels").clear or fitted.findings().of("labels").gain < 20
    assert fitted.findings().advice()[0].startswith("add a skip connection")
    assert "the raw features, which the network no longer shows, are worth" in str(fitted).lower()


def test_labels_of_neighbours_are_found():
    fitted, data = climbed("labels"), planted("labels")[1]
    exposure = planted_exposure("labels")
    said = fitted.rung_log_probs(exposure)
    assert test_accuracy(said["labels"], data) > 0.97
    assert test_accuracy(said["labels"], data) > test_accuracy(said["set"], data) + 0.03
    assert "labels" in fitted.chosen[0]
    assert test_accuracy(fitted.logits(exposure), data) > 0.97


def test_frozen_stays_where_there_is_nothing_to_gain():
    fitted, exposure = climbed("nothing"), planted_exposure("nothing")
    assert fitted.chosen == ("frozen",)
    assert fitted.weights.tolist() == [[1.0] + [0.0] * len(LEARNED)]
    scaled = exposure.frozen_logits.log_softmax(2) / fitted.temperature.view(-1, 1, 1)
    torch.testing.assert_close(fitted.logits(exposure), scaled.log_softmax(2))
    assert torch.equal(fitted.predict(exposure), exposure.frozen_logits.argmax(2))
    assert fitted.findings().advice()[0].startswith("nothing to gain")
    assert "nothing clearly beats it" in str(fitted)


@pytest.mark.parametrize("told_by", ["features", "labels"])
def test_no_label_of_a_test_node_is_read(told_by):
    """A class that only test nodes carry, and labels that do not exist, change nothing."""
    data, exposure = planted(told_by)[1], planted_exposure(told_by)
    brief = replace(LADDER, budget=replace(LADDER.budget, epochs=6))
    masks = data.train_mask, data.val_mask
    usual = brief.fit(exposure, data.y, *masks, data=data, device="cpu")
    for planted_label in (CLASSES - 1, -1, 10**6):
        y = torch.where(data.test_mask[:, 0], planted_label, data.y)
        other = brief.fit(exposure, y, *masks, data=data, device="cpu")
        assert torch.equal(other.logits(exposure), usual.logits(exposure))
        assert torch.equal(other.weights, usual.weights)
        assert str(other) == str(usual)


def test_a_label_of_a_training_node_does_matter():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    brief = replace(LADDER, budget=replace(LADDER.budget, epochs=6), rungs=("labels",), clearly=0.0)
    y = torch.where(data.train_mask[:, 0], (data.y + 1) % CLASSES, data.y)
    masks = data.train_mask, data.val_mask
    told = [
        brief.fit(exposure, labels, *masks, data=data, device="cpu").rung_log_probs(exposure)
        for labels in (data.y, y)
    ]
    assert not torch.allclose(told[0]["labels"], told[1]["labels"])


def test_a_member_of_a_stack_is_what_it_would_be_alone():
    data, exposure = planted("labels", 2)[1], planted_exposure("labels", 2)
    brief = replace(LADDER, budget=replace(LADDER.budget, epochs=8))
    both = brief.fit(exposure, data.y, data.train_mask, data.val_mask, data=data, device="cpu")
    for s in range(2):
        masks = data.train_mask[:, s], data.val_mask[:, s]
        alone = brief.fit(exposure.member(s), data.y, *masks, data=data, device="cpu")
        told = alone.rung_log_probs(exposure.member(s))
        for name, values in both.rung_log_probs(exposure).items():
            torch.testing.assert_close(values[s], told[name][0], rtol=1e-3, atol=1e-3)
        assert both.chosen[s] == alone.chosen[0]


def test_what_is_loaded_says_and_predicts_the_same(tmp_path):
    fitted, exposure = climbed("features"), planted_exposure("features")
    fitted.save(tmp_path / "ladder.safetensors")
    again = load_repair(tmp_path / "ladder.safetensors")
    assert torch.equal(again.logits(exposure), fitted.logits(exposure))
    assert again.repair == fitted.repair
    assert str(again) == str(fitted)
    assert again.findings() == fitted.findings()
    assert again.fingerprint == fitted.fingerprint == exposure.fingerprint != ()
    # Set translation once as the paper fits it and thrice in folds, and the other rungs.
    assert fitted.num_parameters > 4 * fitted.ladder.rung("set").num_parameters(8, 3)
    assert again.num_parameters == fitted.num_parameters


def test_a_damaged_file_is_refused(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "ladder.safetensors"
    climbed("features").save(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    for name, change, said in DAMAGED:
        key = f"constants/{name}"
        changed = {**tensors, key: change(tensors[key].clone()).contiguous()}
        save_file(changed, path, metadata)
        with pytest.raises(FileFormatError, match="its checksum does not match"):
            load_repair(path)
        # As a file of an earlier version, which has no checksum.
        save_file(changed, path, {key: metadata[key] for key in metadata.keys() - {"checksum"}})
        with pytest.raises(FileFormatError, match=said):
            load_repair(path)
    del metadata["checksum"]
    for name, said in (("constants/weights", "lacks weights"), ("parameters/set/head.0.bias", "")):
        save_file({key: tensors[key] for key in tensors.keys() - {name}}, path, metadata)
        with pytest.raises(FileFormatError, match=said):
            load_repair(path)


DAMAGED = [
    ("log_probs", lambda value: value[:, 1:], "log_probs has shape"),
    ("weights", lambda value: value + 1, "shares that sum to 1"),
    ("weights", lambda value: value[:, 1:], "weights stand for 6 candidates, not 5"),
    ("chosen", lambda value: value + 7, "chosen of a ladder must lie in 0..6"),
    ("labels", lambda value: value + 3, "labels of a ladder must lie in -1..2"),
    ("folds", lambda value: value.flip(1), "are of other nodes"),
    ("temperature", lambda value: -value, "temperature must be positive"),
    ("signature", lambda value: value.double(), "signature has shape"),
]


def test_other_recipients_of_the_same_graph():
    fitted, exposure = climbed("labels"), planted_exposure("labels")
    nodes = torch.tensor([7, 3, 200])
    torch.testing.assert_close(
        fitted.logits(exposure.restrict(nodes)), fitted.logits(exposure)[:, nodes]
    )


def test_another_graph_falls_back_to_rungs_that_need_no_labels():
    fitted, exposure = climbed("labels"), planted_exposure("labels")
    elsewhere = planted_exposure("nothing")
    with pytest.raises(InputError, match="fitted on a model with other weights"):
        fitted.logits(elsewhere)
    with pytest.warns(UserWarning, match="only frozen, paper, set can speak here"):
        logits = fitted.unbound().logits(elsewhere)
    assert logits.shape == (1, 240, CLASSES)
    # The set rung alone is the mean of its copies, whatever graph they read.
    alone = replace(LADDER, rungs=("set",), clearly=0.0)
    data = planted("labels")[1]
    one = alone.fit(exposure, data.y, data.train_mask, data.val_mask, device="cpu")
    torch.testing.assert_close(
        one._inductive("set", exposure), one.rung_log_probs(exposure)["set"], rtol=1e-4, atol=1e-4
    )
    with pytest.raises(InputError, match="hold for the graph they were fitted on"):
        fitted.rung_log_probs(elsewhere)


def test_without_data_the_features_are_left_out_with_a_word():
    data, exposure = planted("features")[1], planted_exposure("features")
    brief = replace(LADDER, budget=replace(LADDER.budget, epochs=2))
    fitted = brief.fit(exposure, data.y, data.train_mask, data.val_mask, device="cpu")
    assert fitted.candidates == ("frozen", "paper", "set", "labels", "labels-reweighting")
    assert "Left out, since no raw features were given" in str(fitted)


def test_findings_compare_each_rung_with_the_one_below():
    fitted = climbed("features", 2)
    frame = fitted.findings().to_frame()
    right, judged = fitted.right_out_of_fold()
    names = list(fitted.candidates)
    labels = fitted.constants["labels"]
    for _, row in frame.iterrows():
        for_class = judged if row["label"] is pd.NA else labels == int(row["label"])
        shares = [
            (right[:, names.index(name)] & for_class).sum(1) / for_class.sum(1)
            for name in (row["rung"], row["above"], "frozen")
        ]
        assert row["gain"] == pytest.approx(100 * float((shares[0] - shares[1]).mean()), abs=1e-4)
        over = 100 * float((shares[0] - shares[2]).mean())
        assert row["over_frozen"] == pytest.approx(over, abs=1e-4)
        assert row["deviation"] == pytest.approx(
            100 * float((shares[0] - shares[1]).std()), abs=1e-4
        )


def test_settings_that_cannot_be_are_refused():
    for wrong, said in (
        ({"rungs": ("labels", "stairs")}, "'stairs'"),
        ({"rungs": ()}, "no rung"),
        ({"combine": "vote"}, "combine is 'vote'"),
        ({"clearly": -1}, "clearly is -1"),
        ({"clearly": "very"}, "clearly is 'very'"),
        ({"folds": 1}, "folds is 1"),
        ({"folds": 2.5}, "folds is 2.5"),
        ({"repeats": 0}, "repeats is 0"),
        ({"fold_share": 1.5}, "fold_share is 1.5"),
    ):
        with pytest.raises(InputError, match=said):
            EvidenceLadder(**wrong)


def test_data_of_another_graph_is_refused():
    data, exposure = planted("features")[1], planted_exposure("features")
    smaller, broken, empty = data.clone(), data.clone(), data.clone()
    smaller.x = data.x[:-1]
    broken.x = torch.full_like(data.x, float("nan"))
    empty.edge_index = None
    for wrong, said in ((smaller, "239 nodes"), (broken, "NaN"), (empty, "no edge_index")):
        with pytest.raises(InputError, match=said):
            LADDER.fit(exposure, data.y, data.train_mask, data.val_mask, data=wrong, device="cpu")


def test_repeated_folds_make_more_copies_and_no_warning():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    twice = replace(LADDER, repeats=2, rungs=("set",), budget=replace(LADDER.budget, epochs=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = twice.fit(exposure, data.y, data.train_mask, data.val_mask, device="cpu")
    assert fitted.parameters["set/head.0.weight"].shape[1] == 6
