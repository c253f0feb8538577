"""The built-in graph: a generated text that behaves like Roman-empire and needs no file.

Tokens stand in one long chain. A sparse grammar decides which of the 18 classes may follow which,
so neighbours almost never share a class and yet tell much about each other. Dependency links skip
from a token to a nearby later one of the class that governs it. A token's features are noisy
coordinates of its class, and some tokens are used in the place of another class (as words are), so
neither the features nor the neighbours alone decide the class.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from gnn_repair.datasets.splits import stratified_splits

# Small enough to train in seconds. Changing any of them, or the seed, makes another graph, and the
# documentation's figures are of this one.
TOKENS = 3_000
FEATURES = 64
CLASSES = 18
SEED = 7
"""Of the generated graph; tests and examples quote its numbers, so it stays."""

_COMMON = 3  # classes that may turn up anywhere
_FOLLOW = (0.72, 0.86)  # cumulative probabilities of a class's three possible successors
_AMBIGUOUS = 0.3  # share of tokens that look like another class
_LINKED = 0.8  # share of tokens that look for their governor
_REACH = range(2, 9)  # how far ahead a governor is looked for
_STEP = 32  # features are rounded to 1/32, so that no platform's last bit matters


def generate_builtin() -> Data:
    """The built-in graph before preprocessing; always the same one.

    Returns:
        ``x`` float32 [N, F], ``edge_index`` [2, links] (one direction), ``y`` long [N] and ten
        stratified 50/25/25 splits.
    """
    generator = np.random.default_rng(SEED)
    labels = _text(generator, _grammar(generator))
    links = _links(generator, labels)
    features = _features(generator, labels)
    y = torch.from_numpy(labels)
    train, val, test = stratified_splits(y, (50, 25, 25), range(10), draw="numpy")
    return Data(
        x=torch.from_numpy(features),
        edge_index=torch.from_numpy(links).t().contiguous(),
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
    )


def _derangement(generator: np.random.Generator) -> np.ndarray:
    """For each class another class: one cycle through all of them in random order; [C]."""
    order = generator.permutation(CLASSES)
    other = np.empty(CLASSES, dtype=np.int64)
    other[order] = np.roll(order, -1)
    return other


def _grammar(generator: np.random.Generator) -> np.ndarray:
    """The three classes that may follow each class, likeliest first; [C, 3].

    The likeliest ones form a cycle, so that every class keeps coming back; the third is one of
    the few common classes, so that classes differ in size.
    """
    likely = [_derangement(generator), _derangement(generator)]
    return np.stack([*likely, generator.integers(_COMMON, size=CLASSES)], axis=1)


def _text(generator: np.random.Generator, successors: np.ndarray) -> np.ndarray:
    """The class of each token along the chain; [N]."""
    choices = np.searchsorted(_FOLLOW, generator.random(TOKENS))
    labels = np.zeros(TOKENS, dtype=np.int64)
    for token in range(1, TOKENS):
        labels[token] = successors[labels[token - 1], choices[token]]
    return labels


def _links(generator: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Chain links and dependency links; [links, 2]."""
    governor = _derangement(generator)
    links = [(token, token + 1) for token in range(TOKENS - 1)]
    for token in np.flatnonzero(generator.random(TOKENS) < _LINKED):
        ahead = (token + step for step in _REACH if token + step < TOKENS)
        found = next((other for other in ahead if labels[other] == governor[labels[token]]), None)
        if found is not None:
            links.append((int(token), int(found)))
    return np.array(links)


def _features(generator: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Noisy coordinates of the class each token looks like; float32 [N, F]."""
    centres = generator.standard_normal((CLASSES, FEATURES))
    disguise = _derangement(generator)
    ambiguous = generator.random(TOKENS) < _AMBIGUOUS
    looks_like = np.where(ambiguous, disguise[labels], labels)
    features = centres[looks_like] + generator.standard_normal((TOKENS, FEATURES))
    return (np.round(features * _STEP) / _STEP).astype(np.float32)
