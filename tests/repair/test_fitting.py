"""Fitting: what is learned, from which nodes, in which batches; what is refused."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair import EvidenceLadder, train_backbone
from gnn_repair.errors import InputError, SplitError
from gnn_repair.repair import REPAIRS, NodeTranslation, RefitHead, SetTranslation
from gnn_repair.repair.folds import CrossFitted
from gnn_repair.repair.inputs import Description, RepairInputs
from gnn_repair.repair.targets import RepairTrainee, Targets, prepare
from gnn_repair.training import Budget, Progress, in_words
from tests.helpers.repair.toy_exposures import toy_exposure, toy_frozen, toy_graph

DATA = toy_graph()
TRAIN, VAL, Y = DATA.train_mask, DATA.val_mask, DATA.y
MASKS = (Y, TRAIN, VAL)


def trainee(predict, parameters, train: Targets, val: Targets, tables=None, seed: int = 0):
    """In batches of four, without dropout."""
    tables = tables or (lambda p: None)
    return RepairTrainee(
        parameters, tables, predict, train, val, dropout=0.0, batch_size=4, seed=seed
    )


def test_a_minibatch_gradient_is_that_of_its_targets():
    """Two steps of four targets against the definition, with the shuffled order read off."""
    exposure, repair, val = toy_exposure("h2gcn"), SetTranslation(hidden=16), VAL.clone()
    inputs = RepairInputs(exposure)
    p = {name: value + 0.1 for name, value in repair.initial(inputs).items()}
    logits = repair.corrected(p, inputs, repair.tables(p, inputs), inputs.everyone, None)
    # Member 1 has fewer nodes to be judged on, the first of which it is right about.
    val[: int(((logits[1].argmax(1) == Y) & VAL[:, 1]).nonzero()[-1]), 1] = False
    task = prepare(exposure, Y, TRAIN, val, device="cpu")
    made = trainee(
        lambda q, tables, targets, noise: repair.corrected(q, inputs, tables, targets, noise),
        p, task.train_targets, task.val_targets, lambda q: repair.tables(q, inputs),
    )  # fmt: skip
    made.begin_epoch()
    for step in range(2):
        found = made.losses(made.trunk())
        for s in range(2):
            chosen = made.positions[s, 4 * step : 4 * step + 4]
            expected = torch.nn.functional.cross_entropy(logits[s, chosen], Y[chosen])
            torch.testing.assert_close(found[s], expected)
    right = (logits.argmax(2) == Y) & val.t()
    assert made.scores(made.trunk()).tolist() == right.sum(1).tolist()


def of_sizes(*sizes: int, seed: int = 0) -> RepairTrainee:
    index = torch.zeros(len(sizes), max(sizes), dtype=torch.long)
    for s, size in enumerate(sizes):
        index[s, :size] = torch.arange(size)
    shares = 1 / (1.0 + torch.arange(max(sizes))).expand(len(sizes), -1)
    own = Targets(index, index % 3, torch.tensor(sizes), shares=shares)
    start = torch.zeros(len(sizes), 1)
    return trainee(lambda *_: torch.zeros(len(sizes), 4, 3), {"w": start}, own, own, seed=seed)


def test_shuffles_do_not_depend_on_the_others_and_differ_by_epoch_and_seed():
    together, alone, other = of_sizes(6, 11, 4), of_sizes(6), of_sizes(6, seed=1)
    orders = []
    for _ in range(3):
        for one in (together, alone, other):
            one.begin_epoch()
        assert torch.equal(together.positions[0, :6], alone.positions[0, :6])
        # What fits into one batch is not shuffled: alone it would not be either.
        assert together.positions[2, :4].tolist() == [0, 1, 2, 3]
        orders.append(tuple(alone.positions[0, :6].tolist()))
        assert sorted(orders[-1]) == list(range(6))
        assert orders[-1] != tuple(other.positions[0, :6].tolist())
    assert len(set(orders)) == 3
    # A member learns only where it has a target, and from its shares, whatever steps others take.
    seen, losses = [], []
    for _ in range(together.steps_per_epoch):
        losses.append(together.losses(None)[0])
        seen.append(together.learning().tolist())
    torch.testing.assert_close(sum(losses), sum(alone.losses(None)[0] for _ in range(2)))
    assert seen == [[True, True, True], [True, True, False], [False, True, False]]


def test_rows_of_mostly_zeros_are_multiplied_as_they_are():
    generator = torch.Generator().manual_seed(0)
    state = torch.diag(torch.arange(40, dtype=torch.float64) + 1).unsqueeze(0)
    logits = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 43, 5, generator=generator, dtype=torch.float64)
    description = Description(state, logits)
    assert description.shared is not None and description.shared.sparse is not None
    expected = torch.cat([state.expand(2, -1, -1), logits], 2) @ weight
    torch.testing.assert_close(description.times(weight), expected)
    for count in (1, 40):  # a few rows, and so many that all are multiplied
        index = torch.arange(39, 39 - count, -1).expand(2, -1)
        (found,) = description.times_at(index, weight)
        torch.testing.assert_close(found, expected[:, index[0]])


# How fitting goes is shown when asked for, and told to Python's logging otherwise.


def short(epochs: int = 40) -> NodeTranslation:
    return NodeTranslation(hidden=4, epochs=epochs)


SHOWN = [
    short(),
    CrossFitted(short(3), folds=2),
    EvidenceLadder(rungs=("messages",), folds=2, epochs=3),
]


@pytest.mark.parametrize("repair", SHOWN)
def test_a_bar_is_shown_when_asked_for(repair, monkeypatch):
    stream, exposure, epochs = io.StringIO(), toy_exposure("gcn"), repair.most_epochs
    monkeypatch.setattr(sys, "stderr", stream)
    repair.fit(exposure, *MASKS, device="cpu")
    assert stream.getvalue() == ""
    repair.fit(exposure, *MASKS, device="cpu", progress=True)
    last = stream.getvalue().split("\r")[-1]
    assert last.startswith(repair.title) and f"{epochs}/{epochs}" in last and "nodes right" in last
    monkeypatch.setattr(sys, "stderr", None)  # a program without streams
    repair.fit(exposure, *MASKS, device="cpu", progress=True)


def test_the_log_hears_epochs_and_results(caplog):
    heard: list[Progress] = []
    with caplog.at_level(logging.DEBUG, logger="gnn_repair"):
        for told in ({}, {"on_progress": heard.append}):
            fitted = short().fit(toy_exposure("gcn"), *MASKS, device="cpu", **told)
    every = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    epochs = every[len(heard) :]
    assert len(heard) > 2 and every[: len(heard)] == epochs
    for text, progress in zip(epochs, heard, strict=True):
        assert f"epoch {progress.epoch} of 40" in text and in_words(progress) in text
    results = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert results == [str(fitted)] * 2
    assert {record.name for record in caplog.records} == {"gnn_repair.repair"}


@pytest.mark.parametrize(
    ("active", "best", "outputs", "said"),
    [
        (1, -1.0, "classes", "1 member training"),
        (2, 61.5, "classes", "2 members training, 61.5 validation nodes right"),
        (2, 0.615, "labels", "2 members training, validation micro-F1 61.5 %"),
    ],
)
def test_progress_in_words(active, best, outputs, said):
    assert in_words(Progress(3, 40, active, best), outputs) == said


# What a fit cannot use is named in one sentence, whichever repair is asked.
BAD = {
    "zeros and ones": ({"val": VAL[:, 0].long()}, SplitError, r"val .* val.bool\(\)"),
    "wide": ({"val": VAL[:, [0, 1, 0]]}, SplitError, "val has 3 splits"),
    "overlap": ({"val": VAL | TRAIN}, SplitError, "is in train and in val"),
    "empty": ({"train": TRAIN & torch.tensor([True, False])}, SplitError, "train of member 1"),
    "unlabelled": ({"y": torch.where(TRAIN[:, 1], -1, Y)}, InputError, r"node \d+ has label -1"),
    "column": ({"y": Y.unsqueeze(1)}, InputError, r"y has shape \[30, 1\]"),
    "frozen": ({"exposure": toy_frozen("gcn")}, InputError, "exposure is Frozen"),
    "not recipients": (
        {"exposure": toy_exposure("gcn").restrict([1, 2])},
        SplitError,
        "recipients",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["set-translation", "temperature-scaling"])
def test_what_cannot_be_used_is_named(name, case):
    change, error, said = BAD[case]
    given = {"exposure": toy_exposure("gcn"), "y": Y, "train": TRAIN, "val": VAL, **change}
    with pytest.raises(error, match=said):
        REPAIRS[name]().fit(**given, device="cpu")


def test_what_a_repair_reads_must_be_there_and_finite():
    exposure = toy_exposure("gcn")
    state = exposure.state.clone()
    state[0, 3, 1] = torch.nan
    for repair, change, said in (
        (RefitHead(), {"embedding": None}, r"no embedding .* dataclasses.replace\(exposure, emb"),
        (SetTranslation(), {"state": state}, "NaN"),
    ):
        with pytest.raises(InputError, match=said):
            repair.fit(replace(exposure, **change), *MASKS, device="cpu")


@pytest.mark.parametrize("name", ["temperature-scaling", "set-translation", "evidence-ladder"])
def test_gradients_that_are_off_outside_are_on_within(name):
    exposure, given = toy_exposure("gcn"), {"data": toy_graph(), "device": "cpu"}
    repair, budget = REPAIRS.get(name, EvidenceLadder)(), Budget(2, None, 0.01, 0.0)
    repair = replace(repair, budget=budget) if hasattr(repair, "budget") else repair
    wanted = repair.fit(exposure, *MASKS, **given).logits(exposure)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            fitted = repair.fit(exposure, *MASKS, **given)
            train_backbone("sgc", toy_graph(), [0], device="cpu", budget=budget)
        assert torch.equal(fitted.logits(exposure), wanted)
    with torch.inference_mode():
        made = replace(exposure, state=exposure.state * 1)
    with pytest.raises(InputError, match="made under torch"):
        repair.fit(made, *MASKS, **given)


def test_the_ladder_is_advised_where_it_can_be_climbed():
    exposure = toy_exposure("gcn")
    graphs = replace(exposure, graph_starts=torch.arange(exposure.num_nodes + 1))
    for one, climbs in ((exposure, True), (graphs, False)):
        fitted = SetTranslation(epochs=1, lr=1e-9).fit(one, *MASKS, device="cpu")
        for said in (fitted.advice, str(fitted)):
            assert "more validation nodes" in said and ("EvidenceLadder" in said) is climbs


@pytest.mark.parametrize("embedding", [True, False])
def test_who_learns_no_labels_names_who_does(embedding):
    exposure = replace(toy_exposure("gcn"), outputs="labels")
    exposure = exposure if embedding else replace(exposure, embedding=None)
    with pytest.raises(InputError, match=r"outputs are labels, .* Reweighting") as caught:
        REPAIRS["temperature-scaling"]().fit(exposure, *MASKS, device="cpu")
    assert ("RefitHead" in str(caught.value)) is embedding


def test_what_a_repair_of_one_s_own_draws_follows_its_seed():
    drawn = []

    class Own(NodeTranslation):
        def tables(self, p, inputs, whole=False):
            drawn.append(float(torch.rand(())))

    for seed in (1, 1, 2):
        Own(hidden=4, epochs=1, seed=seed).fit(toy_exposure("gcn"), *MASKS, device="cpu")
    assert drawn[0] == drawn[len(drawn) // 3] != drawn[-len(drawn) // 3]


def two_epochs(**settings):
    return SetTranslation(hidden=4, budget=Budget(2, None, 0.01, 0.0), **settings)


def test_nodes_are_masks_or_numbers_labels_of_any_whole_type_and_batches_any_size():
    exposure = toy_exposure("gcn").member(0)
    train, val = TRAIN[:, 0], VAL[:, 0]
    numbers = [mask.nonzero().view(-1) for mask in (train, val)]
    usual = two_epochs().fit(exposure, Y, train, val, device="cpu").logits(exposure)
    assert usual.shape == (30, 3)
    for given in (
        {"train": numbers[0], "val": numbers[1]},
        {"train": numbers[0].tolist(), "val": numbers[1].tolist()},
        {"train": TRAIN[:, :1], "val": numbers[1]},
        {"train": train.numpy(), "val": numbers[1].numpy()},
        {"y": Y.to(torch.int32)},
        {"y": Y.to(torch.uint8)},
        {"batch_size": np.int64(100)},
        {"data": "not looked at"},
    ):
        whole = {"y": Y, "train": train, "val": val, **given}
        found = two_epochs().fit(exposure, **whole, device="cpu")
        assert torch.equal(found.logits(exposure), usual)
        assert torch.equal(found.predict(exposure), usual.argmax(1))
    with pytest.warns(DeprecationWarning, match="train=") as caught:
        found = two_epochs().fit(exposure, Y, train_mask=train, val=val, device="cpu")
    assert caught[0].filename == __file__ and torch.equal(found.logits(exposure), usual)


@pytest.mark.parametrize("repair", [SetTranslation, RefitHead, EvidenceLadder])
def test_epochs_and_rates_are_settings(repair):
    usual = repair().budget
    found = repair(epochs=7, lr=0.5)
    assert found.budget == replace(usual, epochs=7, learning_rate=0.5)
    # Another setting leaves them as they are.
    assert replace(found, seed=3).budget == found.budget
    for wrong in ({"epochs": 0}, {"epochs": 2.5}, {"lr": 0}, {"lr": float("nan")}):
        with pytest.raises(InputError, match=f"{repair.__name__}: {next(iter(wrong))} is"):
            repair(**wrong)


def test_warnings_point_at_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        without = TRAIN & (Y != 2).unsqueeze(1)
        two_epochs().fit(toy_exposure("gcn"), Y, without, VAL, device="cpu")
        wild = RefitHead(budget=Budget(4, None, 1e300, 0.0))
        fitted = wild.fit(toy_exposure("gcn"), *MASKS, device="cpu")
    assert fitted.diverged.tolist() == [True, True]
    epochs = fitted.best_epoch.tolist()
    said = [(f"member {s} ", "class 2") for s in range(2)]
    said += [(f"member {s} diverged", f"epoch {epochs[s]} ") for s in range(2)]
    assert len(caught) == len(said)
    for warning, words in zip(caught, said, strict=True):
        assert warning.filename == __file__ and all(w in str(warning.message) for w in words)
