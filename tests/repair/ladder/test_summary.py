"""The frozen summary of a message set against loops over its terms; rungs that read it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from planted_graphs import CLASSES, LADDER, planted, planted_exposure, test_accuracy
from toy_exposures import toy_exposure, toy_graph

from gnn_repair.errors import FileFormatError
from gnn_repair.repair import CrossFitted, load_repair
from gnn_repair.repair.evidence import EvidenceInputs, gather_evidence, summary
from gnn_repair.repair.evidence.kin import KIN, alike_by_features, alike_by_links
from gnn_repair.repair.evidence.summary import set_summary, summary_width
from gnn_repair.repair.folds import cross_roles, deal_folds
from gnn_repair.repair.inputs import repair_inputs
from gnn_repair.repair.ladder.catalogue import FAST
from gnn_repair.repair.ladder.summary_rungs import Summary, SummaryKin

QUICK = replace(LADDER, rungs=FAST, budget=replace(LADDER.budget, epochs=60))
BRIEF = replace(QUICK, budget=replace(QUICK.budget, epochs=5))


def literal(exposure, member: int, position: int, onto: np.ndarray | None) -> np.ndarray:
    """One recipient's row, term by term."""
    arrays = {
        name: getattr(exposure, name).double().numpy()
        for name in ("state", "messages", "coefficients", "mass")
    }
    own = {name: values[min(member, len(values) - 1)] for name, values in arrays.items()}
    node = int(exposure.recipients[position])
    logits = exposure.frozen_logits[member].double().numpy()
    told = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    groups, ends = exposure.num_groups, exposure.segments.tolist()
    terms = range(ends[position * groups], ends[(position + 1) * groups])
    cosines, apart, states, said, alpha = [], [], [], [], []
    for term in terms:
        row = int(exposure.rows[term])
        h, v = own["messages"][int(exposure.message_rows[row])], own["state"][node]
        norm = np.linalg.norm(h) * np.linalg.norm(v)
        cosines.append(h @ v / norm if norm > 0 else 0.0)
        apart.append(np.linalg.norm(h - v))
        states.append(h if onto is None else h @ onto)
        said.append(np.exp(told[int(exposure.sources[row])]))
        alpha.append(abs(own["coefficients"][term]))
    cosines, apart, alpha = np.array(cosines), np.array(apart), np.array(alpha)
    table, said = np.concatenate([states, said], 1), np.array(said)
    usual = np.minimum(apart / max(apart.mean(), 1e-12), 4)
    kernels = [alpha, np.ones_like(alpha), np.exp(6 * cosines), np.exp(-3 * usual)]
    kernels.append(np.exp(3 * usual))
    shares = [kernel / max(kernel.sum(), 1e-12) for kernel in kernels]
    mean = shares[0] @ table
    spread = np.sqrt(np.maximum(shares[0] @ table**2 - mean**2, 0))
    total = own["mass"][position].sum() + (1.0 if exposure.root else 0.0)
    here = own["state"][node] if onto is None else own["state"][node] @ onto
    numbers = [here, np.maximum(told[node], -8), np.exp(told[node]), [total]]
    numbers += [[np.log1p(len(alpha))], [shares[0] @ cosines], mean, spread]
    return np.concatenate([*numbers, *(share @ said for share in shares[1:])])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "sage", "gat", "mixhop"])
def test_the_summary_is_what_a_loop_over_terms_gives(backbone, wide, monkeypatch):
    exposure, onto = replace(toy_exposure(backbone)), None
    if wide:
        monkeypatch.setattr(summary, "WIDEST", 2)
        monkeypatch.setattr(summary, "PROJECTED", 3)
        width = exposure.state.shape[2]
        generator = torch.Generator().manual_seed(width)
        onto = (torch.randn(width, 3, generator=generator) / 3**0.5).double().numpy()
    found = set_summary(repair_inputs(exposure))
    assert found.shape[2] == summary_width(exposure.state.shape[2], exposure.num_classes)
    for member in range(exposure.num_members):
        for position in range(0, exposure.num_recipients, 3):
            expected = literal(exposure, member, position, onto)
            np.testing.assert_allclose(found[member, position].numpy(), expected, atol=1e-6)


def cosines(rows: torch.Tensor) -> torch.Tensor:
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (unit @ unit.t()).fill_diagonal_(0)


@pytest.mark.parametrize("by", ["links", "features"])
def test_kin_are_the_nearest_by_cosine_and_never_the_node_itself(by):
    generator = torch.Generator().manual_seed(2)
    nodes = 70
    entries = torch.randint(nodes, (2, 600), generator=generator)
    x = torch.rand(nodes, 6, generator=generator, dtype=torch.float64)
    links = torch.zeros(nodes, nodes, dtype=torch.float64)
    links[entries[1], entries[0]] = 1
    alike = cosines(links.fill_diagonal_(0) if by == "links" else x)
    kin = alike_by_links(entries, nodes, torch.float64) if by == "links" else alike_by_features(x)
    weights = kin(torch.eye(nodes, dtype=torch.float64).unsqueeze(1)).squeeze(1)
    assert float(weights.diagonal().abs().max()) == 0
    best = alike.topk(KIN, dim=1).values
    expected = best**4 / (best**4).sum(1, keepdim=True)
    # Who of several that are equally near is asked does not matter here.
    torch.testing.assert_close(weights.topk(KIN, dim=1).values, expected)
    assert bool((alike[weights > 0] >= best[:, -1:].expand_as(alike)[weights > 0] - 1e-9).all())


