"""The ladder's evidence and its heads against arithmetic written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.budget import LADDER
from gnn_repair.methods import RUNGS
from gnn_repair.repair import EvidenceLadder
from gnn_repair.repair import evidence as evidence_summary
from gnn_repair.repair.evidence import (
    DROPPED,
    SIMILAR,
    FeatureEvidence,
    LabelEvidence,
    alike_by_features,
    alike_by_links,
    standardise,
    statistics,
    summary,
    summary_width,
)
from gnn_repair.repair.evidence import HIDDEN as HIDDEN_SHARE
from gnn_repair.repair.folds import cross_roles, deal_folds, fold_roles
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.ladder.network import Heads, LadderTrainee, Sources, climb
from gnn_repair.repair.targets import prepare
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

# The stack of heads against arithmetic written out, and what a copy may see while it learns.

DATA = toy_graph()
COPIES, HIDDEN = 3, 6
NAMES = [name for name, rung in RUNGS.items() if rung.blocks]


def task_of(backbone: str = "sage", y: torch.Tensor = DATA.y):
    return prepare(toy_exposure(backbone), y, DATA.train_mask, DATA.val_mask, DATA, "cpu")


def dealt_for(task) -> torch.Tensor:
    return deal_folds(task.val, task.labels, COPIES, 0)


def random_parameters(heads: Heads) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in heads.initial(0).items()
    }


@pytest.mark.parametrize("backbone", ["sage", "mixhop"])
def test_every_head_is_its_arithmetic(backbone):
    """W relu(Σ x_b V_b + b) + c, or z⁰ + P 4 tanh of it, rung by rung and copy by copy."""
    sources = Sources.of(task_of(backbone))
    heads = Heads(NAMES, sources, COPIES, HIDDEN)
    p = random_parameters(heads)
    found = heads.log_probs(p)
    labels = sources.labels
    tables = {
        "messages": sources.messages,
        "labels": labels.histograms(labels.known),
        "similar": labels.similar_histograms(labels.known),
        "features": DATA.x.expand(2, -1, -1),
    }
    for r, name in enumerate(NAMES):
        for s in range(2):
            for k in range(COPIES):
                row = (r * 2 + s) * COPIES + k
                hidden = p["bias"][row] + sum(
                    tables[block][s] @ p[block][row] for block in RUNGS[name].blocks
                )
                raw = hidden.relu() @ p["last"][row] + p["last bias"][row]
                if RUNGS[name].keeps:
                    shift = 4 * raw.tanh()
                    raw = sources.frozen[s] + shift - shift.mean(1, keepdim=True)
                torch.testing.assert_close(found[s, r, k], raw.log_softmax(1))


def trainee_of(task) -> LadderTrainee:
    heads = Heads(NAMES, Sources.of(task), COPIES, HIDDEN)
    return LadderTrainee(
        heads, fold_roles(task, COPIES, 0), task.labels, folds=COPIES, dropout=0.2, seed=0
    )


def test_what_a_copy_does_not_learn_from_is_withheld_however_many_folds_it_leaves():
    task = task_of()
    heads = Heads(NAMES, Sources.of(task), COPIES, HIDDEN)
    roles = cross_roles(task.train, dealt_for(task), COPIES, leave=2)
    trainee = LadderTrainee(heads, roles, task.labels, folds=COPIES, dropout=0.2, seed=0)
    assert torch.equal(trainee.withheld, roles.weights == 0)


def losses(y: torch.Tensor) -> torch.Tensor:
    """Of six training steps with random parameters, [rungs, members, copies, steps]."""
    trainee = trainee_of(task_of(y=y))
    trainee.parameters = random_parameters(trainee.heads)
    steps = []
    for _ in range(6):
        trainee.begin_epoch()
        steps.append(trainee.losses(None))
    return torch.stack(steps, 1).unflatten(0, (len(NAMES), 2, COPIES))


@pytest.mark.parametrize("fold", range(COPIES))
def test_a_copy_is_not_shown_its_own_fold_while_it_learns(fold):
    """Labels of one fold of member 0 are changed: its own copy learns as before, others do not."""
    dealt = dealt_for(task_of())
    changed = torch.where(dealt[0] == fold, (DATA.y + 1) % 3, DATA.y)
    # Folds are dealt by class; other labels must not move them here.
    usual, other = losses(DATA.y), losses_in_folds(changed, dealt)
    for k in range(COPIES):
        assert torch.equal(other[:, 0, k], usual[:, 0, k]) == (k == fold)


def losses_in_folds(y: torch.Tensor, dealt: torch.Tensor) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnn_repair.repair.folds.deal_folds", lambda *given: dealt)
        return losses(y)


def test_no_label_that_judges_a_copy_chooses_its_epoch():
    """A copy's score is what the other copies of its rung and member get right."""
    task = task_of()
    trainee = trainee_of(task)
    trainee.parameters = random_parameters(trainee.heads)
    trainee.first = 1
    trainee.begin_epoch()
    assert trainee.scores(None).tolist() == [-1] * len(NAMES) * 2 * COPIES  # too early
    trainee.begin_epoch()
    scores = trainee.scores(None).view(len(NAMES), 2, COPIES)
    told = trainee.heads.log_probs(trainee.parameters).argmax(4).transpose(0, 1)
    folds = dealt_for(task)
    right = torch.stack(
        [((told[:, :, k] == DATA.y) & (folds == k)).sum(2) for k in range(COPIES)], 2
    )
    for k in range(COPIES):
        others = [i for i in range(COPIES) if i != k]
        assert torch.equal(scores[:, :, k], right[:, :, others].sum(2))


