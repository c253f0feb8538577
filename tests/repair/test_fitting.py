"""Fitting: what is learned, from which nodes, in which batches; what is refused."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from gnn_repair import EvidenceLadder
from gnn_repair.errors import InputError, SplitError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import REPAIRS, NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.folds import CrossFitted
from gnn_repair.repair.inputs import Description
from gnn_repair.repair.targets import RepairTrainee, Targets, prepare
from gnn_repair.training import Budget, Progress, in_words
from tests.helpers.hand_made import hand_made
from tests.helpers.repair.toy_exposures import toy_exposure, toy_frozen, toy_graph

# Fitting: what is learned, from which nodes, in which batches.

DATA = toy_graph()
EXPERTS = 12


def brief(repair, epochs: int = 6, **changes):
    budget = replace(repair.budget, epochs=epochs, learning_rate=0.01, epoch_zero=False)
    settings = {"budget": budget, "dropout": 0.0, **changes}
    if not isinstance(repair, RefitHead):
        settings["hidden"] = 16
    return replace(repair, **settings)


def planted() -> tuple[Exposure, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each recipient hears four loud distractors and one quiet expert, whose state is marked.

    The expert's contribution favours the true class; the distractors favour classes at random.
    Neither h_v nor z⁰_v tells the class, so only who looks at the set can find it.
    """
    nodes, classes, width = 400, 3, 4
    generator = torch.Generator().manual_seed(0)
    speaks = torch.randint(classes, (nodes,), generator=generator)
    contributions = torch.eye(classes, dtype=torch.float64)[speaks] * 3
    state = 0.1 * torch.randn(nodes, width, generator=generator, dtype=torch.float64)
    state[:EXPERTS, 0] += 2
    expert = torch.randint(EXPERTS, (nodes, 1), generator=generator)
    others = torch.randint(EXPERTS, nodes, (nodes, 4), generator=generator)
    rows = torch.cat([expert, others], dim=1).view(-1)
    coefficients = torch.tensor([0.08, 0.23, 0.23, 0.23, 0.23]).double().repeat(nodes)
    exposure = hand_made(
        torch.arange(nodes + 1) * 5,
        rows,
        coefficients.unsqueeze(0),
        contributions.unsqueeze(0),
        torch.zeros(1, nodes, classes, dtype=torch.float64),
        state=state.unsqueeze(0),
        messages=state.unsqueeze(0),
    )
    place = torch.arange(nodes)
    return exposure, speaks[expert.squeeze(1)], place % 4 < 2, place % 4 == 2


def test_reweighting_finds_the_planted_expert():
    exposure, y, train, val = planted()
    test = ~(train | val)
    repair = replace(
        Reweighting(hidden=32), budget=replace(Reweighting().budget, learning_rate=5e-3)
    )
    fitted = repair.fit(exposure, y, train, val, device="cpu")
    before = (exposure.frozen_logits[0].argmax(1) == y)[test].double().mean()
    after = (fitted.predict(exposure) == y)[test].double().mean()
    assert before < 0.65
    assert after > 0.95
    shares = fitted.coefficients(exposure)[0].view(-1, 5)
    assert float(shares[:, 0].mean()) > 0.5


def test_the_head_learns_a_planted_boundary():
    exposure, _, train, val = planted()
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(1, 400, 6, generator=generator, dtype=torch.float64) * 50 + 7
    y = (embedding[0, :, :3] - 7).argmax(1)
    repair = RefitHead(budget=replace(RefitHead().budget, learning_rate=0.05))
    fitted = repair.fit(replace(exposure, embedding=embedding), y, train, val, device="cpu")
    test = ~(train | val)
    predicted = fitted.predict(replace(exposure, embedding=embedding))
    assert float((predicted == y)[test].double().mean()) > 0.93
    assert fitted.num_parameters == 3 * 7


