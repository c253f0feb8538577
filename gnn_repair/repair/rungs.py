"""The rungs of the evidence ladder: what each reads, what it is compared with, and its words.

One entry says all about a rung. Plain text, for tables and pages that load no PyTorch.
"""

from __future__ import annotations

from typing import NamedTuple


class Rung(NamedTuple):
    """One candidate beside the frozen model."""

    title: str
    """In tables and on pages."""
    reads: tuple[str, ...]
    """Of ``READS``; empty: a combination of the rungs before it."""
    keeps: bool
    """Whether it shifts the frozen logits, by a bounded amount; else it does without the model."""
    above: str
    """The candidate it is compared with to say what its evidence is worth."""
    evidence: str
    """What it reads that the other does not."""
    advice: str
    """What a user can do when that is worth much."""
    formerly: str = ""
    """Its name in records of version 0.2."""
    lead: str = ""
    """What a gain of this rung means, where there is more to say."""
    rivals: tuple[str, ...] = ()
    """Candidates that, where they do clearly better, show that it does not mean that."""

    @property
    def inductive(self) -> bool:
        """Whether it needs nothing but an exposure, and so holds on other graphs."""
        return self.reads == ("messages",)


READS = ("messages", "labels", "similar", "features")
"""A frozen summary of the node and its messages; labels of neighbours within two hops; labels of
similar nodes; the node's raw features."""

FROZEN, TOGETHER = "frozen", "together"
"""The model as it is; the weighed mean of all rungs but smoothing."""

_ATTEND = "let nodes attend to similar ones, wherever they are"

RUNGS: dict[str, Rung] = {
    "messages": Rung(
        "messages",
        ("messages",),
        True,
        FROZEN,
        "honest mistakes to learn from (validation nodes, in folds)",
        "give the classifier more labels: hold out fewer of them",
        "summary",
    ),
    "labels": Rung(
        "messages + neighbours' labels",
        ("messages", "labels"),
        True,
        "messages",
        "labels of neighbours, which the network never saw,",
        "feed known labels of neighbours as input",
        "summary-labels",
    ),
    "similar": Rung(
        "messages + similar nodes' labels",
        ("messages", "labels", "similar"),
        True,
        "labels",
        "labels of similar nodes, wherever they are,",
        _ATTEND,
        "summary-kin",
    ),
    "skip": Rung(
        "messages + raw features",
        ("messages", "labels", "features"),
        True,
        "labels",
        "the raw features, which the network no longer shows,",
        "add a skip connection from the features to the classifier",
        "summary-features",
    ),
    "everything": Rung(
        "messages + all evidence",
        ("messages", "labels", "similar", "features"),
        True,
        "similar",
        "the raw features, beside labels of similar nodes,",
        "add a skip connection from the features to the classifier",
        "summary-all",
    ),
    "features": Rung(
        "own features alone",
        ("features",),
        False,
        FROZEN,
        "the node's own features alone",
        "use an MLP or a skip connection",
        lead="the graph hurts here: ",
        rivals=("messages", "labels", "skip", "everything", "features-labels"),
    ),
    "features-labels": Rung(
        "own features + neighbours' labels",
        ("labels", "features"),
        False,
        "features",
        "labels of neighbours, beside a node's own features,",
        "feed known labels of neighbours as input",
    ),
    "features-similar": Rung(
        "own features + similar nodes' labels",
        ("labels", "similar", "features"),
        False,
        "features-labels",
        "labels of similar nodes, beside a node's own features,",
        _ATTEND,
    ),
    "smoothed": Rung(
        "smoothing",
        (),
        False,
        TOGETHER,
        "predictions and known labels, smoothed along links,",
        "smooth predictions along links (Correct-and-Smooth)",
    ),
}
"""By name, in the order of the tables."""

NOTHING = "nothing to gain: no evidence beside the model's own stands out"
"""Advice where the frozen model stays as it is."""
UNCLEAR = "the candidates together beat the model, but no single kind of evidence stands out"
"""Advice where it does not, and still nothing stands out."""


def title_of(name: str) -> str:
    """How people read a candidate's name."""
    if name in RUNGS:
        return RUNGS[name].title
    return {FROZEN: "Frozen", TOGETHER: "all together"}.get(name, name)