def test_given_epochs_are_kept():
    task = task_of()
    sources, roles = Sources.of(task), fold_roles(task, COPIES, 0)
    wanted = torch.tensor([[[0, 3, 1], [2, 3, 0]]])
    budget = replace(LADDER, epochs=3, patience=1)
    found = climb(
        ["features"], sources, roles, task.labels,
        EvidenceLadder(folds=COPIES, hidden=HIDDEN, dropout=0.0, budget=budget), epochs=wanted,
    )  # fmt: skip
    assert torch.equal(found.best_epoch, wanted)
    heads = Heads(["features"], sources, COPIES, HIDDEN)
    untrained = heads.log_probs(heads.initial(0))
    torch.testing.assert_close(found.log_probs[0, 0, 0], untrained[0, 0, 0])
    assert not torch.allclose(found.log_probs[0, 0, 1], untrained[0, 0, 1])


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_features_are_multiplied_and_dropped_alike_sparse_or_dense(share):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 300, generator=generator, dtype=torch.float64)
    x *= torch.rand(200, 300, generator=generator) < share
    evidence = FeatureEvidence(x)
    assert (evidence.features.sparse is not None) == (share < 0.05)
    weight = torch.randn(300, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(evidence.times(weight, None), x @ weight)
    ones = torch.ones(300, 1, dtype=torch.float64)
    counted = FeatureEvidence((x != 0).double()).times(ones, torch.tensor(7))
    kept = float(counted.sum() * (1 - DROPPED)) / float((x != 0).sum())
    assert abs(kept - (1 - DROPPED)) < 0.04
    first, second = (evidence.times(weight, torch.tensor(seed)) for seed in (1, 2))
    assert not torch.equal(first, second)
    # What is dropped goes by the node, whoever is read beside it.
    some = torch.arange(200).flip(0)[:150]
    part = FeatureEvidence(x, some)
    assert (part.features.sparse is None) == (evidence.features.sparse is None)
    torch.testing.assert_close(part.times(weight, torch.tensor(1)), first[some])


# Label histograms against walks counted one by one; no node is ever told its own label.

CLASSES = 3
GRAPHS = {
    "path": [(0, 1), (1, 2), (2, 3), (3, 4)],
    "star": [(0, 1), (0, 2), (0, 3), (0, 4)],
    "pair and loop": [(0, 1), (2, 2), (3, 4)],
    "triangle with tails": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (1, 1)],
    "doubled": [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
}


def entries(name: str) -> torch.Tensor:
    pairs = GRAPHS[name] + [(b, a) for a, b in GRAPHS[name] if a != b]
    return torch.tensor(pairs).t()


def evidence(name: str, labels: torch.Tensor) -> LabelEvidence:
    return LabelEvidence(entries(name), labels, CLASSES, torch.float64)


def walked(name: str, labels: list[int]) -> torch.Tensor:
    """The same by enumerating walks: uniform steps to neighbours, never home."""
    pairs = entries(name).t().tolist()
    near = {v: [a for a, b in pairs if b == v and a != v] for v in range(5)}
    out = torch.zeros(5, 2, CLASSES + 1, dtype=torch.float64)
    for v in range(5):
        for a in near[v]:
            out[v, 0, labels[a]] += 1 / len(near[v])
            for b in near[a]:
                if b != v:
                    out[v, 1, labels[b]] += 1 / len(near[v]) / len(near[a])
        total = out[v, 1].sum()
        out[v, 1] /= total if total > 0 else 1
    return out.flatten(1)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_histograms_count_the_walks(name):
    """Of members with labels of their own; 3 is unknown."""
    labels = torch.tensor([[0, 2, 3, 1, 2], [3, 1, 0, 3, 3]])
    found = evidence(name, labels).histograms(labels)
    for own, expected in zip(found, labels.tolist(), strict=True):
        torch.testing.assert_close(own, walked(name, expected))


def test_withheld_labels_look_unknown_and_others_are_hidden_by_chance():
    nodes = 4000
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    labels = torch.zeros(1, nodes, dtype=torch.long)
    known = LabelEvidence(ring, labels, 1, torch.float64)
    withheld = torch.zeros(2, nodes, dtype=torch.bool)
    withheld[1, :1000] = True
    first = known.partly(withheld, torch.tensor(5))
    # Node v + 1 reads v alone, so its one-hop histogram is v's label as it is shown.
    shown = known.histograms(first)[:, 1:, 0]
    assert abs(float(shown[0].mean()) - (1 - HIDDEN_SHARE)) < 0.03
    assert float(shown[1, :1000].sum()) == 0
    assert torch.equal(shown[0, 1000:], shown[1, 1000:])
    again, other = (known.partly(withheld, torch.tensor(seed)) for seed in (5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # Copies of a member are shown that member's labels.
    both = LabelEvidence(ring, torch.cat([labels, labels + 1]), 2, torch.float64)
    copies = both.partly(withheld.new_zeros(4, nodes), torch.tensor(5))
    assert [set(row.tolist()) for row in copies] == [{0, 2}] * 2 + [{1, 2}] * 2


# The frozen summary of a message set against loops over its terms; similar nodes.


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
    exposure, onto = toy_exposure(backbone), None
    # What the hub sends is far from everybody.
    far = torch.ones_like(exposure.messages)
    far[:, 2] = 20
    exposure = replace(exposure, messages=far * exposure.messages)
    if wide:
        monkeypatch.setattr(evidence_summary, "WIDEST", 2)
        monkeypatch.setattr(evidence_summary, "PROJECTED", 3)
        width = exposure.state.shape[2]
        generator = torch.Generator().manual_seed(width)
        onto = (torch.randn(width, 3, generator=generator) / 3**0.5).double().numpy()
    found = summary(RepairInputs(exposure))
    assert found.shape[2] == summary_width(exposure.state.shape[2], exposure.num_classes)
    for member in range(exposure.num_members):
        for position in range(0, exposure.num_recipients, 3):
            expected = literal(exposure, member, position, onto)
            np.testing.assert_allclose(found[member, position].numpy(), expected, atol=1e-6)
    # Standardised over the recipients; what is far out is cut, what is constant not divided.
    far, own = found.clone(), statistics(found)
    far[:, 0] *= 1e4
    deviation = found.std(1, correction=0, keepdim=True)
    expected = (far - found.mean(1, keepdim=True)) / torch.where(deviation > 1e-6, deviation, 1.0)
    torch.testing.assert_close(standardise(far, **own), expected.clamp(-6, 6))


def cosines(rows: torch.Tensor) -> torch.Tensor:
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (unit @ unit.t()).fill_diagonal_(0)


@pytest.mark.parametrize("by", ["links", "features"])
def test_similar_nodes_are_the_nearest_by_cosine_and_never_the_node_itself(by):
    generator = torch.Generator().manual_seed(2)
    nodes = 70
    entries = torch.randint(nodes, (2, 600), generator=generator)
    x = torch.rand(nodes, 6, generator=generator, dtype=torch.float64)
    links = torch.zeros(nodes, nodes, dtype=torch.float64)
    links[entries[1], entries[0]] = 1
    alike = cosines(links.fill_diagonal_(0) if by == "links" else x)
    near = alike_by_links(entries, nodes, torch.float64) if by == "links" else alike_by_features(x)
    weights = near(torch.eye(nodes, dtype=torch.float64).unsqueeze(1)).squeeze(1)
    assert float(weights.diagonal().abs().max()) == 0
    best = alike.topk(SIMILAR, dim=1).values
    expected = best**4 / (best**4).sum(1, keepdim=True)
    # Who of several that are equally near is asked does not matter here.
    torch.testing.assert_close(weights.topk(SIMILAR, dim=1).values, expected)
    assert bool((alike[weights > 0] >= best[:, -1:].expand_as(alike)[weights > 0] - 1e-9).all())