@pytest.mark.parametrize(
    "repair", [Reweighting(), SetTranslation(), NodeTranslation(), RefitHead()]
)
def test_nodes_never_seen_in_training(repair):
    """Fitted on the masks' nodes alone, a repair is the same and works on all the others."""
    exposure = toy_exposure("h2gcn")
    seen = exposure.restrict((DATA.train_mask | DATA.val_mask).any(1))
    everywhere = brief(repair).fit(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    fitted = brief(repair).fit(seen, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    torch.testing.assert_close(fitted.member_logits(exposure), everywhere.member_logits(exposure))


@pytest.mark.parametrize("repair", [Reweighting(), SetTranslation(), NodeTranslation()])
def test_one_batch_of_everything_is_the_full_batch(repair):
    exposure = toy_exposure("sgc")
    arguments = (exposure, DATA.y, DATA.train_mask, DATA.val_mask)
    full = brief(repair).fit(*arguments, device="cpu")
    one = brief(repair).fit(*arguments, device="cpu", batch_size=1000)
    torch.testing.assert_close(
        full.member_logits(exposure), one.member_logits(exposure), rtol=0, atol=0
    )


@pytest.mark.parametrize("repair", [Reweighting(), SetTranslation(), NodeTranslation()])
def test_minibatches_repeat_with_the_seed_and_train(repair):
    exposure = toy_exposure("mixhop")
    arguments = (exposure, DATA.y, DATA.train_mask, DATA.val_mask)
    first, again = (
        brief(repair, dropout=0.2).fit(*arguments, device="cpu", batch_size=4) for _ in range(2)
    )
    assert torch.equal(first.member_logits(exposure), again.member_logits(exposure))
    full = brief(repair, dropout=0.2).fit(*arguments, device="cpu")
    assert not torch.allclose(first.member_logits(exposure), full.member_logits(exposure))


def test_a_minibatch_gradient_is_that_of_its_targets():
    """Two steps of four targets against the definition, with the shuffled order read off."""
    exposure, repair = toy_exposure("h2gcn"), brief(SetTranslation())
    from gnn_repair.repair.inputs import RepairInputs

    inputs = RepairInputs(exposure)
    task = prepare(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")
    p = repair.initial(inputs)
    for value in p.values():
        value.add_(0.1).requires_grad_()
    made = RepairTrainee(
        p,
        lambda q: repair.tables(q, inputs),
        lambda q, tables, targets, noise: repair.corrected(q, inputs, tables, targets, noise),
        task.train_targets,
        task.val_targets,
        dropout=0.0,
        batch_size=4,
        seed=0,
    )
    made.begin_epoch()
    for step in range(2):
        found = made.losses(made.trunk())
        logits = repair.corrected(p, inputs, repair.tables(p, inputs), inputs.everyone, None)
        for s in range(2):
            chosen = made.positions[s, 4 * step : 4 * step + 4]
            expected = torch.nn.functional.cross_entropy(logits[s, chosen], DATA.y[chosen])
            torch.testing.assert_close(found[s], expected)


def test_an_exposure_without_embedding_cannot_refit_a_head():
    exposure = replace(toy_exposure("gcn"), embedding=None)
    with pytest.raises(InputError, match="no embedding"):
        RefitHead().fit(exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cpu")


def test_states_that_are_not_finite_are_refused():
    exposure = toy_exposure("gcn")
    state = exposure.state.clone()
    state[0, 3, 1] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        SetTranslation().fit(
            replace(exposure, state=state), DATA.y, DATA.train_mask, DATA.val_mask, device="cpu"
        )


# A member learns what it would learn alone, whoever is stacked beside it.
PLACE = torch.arange(30)
TRAIN = torch.stack([(PLACE % 10 < 1) & (PLACE > 0), PLACE % 10 < 5], dim=1)
"""Two targets beside fifteen: with batches of four, one update an epoch beside four."""
VAL = torch.stack([PLACE % 10 > 4, PLACE % 10 > 7], dim=1)
TRAINED = [Reweighting(hidden=8), SetTranslation(hidden=8), NodeTranslation(hidden=8), RefitHead()]


def brief_members(repair, dropout: float, patience: int | None = None):
    budget = replace(
        repair.budget, epochs=6, patience=patience, learning_rate=0.02, epoch_zero=False
    )
    return replace(repair, budget=replace(budget, weight_decay=0.1), dropout=dropout)


@pytest.mark.filterwarnings("ignore:member . is repaired without")
@pytest.mark.parametrize("repair", TRAINED[:3], ids=lambda r: type(r).__name__)
def test_one_member_stopping_early_leaves_the_other_alone(repair):
    method, exposure = brief_members(repair, 0.3, patience=3), toy_exposure("graphconv")
    method = replace(method, budget=replace(method.budget, epochs=25))
    together = method.fit(exposure, DATA.y, TRAIN, VAL, device="cpu", batch_size=4)
    for s in range(2):
        alone = method.fit(
            exposure.member(s), DATA.y, TRAIN[:, s], VAL[:, s], device="cpu", batch_size=4
        )
        assert together.epochs_run[s] == alone.epochs_run[0]
        assert together.best_epoch[s] == alone.best_epoch[0]
    assert together.epochs_run[0] != together.epochs_run[1]


def targets(sizes: tuple[int, ...]) -> Targets:
    index = torch.zeros(len(sizes), max(sizes), dtype=torch.long)
    for s, size in enumerate(sizes):
        index[s, :size] = torch.arange(size)
    return Targets(index, index % 3, torch.tensor(sizes))


def made(*sizes: int, seed: int = 0) -> RepairTrainee:
    own = targets(sizes)
    parameters = {"w": torch.zeros(len(sizes), 1)}
    return RepairTrainee(
        parameters, lambda p: None, lambda *_: torch.zeros(len(sizes), 4, 3), own, own,
        dropout=0.0, batch_size=4, seed=seed,
    )  # fmt: skip


def test_shuffles_do_not_depend_on_the_others_and_differ_by_epoch_and_seed():
    together, alone, other = made(6, 11, 3), made(6), made(6, seed=1)
    orders = []
    for _ in range(3):
        for trainee in (together, alone, other):
            trainee.begin_epoch()
        assert torch.equal(together.positions[0, :6], alone.positions[0, :6])
        # What fits into one batch is not shuffled: alone it would not be either.
        assert together.positions[2, :3].tolist() == [0, 1, 2]
        orders.append(tuple(alone.positions[0, :6].tolist()))
        assert sorted(orders[-1]) == list(range(6))
        assert orders[-1] != tuple(other.positions[0, :6].tolist())
    assert len(set(orders)) == 3


def test_a_member_learns_only_where_it_has_a_target():
    trainee = made(6, 11, 3)
    trainee.begin_epoch()
    seen = []
    for _ in range(trainee.steps_per_epoch):
        trainee.losses(None)
        seen.append(trainee.learning().tolist())
    assert seen == [[True, True, True], [True, True, False], [False, True, False]]


# Small parts of repairs by hand: sparse rows, empty sets, saved numbers of another kind.

BRIEF = replace(NodeTranslation().budget, epochs=2, epoch_zero=False)


def test_rows_of_mostly_zeros_are_multiplied_as_they_are():
    generator = torch.Generator().manual_seed(0)
    state = torch.zeros(1, 40, 50, dtype=torch.float64)
    state[0, torch.arange(40), torch.arange(40)] = torch.arange(40, dtype=torch.float64) + 1
    logits = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 53, 5, generator=generator, dtype=torch.float64)
    description = Description(state, logits)
    assert description.shared is not None and description.shared.sparse is not None
    expected = torch.cat([state.expand(2, -1, -1), logits], 2) @ weight
    torch.testing.assert_close(description.times(weight), expected)


class WithoutLoops(nn.Module):
    def __init__(self):
        super().__init__()
        from torch_geometric.nn import SimpleConv

        self.conv, self.lin = SimpleConv(aggr="sum"), nn.Linear(4, 3)

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index))


def test_a_node_that_nobody_writes_to_stays_finite():
    """Its set is empty: nothing is summed and ψ's bias does not speak for it."""
    torch.manual_seed(1)
    data = Data(x=torch.randn(8, 4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 1]]))
    exposure = expose(WithoutLoops().double(), data.update({"x": data.x.double()}))
    y, known = torch.arange(8) % 3, torch.ones(8, dtype=torch.bool)
    train = torch.arange(8) < 5
    fitted = SetTranslation(budget=BRIEF, dropout=0.0).fit(exposure, y, train, known & ~train)
    assert bool(torch.isfinite(fitted.member_logits(exposure)).all())
    loud = {**fitted.parameters, "encoder.2.bias": fitted.parameters["encoder.2.bias"] + 7.0}
    moved = (
        replace(fitted, parameters=loud).member_logits(exposure)[0]
        - fitted.member_logits(exposure)[0]
    )
    with_terms = torch.isin(torch.arange(8), data.edge_index[1])
    assert bool((moved[~with_terms] == 0).all()) and bool((moved[with_terms].abs() > 0).any())


