"""Label histograms against walks counted one by one; no node is ever told its own label."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.repair.evidence import HIDDEN, LabelEvidence

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
    labels = [0, 2, 3, 1, 2]  # 3: unknown
    found = evidence(name, torch.tensor([labels])).histograms(torch.tensor([labels]))
    torch.testing.assert_close(found[0], walked(name, labels))


@pytest.mark.parametrize("name", list(GRAPHS))
def test_no_node_is_told_its_own_label(name):
    for v in range(5):
        tables = []
        for own in range(CLASSES + 1):
            labels = torch.tensor([[0, 2, 3, 1, 2]])
            labels[0, v] = own
            tables.append(evidence(name, labels).histograms(labels)[0, v])
        for other in tables[1:]:
            torch.testing.assert_close(other, tables[0], rtol=0, atol=1e-12)


def test_members_have_their_own_known_labels():
    labels = torch.tensor([[0, 3, 3, 1, 2], [3, 1, 0, 3, 3]])
    found = evidence("triangle with tails", labels).histograms(labels)
    for s in range(2):
        torch.testing.assert_close(found[s], walked("triangle with tails", labels[s].tolist()))


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
    assert abs(float(shown[0].mean()) - (1 - HIDDEN)) < 0.03
    assert float(shown[1, :1000].sum()) == 0
    assert torch.equal(shown[0, 1000:], shown[1, 1000:])
    again, other = (known.partly(withheld, torch.tensor(seed)) for seed in (5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
