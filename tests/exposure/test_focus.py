"""A part of an exposure that keeps nothing of the rest says the same about its recipients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.exposure.parts import focused
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.report.report_worlds import make_exposure


def test_the_part_says_the_same_and_names_its_place() -> None:
    exposure, y = make_exposure(nodes=60, groups=2, members=3)
    positions = torch.tensor([50, 3, 1, 17])
    focus = focused(exposure, positions)
    part = focus.exposure
    assert part.num_nodes < 60 and part.contributions.shape[1] < exposure.contributions.shape[1]
    assert focus.nodes[part.recipients].tolist() == exposure.recipients[positions].tolist()
    torch.testing.assert_close(part.logits(), exposure.logits()[:, positions], rtol=0, atol=0)
    torch.testing.assert_close(
        part.frozen_logits, exposure.frozen_logits[:, focus.nodes], rtol=0, atol=0
    )
    torch.testing.assert_close(part.coefficients, exposure.coefficients[:, focus.terms])
    senders = exposure.sources[exposure.rows[focus.terms].long()]
    assert torch.equal(focus.nodes[part.sources[part.rows.long()].long()], senders.long())
    whole = gr.solve(exposure, y, exposure.recipients[positions])
    some = gr.solve(part, y[focus.nodes], part.recipients)
    np.testing.assert_array_equal(some.margin, whole.margin)
    np.testing.assert_array_equal(some.bound, whole.bound)
    np.testing.assert_array_equal(focus.nodes.numpy()[some.sources], whole.sources)
    np.testing.assert_array_equal(focus.terms.numpy()[some.terms], whole.terms)


def test_a_term_that_nobody_sent_stays_nobodys() -> None:
    exposure, _ = make_exposure(nodes=20)
    sources = exposure.sources.clone()
    sources[5] = -1
    part = focused(replace(exposure, sources=sources), torch.tensor([2, 4])).exposure
    assert int((part.sources < 0).sum()) == 1  # node 2 has a term from every row


def test_a_repair_learns_the_same_from_the_part(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    exposure, y = make_exposure(nodes=300, groups=2, members=2)
    train, val = torch.zeros(2, 300, 2, dtype=torch.bool)
    train[:40, 0], train[20:60, 1], val[60:80] = True, True, True
    budget = Budget(epochs=6, patience=None, learning_rate=0.01, weight_decay=0.0)
    for kind in (gr.SetTranslation, gr.Reweighting):
        repair = kind(budget, dropout=0.0)
        before = repair.fit(exposure, y, train, val)
        monkeypatch.setattr("gnn_repair.repair.targets.LARGE", 0)
        seen = []
        monkeypatch.setattr(
            "gnn_repair.repair.base.RepairInputs",
            lambda exposure, given=RepairInputs, seen=seen: (
                seen.append(exposure.num_recipients) or given(exposure)
            ),
        )
        after = repair.fit(exposure, y, train, val)
        monkeypatch.undo()
        assert seen == [80]
        torch.testing.assert_close(
            after.member_logits(exposure), before.member_logits(exposure), rtol=1e-4, atol=1e-5
        )
        assert not torch.equal(before.member_logits(exposure), exposure.frozen_logits)


def test_shifts_of_many_recipients_are_worked_out_in_parts(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    exposure, y = make_exposure(nodes=200, groups=2, members=2)
    mask = torch.arange(200) < 80
    budget = Budget(epochs=4, patience=None, learning_rate=0.05, weight_decay=0.0)
    for repair in (gr.SetTranslation(budget), gr.NodeTranslation(budget)):
        fitted = repair.fit(exposure, y, mask, ~mask)
        whole = fitted.shift(exposure)
        monkeypatch.setattr("gnn_repair.repair.adapters.RECIPIENTS", 7)
        torch.testing.assert_close(fitted.shift(exposure), whole)
        monkeypatch.undo()
        assert float(whole.abs().max()) > 0.01