# How fitting goes is shown when asked for, and told to Python's logging otherwise.
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)


def short(epochs: int = 40) -> NodeTranslation:
    return NodeTranslation(hidden=4, budget=replace(NodeTranslation().budget, epochs=epochs))


@pytest.mark.parametrize(
    "repair",
    [
        short(),
        CrossFitted(short(3), folds=2),
        EvidenceLadder(rungs=("messages",), folds=2, epochs=3),
    ],
)
def test_a_bar_is_shown_when_asked_for(repair, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    repair.fit(toy_exposure("gcn"), *MASKS, device="cpu")
    assert stream.getvalue() == ""
    repair.fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)
    last = stream.getvalue().split("\r")[-1]
    epochs = repair.most_epochs
    assert last.startswith(repair.title) and f"{epochs}/{epochs}" in last
    assert "validation nodes right" in last


def test_the_log_hears_epochs_and_results(caplog):
    heard: list[Progress] = []
    with caplog.at_level(logging.DEBUG, logger="gnn_repair"):
        fitted = short().fit(toy_exposure("gcn"), *MASKS, device="cpu", on_progress=heard.append)
    epochs = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert len(epochs) == len(heard) > 2
    for text, progress in zip(epochs, heard, strict=True):
        assert f"epoch {progress.epoch} of 40" in text and in_words(progress) in text
    results = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert results == [str(fitted)]
    assert {record.name for record in caplog.records} == {"gnn_repair.repair"}


