"""A generated graph of several node types whose evidence sits in one relation.

Papers are written by authors, appear in venues and cite other papers. Every paper has one senior
author, who is of its class, and three juniors; venues and citations are drawn at random, and a
paper's own features are noise. Of half of the papers the juniors mostly agree with the senior. Of
others they *outvote* it, all three being of one other class: a model that averages a paper's
authors is wrong there, and weighing the senior more puts it right. The authors of the rest are all
of one other class: whatever weighs its messages, there is nothing to find.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import HeteroData

from gnn_repair.datasets.splits import stratified_splits

# Small enough to train in seconds. Changing any of them, or the seed, makes another graph, and the
# documentation's figures are of this one.
PAPERS, AUTHORS, VENUES = 900, 240, 12
CLASSES = 6
FEATURES = {"paper": 8, "author": 16, "venue": 8}
SEED = 11
"""Of the generated graph; tests and examples quote its numbers, so it stays."""

_EXPERTS = (3, 1, 0)  # among a paper's four authors; the senior is one of them, or none is
_JUNIORS = 3
_SHARES = (0.5, 0.3, 0.2)  # of papers with so many experts
_CITATIONS = 3
_NOISE = 0.4  # of the authors' features, beside centres of size one a coordinate
_STEP = 32  # features are rounded to 1/32, so that no platform's last bit matters


def generate_publications() -> HeteroData:
    """The graph of publications; always the same one.

    Returns:
        Node types ``paper`` (``x``, ``y``, masks [N, 3] and ``experts``: how many of its four
        authors are of its class), ``author`` (``x``, ``field``: its class, ``senior``: its rank)
        and ``venue`` (``x``). Relations ``writes``, ``publishes`` and ``cites`` into papers, and
        the first two reversed.
    """
    generator = np.random.default_rng(SEED)
    labels, fields = (np.arange(count) % CLASSES for count in (PAPERS, AUTHORS))
    labels, fields = generator.permutation(labels), generator.permutation(fields)
    senior = np.arange(AUTHORS) % 2 == 0
    experts, writes = _writes(generator, labels, fields, senior)
    data = HeteroData()
    centres = generator.standard_normal((CLASSES, FEATURES["author"]))
    looks = centres[fields] + _NOISE * generator.standard_normal((AUTHORS, FEATURES["author"]))
    looks[:, -1] = senior  # the one coordinate that tells ranks apart
    data["paper"].x = _rounded(generator.standard_normal((PAPERS, FEATURES["paper"])))
    data["author"].x = _rounded(looks)
    data["venue"].x = _rounded(generator.standard_normal((VENUES, FEATURES["venue"])))
    data["paper"].y, data["paper"].experts = torch.from_numpy(labels), torch.from_numpy(experts)
    data["author"].field, data["author"].senior = map(torch.from_numpy, (fields, senior))
    masks = stratified_splits(data["paper"].y, (50, 25, 25), range(3), draw="numpy")
    for name, mask in zip(("train_mask", "val_mask", "test_mask"), masks, strict=True):
        data["paper"][name] = mask
    venue = np.stack([generator.integers(VENUES, size=PAPERS), np.arange(PAPERS)])
    _add(data, ("author", "writes", "paper"), writes, reverse=True)
    _add(data, ("venue", "publishes", "paper"), venue, reverse=True)
    _add(data, ("paper", "cites", "paper"), _citations(generator), reverse=False)
    return data


def _writes(
    generator: np.random.Generator, labels: np.ndarray, fields: np.ndarray, senior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many experts every paper has [N], and who writes what [2, E]."""
    ranks = [np.flatnonzero((fields == field) & senior) for field in range(CLASSES)]
    juniors = [np.flatnonzero((fields == field) & ~senior) for field in range(CLASSES)]
    experts = generator.choice(_EXPERTS, PAPERS, p=_SHARES)
    pairs = []
    for paper, label in enumerate(labels):
        other = (label + generator.integers(1, CLASSES)) % CLASSES
        lead = generator.choice(ranks[label if experts[paper] else other])
        agreeing = max(experts[paper] - 1, 0)
        own = generator.choice(juniors[label], agreeing, replace=False)
        rest = generator.choice(juniors[other], _JUNIORS - agreeing, replace=False)
        chosen = generator.permutation(np.concatenate([[lead], own, rest]))
        pairs += [(author, paper) for author in chosen]
    return experts, np.array(pairs).T


def _citations(generator: np.random.Generator) -> np.ndarray:
    """Who is cited by whom, [2, E]: other papers, each once a paper."""
    cited = [(paper + generator.choice(PAPERS - 1, _CITATIONS, replace=False) + 1) % PAPERS
             for paper in range(PAPERS)]  # fmt: skip
    return np.stack([np.concatenate(cited), np.repeat(np.arange(PAPERS), _CITATIONS)])


def _add(
    data: HeteroData, relation: tuple[str, str, str], edges: np.ndarray, reverse: bool
) -> None:
    source, name, target = relation
    data[relation].edge_index = torch.from_numpy(np.ascontiguousarray(edges))
    if reverse:
        turned = torch.from_numpy(np.ascontiguousarray(edges[::-1]))
        data[target, f"rev_{name}", source].edge_index = turned


def _rounded(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((np.round(values * _STEP) / _STEP).astype(np.float32))