def test_a_copy_is_not_shown_its_fold_by_kin_either():
    data, exposure, copies = toy_graph(), toy_exposure("sage"), 3
    folds = deal_folds(data.val_mask.t(), data.y, copies, 0)
    roles = cross_roles(data.train_mask.t(), folds, copies, 0.8)
    known = (data.train_mask | data.val_mask).t()

    def shown(y: torch.Tensor) -> torch.Tensor:
        evidence = gather_evidence(exposure, y, known, data)
        inputs = EvidenceInputs(repair_inputs(exposure), copies, evidence, roles)
        return inputs.kin_at(inputs.everyone)

    usual = shown(data.y)
    for fold in range(copies):
        other = shown(torch.where(folds[0] == fold, (data.y + 1) % 3, data.y))
        assert [torch.equal(other[k], usual[k]) for k in range(copies)] == [
            k == fold for k in range(copies)
        ]


def fit(ladder, told_by: str, splits: int = 1, y: torch.Tensor | None = None):
    data, exposure = planted(told_by, splits)[1], planted_exposure(told_by, splits)
    labels = data.y if y is None else y
    masks = data.train_mask, data.val_mask
    return ladder.fit(exposure, labels, *masks, data=data, device="cpu")


@pytest.mark.parametrize(
    ("told_by", "rung"), [("features", "summary-features"), ("labels", "summary-labels")]
)
def test_planted_evidence_is_found(told_by, rung, tmp_path):
    fitted, exposure = fit(QUICK, told_by), planted_exposure(told_by)
    data = planted(told_by)[1]
    said = fitted.rung_log_probs(exposure)
    below = fitted.findings().of(rung).above
    assert test_accuracy(said[rung], data) > test_accuracy(said[below], data) + 0.02
    assert test_accuracy(fitted.logits(exposure), data) > 0.9
    assert "Transductive" in str(fitted)
    fitted.save(tmp_path / "ladder.safetensors")
    again = load_repair(tmp_path / "ladder.safetensors")
    assert torch.equal(again.logits(exposure), fitted.logits(exposure))
    assert str(again) == str(fitted)
    # What reads no labels speaks on any graph, and says the same on its own.
    torch.testing.assert_close(
        again._inductive("summary", exposure), said["summary"], rtol=1e-4, atol=1e-4
    )
    with pytest.warns(UserWarning, match="only frozen, summary can speak here"):
        again.unbound().logits(planted_exposure("nothing"))


def test_no_label_of_a_test_node_is_read():
    data, exposure = planted("labels")[1], planted_exposure("labels")
    usual = fit(BRIEF, "labels")
    for planted_label in (CLASSES - 1, -1, 10**6):
        other = fit(BRIEF, "labels", y=torch.where(data.test_mask[:, 0], planted_label, data.y))
        assert torch.equal(other.logits(exposure), usual.logits(exposure))
        assert str(other) == str(usual)


def test_a_member_of_a_stack_is_what_it_would_be_alone():
    data, exposure = planted("labels", 2)[1], planted_exposure("labels", 2)
    both = fit(BRIEF, "labels", 2).rung_log_probs(exposure)
    for s in range(2):
        masks = data.train_mask[:, s], data.val_mask[:, s]
        one = exposure.member(s)
        alone = BRIEF.fit(one, data.y, *masks, data=data, device="cpu").rung_log_probs(one)
        for name, values in both.items():
            torch.testing.assert_close(values[s], alone[name][0], rtol=1e-3, atol=1e-3)


def test_a_rung_in_folds_keeps_how_it_standardised(tmp_path):
    data, exposure = planted("labels")[1], planted_exposure("labels")
    folded = CrossFitted(Summary(BRIEF.budget, hidden=6), folds=3)
    fitted = fit(folded, "labels")
    nodes = torch.tensor([5, 80, 3])
    torch.testing.assert_close(
        fitted.logits(exposure.restrict(nodes)), fitted.logits(exposure)[:, nodes]
    )
    path = tmp_path / "folds.safetensors"
    fitted.save(path)
    assert torch.equal(load_repair(path).logits(exposure), fitted.logits(exposure))
    wrong = {**fitted.constants, "own/scale": -fitted.constants["own/scale"]}
    replace(fitted, constants=wrong).save(path)
    with pytest.raises(FileFormatError, match="must be positive"):
        load_repair(path)
    kin = fit(CrossFitted(SummaryKin(BRIEF.budget, hidden=6), folds=3), "labels")
    assert kin.transductive and data.num_nodes == kin.constants["log_probs"].shape[1]