def test_a_program_without_streams_is_shown_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    short(2).fit(toy_exposure("gcn"), *MASKS, device="cpu", progress=True)


def test_labels_are_told_by_their_score(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    exposure = replace(toy_exposure("gcn"), outputs="labels")
    y = (torch.arange(exposure.num_nodes * exposure.num_classes) % 3 == 0).float()
    y = y.view(exposure.num_nodes, -1)
    short(3).fit(exposure, y, *MASKS[1:], device="cpu", progress=True)
    assert "validation micro-F1" in stream.getvalue() and "nodes right" not in stream.getvalue()


# What a fit cannot use is named in one sentence, whichever repair is asked.
TRAIN_BOTH, VAL_BOTH, Y = DATA.train_mask, DATA.val_mask, DATA.y
BAD = {
    "zeros and ones": ({"val": VAL_BOTH[:, 0].long()}, "val is torch.int64, .* such as val > 0"),
    "wide": ({"val": VAL_BOTH[:, [0, 1, 0]]}, "val has 3 splits but the exposure has 2"),
    "overlap": ({"val": VAL_BOTH | TRAIN_BOTH}, "is in train and in val"),
    "empty": ({"train": TRAIN_BOTH & torch.tensor([True, False])}, "train of member 1 is empty"),
    "unlabelled": ({"y": torch.where(TRAIN_BOTH[:, 1], -1, Y)}, r"node \d+ has label -1 but is in"),
    "column": ({"y": Y.unsqueeze(1)}, r"y has shape \[30, 1\]"),
    "frozen": ({"exposure": toy_frozen("gcn")}, "exposure is Frozen; give what expose"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["set-translation", "temperature-scaling"])
def test_what_cannot_be_used_is_named(name, case):
    change, message = BAD[case]
    given = SimpleNamespace(
        **{
            "exposure": toy_exposure("gcn"),
            "y": Y,
            "train": TRAIN_BOTH,
            "val": VAL_BOTH,
            "batch_size": None,
        }
        | change
    )
    with pytest.raises(InputError, match=message) as caught:
        REPAIRS[name]().fit(
            given.exposure,
            given.y,
            given.train,
            given.val,
            batch_size=given.batch_size,
            device="cpu",
        )
    if case in ("overlap", "empty", "wide", "zeros and ones"):
        assert isinstance(caught.value, SplitError)


def two_epochs(**settings):
    return SetTranslation(hidden=4, budget=Budget(2, None, 0.01, 0.0), **settings)


def test_labels_of_any_whole_type_will_do():
    exposure = toy_exposure("gcn")
    expected = (
        two_epochs().fit(exposure, Y, TRAIN_BOTH, VAL_BOTH, device="cpu").member_logits(exposure)
    )
    for dtype in (torch.int32, torch.uint8, torch.int16):
        found = two_epochs().fit(exposure, Y.to(dtype), TRAIN_BOTH, VAL_BOTH, device="cpu")
        assert torch.equal(found.member_logits(exposure), expected)
    found = two_epochs().fit(
        exposure, Y, TRAIN_BOTH, VAL_BOTH, device="cpu", batch_size=np.int64(100)
    )
    assert torch.equal(found.member_logits(exposure), expected)


def test_nodes_are_masks_or_numbers():
    exposure = toy_exposure("gcn").member(0)
    usual = (
        two_epochs()
        .fit(exposure, Y, TRAIN_BOTH[:, 0], VAL_BOTH[:, 0], device="cpu")
        .logits(exposure)
    )
    assert usual.shape == (30, 3)
    train, val = (mask[:, 0].nonzero().view(-1) for mask in (TRAIN_BOTH, VAL_BOTH))
    for given in (
        (train, val),
        (train.tolist(), val.tolist()),
        (TRAIN_BOTH[:, :1], val),
        (TRAIN_BOTH[:, 0].numpy(), val.numpy()),
    ):
        found = two_epochs().fit(exposure, Y, *given, device="cpu")
        assert torch.equal(found.logits(exposure), usual)
        assert torch.equal(found.predict(exposure), usual.argmax(1))
    with pytest.warns(DeprecationWarning, match=r"fit\(train=…\) now") as caught:
        found = two_epochs().fit(
            exposure, Y, train_mask=TRAIN_BOTH[:, 0], val=VAL_BOTH[:, 0], device="cpu"
        )
    assert caught[0].filename == __file__
    assert torch.equal(found.logits(exposure), usual)


def test_epochs_and_rates_are_settings():
    usual = SetTranslation().budget
    for repair in (SetTranslation, RefitHead, EvidenceLadder):
        found = repair(epochs=7, lr=0.5).budget
        assert found == replace(repair().budget, epochs=7, learning_rate=0.5)
        for wrong in ({"epochs": 0}, {"epochs": 2.5}, {"lr": 0}, {"lr": float("nan")}):
            with pytest.raises(InputError, match=f"{repair.__name__}: {next(iter(wrong))} is"):
                repair(**wrong)
    # Another setting leaves them as they are.
    assert replace(SetTranslation(epochs=7), seed=3).budget == replace(usual, epochs=7)


@pytest.mark.parametrize("name", REPAIRS)
def test_a_fitted_repair_asks_for_an_exposure(name):
    repair = REPAIRS[name]()
    if hasattr(repair, "budget"):
        repair = type(repair)(budget=Budget(1, None, 0.01, 0.0))
    fitted = repair.fit(toy_exposure("gcn"), Y, TRAIN_BOTH, VAL_BOTH, device="cpu")
    with pytest.raises(InputError, match="exposure is Frozen; give what expose"):
        fitted.member_logits(toy_frozen("gcn"))


def test_warnings_point_at_the_caller():
    train = TRAIN_BOTH & (Y != 2).unsqueeze(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        two_epochs().fit(toy_exposure("gcn"), Y, train, VAL_BOTH, device="cpu")
        wild = RefitHead(budget=Budget(4, None, 1e300, 0.0))
        fitted = wild.fit(toy_exposure("gcn"), Y, TRAIN_BOTH, VAL_BOTH, device="cpu")
    texts = {str(item.message): item.filename for item in caught}
    epochs = fitted.best_epoch.tolist()
    assert fitted.diverged.tolist() == [True, True]
    assert set(texts) == {
        "member 0 is repaired without any training node of class 2",
        "member 1 is repaired without any training node of class 2",
        f"Refit head of member 0 diverged; its state of epoch {epochs[0]} was kept",
        f"Refit head of member 1 diverged; its state of epoch {epochs[1]} was kept",
    }
    assert set(texts.values()) == {__file__}
