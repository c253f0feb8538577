"""Bounds of repairs from both sides: settings, saved constants, sizes of tables, durations."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.kernels import drop_rows
from gnn_repair.repair import (
    CorrectAndSmooth,
    Reweighting,
    TemperatureScaling,
)
from gnn_repair.repair import baselines as smoothing
from gnn_repair.repair.base import (
    LARGEST,
    _check_sizes,
    _fingerprint,
    repair_of,
)
from gnn_repair.repair.inputs import Noise
from gnn_repair.repair.targets import EPOCH_STRIDE, SEED_STRIDE, prepare
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()


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


def test_sizes_and_fingerprints_in_files():
    for width, classes, fine in [
        (1, 2, True), (0, 2, False), (1, 1, False), (LARGEST, LARGEST, True),
        (LARGEST + 1, 2, False), (1, LARGEST + 1, False),
    ]:  # fmt: skip
        header = {"width": width, "num_classes": classes, "outputs": "classes"}
        if fine:
            _check_sizes(header)
        else:
            with pytest.raises(InputError, match=f"it is {width} wide with {classes} classes"):
                _check_sizes(header)
    _check_sizes({"width": 1, "num_classes": 1, "outputs": "labels"})
    for words, count in (("values", 2), ("labels", 0)):
        with pytest.raises(InputError):
            _check_sizes({"width": 1, "num_classes": count, "outputs": words})
    assert (_fingerprint(None), _fingerprint([]), _fingerprint(["a"])) == (None, (), ("a",))
    with pytest.raises(InputError, match="not a list of texts"):
        _fingerprint(["a", 3])


def test_constants_of_smoothing_in_files():
    exposure = toy_exposure("gcn")
    method = CorrectAndSmooth(layers=2)
    fitted = method.fit(exposure, DATA.y, *masks(), device="cpu")
    method.check_constants(fitted)
    labels, strengths = fitted.constants["labels"], fitted.constants["strengths"]
    entries = fitted.constants["entries"]

    def with_(name, place, value):
        changed = fitted.constants[name].clone()
        changed[place] = value
        return {**fitted.constants, name: changed}

    nodes = labels.shape[1]
    fine = [
        with_("labels", (1, 0), -1),
        with_("labels", (1, 0), exposure.num_classes - 1),
        with_("entries", (0, 1, 0), nodes - 1),
        with_("entries", (0, 1, 0), 0),
        with_("strengths", 1, torch.tensor([0.95, 0.5, 0.0], dtype=torch.float64)),
    ]
    for constants in fine:
        method.check_constants(replace(fitted, constants=constants))
    wrong = {
        "labels must lie in": [
            with_("labels", (1, 0), -2),
            with_("labels", (1, 0), exposure.num_classes),
            {**fitted.constants, "labels": labels.int()},
            {**fitted.constants, "labels": labels.unsqueeze(2)},
        ],
        "strengths must be among": [
            with_("strengths", (1, 0), 0.6),
            {**fitted.constants, "strengths": strengths.float()},
            {**fitted.constants, "strengths": strengths[:, :2]},
        ],
        "entries must be pairs": [
            with_("entries", (0, 1, 0), nodes),
            with_("entries", (0, 0, 0), -1),
            {**fitted.constants, "entries": entries.int()},
            {**fitted.constants, "entries": entries[0]},
            {**fitted.constants, "entries": entries[:, :1]},
        ],
        "nothing else": [
            {"labels": labels, "strengths": strengths},
            {**fitted.constants, "more": labels},
        ],
    }
    for words, cases in wrong.items():
        for constants in cases:
            with pytest.raises(InputError, match=words):
                method.check_constants(replace(fitted, constants=constants))


def test_tables_of_smoothing(monkeypatch):
    soft = torch.zeros(2, 8, 4, dtype=torch.float64)
    for limit, jobs in [(8 * 4 * 8 * 3, 3), (8 * 4 * 8 * 3 - 1, 2), (1, 1)]:
        monkeypatch.setitem(smoothing.TABLE_BYTES, "cpu", limit)
        assert smoothing.jobs_at_once(soft) == jobs
    assert smoothing.jobs_at_once(torch.zeros(2, 0, 4)) == 1
    # Ten of a hundred places are not more than a tenth.
    entries = torch.stack([torch.arange(10), torch.arange(10).roll(1)])
    more = torch.cat([entries, torch.tensor([[0], [5]])], 1)
    assert smoothing.normalised_adjacency(entries, 10).layout == torch.sparse_csr
    assert smoothing.normalised_adjacency(more, 10).layout == torch.strided
    monkeypatch.setattr(smoothing, "LARGEST_DENSE", 800)
    assert smoothing.normalised_adjacency(more, 10).layout == torch.strided
    monkeypatch.setattr(smoothing, "LARGEST_DENSE", 799)
    assert smoothing.normalised_adjacency(more, 10).layout == torch.sparse_csr


def test_targets_are_each_members_own():
    exposure = toy_exposure("gcn").restrict(torch.arange(29, 0, -1))
    train = torch.zeros(30, 2, dtype=torch.bool)
    val = torch.zeros(30, 2, dtype=torch.bool)
    train[[3, 7, 20], 0] = train[[5], 1] = True
    val[[1, 2], 0] = val[[3, 4, 6], 1] = True
    with pytest.warns(UserWarning, match="member 1 is repaired without any training node of class"):
        task = prepare(exposure, DATA.y, train, val, device="cpu")
    found, judged = task.train_targets, task.val_targets
    nodes = exposure.recipients
    assert nodes[found.positions].tolist() == [[20, 7, 3], [5, 5, 5]]
    assert found.sizes.tolist() == [3, 1] and judged.sizes.tolist() == [2, 3]
    assert found.real.tolist() == [[True] * 3, [True, False, False]]
    assert nodes[judged.positions].tolist() == [[2, 1, 2], [6, 4, 3]]
    torch.testing.assert_close(found.labels, DATA.y[nodes[found.positions]])


def test_more_members_than_nodes_are_smoothed_alike(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    soft = torch.rand(3, 2, 4, dtype=torch.float64, generator=generator).softmax(2)
    labels = torch.tensor([[0, -1], [-1, 2], [3, 1]])
    operator = torch.tensor([[0.5, 0.25], [0.25, 0.5]], dtype=torch.float64)
    chosen = [(0.5, 0.8, 1), (0.8, 0.5, 0), (0.95, 0.8, 1)]
    strengths = torch.tensor(chosen, dtype=torch.float64)
    alone = [
        smoothing.correct_and_smooth(operator, soft[[s]], labels[[s]], strengths[[s]], 3)
        for s in range(3)
    ]
    for limit in (1, 2 * 2 * 4 * 8, 1 << 20):
        monkeypatch.setitem(smoothing.TABLE_BYTES, "cpu", limit)
        found = smoothing.correct_and_smooth(operator, soft, labels, strengths, 3)
        torch.testing.assert_close(found, torch.cat(alone))


def test_a_repair_is_called_as_it_says_or_as_its_class():
    class Mine(TemperatureScaling):
        pass

    class Named(TemperatureScaling):
        title = "My own"

    assert (Mine.title, Named.title) == ("Mine", "My own")
    assert TemperatureScaling.title == "Temperature scaling"


def test_constants_that_members_share_stay_whole():
    exposure = toy_exposure("gcn")
    held = CorrectAndSmooth(layers=2).fit(exposure, DATA.y, *masks(), device="cpu")
    alone = held.member(1)
    assert alone.constants["labels"].shape == (1, 30)
    assert torch.equal(alone.constants["entries"], held.constants["entries"])
    torch.testing.assert_close(
        alone.member_logits(exposure.member(1))[0], held.member_logits(exposure)[1]
    )


def test_random_streams_are_apart():
    assert all(stride % 2 == 1 and 2**31 < stride < 2**32 for stride in (SEED_STRIDE, EPOCH_STRIDE))
    noise, values = Noise(0.5, torch.tensor(40)), torch.ones(2, 5, 6, dtype=torch.float64)
    assert (int(noise.encoder.seed), int(noise.scorer.seed)) == (40, 41)
    assert noise.encoder.share == noise.scorer.share == 0.5
    for found, seed in ((noise.root(values), 42), (noise.head(values), 43)):
        torch.testing.assert_close(found, drop_rows(values, 0.5, torch.tensor(seed)))
