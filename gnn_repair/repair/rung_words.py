"""The rungs of the evidence ladder in words, for tables and pages that load no PyTorch."""

from __future__ import annotations

from typing import NamedTuple


class RungWords(NamedTuple):
    """What a rung is compared with, what it reads more, and what to do when that is worth much."""

    above: str
    """The rung it is compared with to say what its evidence is worth."""
    evidence: str
    """What it reads that the other does not."""
    advice: str
    """What a user can do about it."""


_HONEST = "honest mistakes to learn from, on validation nodes in folds,"
_LABELS = "the labels of neighbours, which the network never saw,"
_FEATURES = "the raw features, which the network no longer shows,"
_HOLD = "give the classifier more labels: hold out fewer of them"
_FEED = "feed known labels of neighbours as input"
_SKIP = "add a skip connection from the features to the classifier"

WORDS: dict[str, RungWords] = {
    "paper": RungWords(
        "frozen",
        "the message sets, learned from training nodes alone,",
        "keep set translation as the paper fits it",
    ),
    "summary": RungWords("frozen", _HONEST, _HOLD),
    "summary-labels": RungWords("summary", _LABELS, _FEED),
    "summary-features": RungWords("summary-labels", _FEATURES, _SKIP),
    "summary-kin": RungWords(
        "summary-labels",
        "the labels of the most similar nodes, wherever they are,",
        "change the aggregator: let nodes attend to similar ones",
    ),
    "summary-all": RungWords(
        "summary-kin",
        "the raw features, beside labels of similar nodes,",
        "add a skip connection and attend to similar nodes",
    ),
    "set": RungWords("frozen", _HONEST, _HOLD),
    "labels": RungWords("set", _LABELS, _FEED),
    "labels-features": RungWords("labels", _FEATURES, _SKIP),
    "labels-reweighting": RungWords(
        "labels",
        "new weights of the messages",
        "change the aggregator: attention, or other weights",
    ),
    "labels-features-reweighting": RungWords(
        "labels-reweighting",
        "the raw features, beside labels and new weights,",
        "add a skip connection and change the aggregator",
    ),
}
"""By name, in the order of the ladder."""

NOTHING = "nothing to gain: no evidence beside the model's own stands out"
"""Advice where no rung stands out."""
