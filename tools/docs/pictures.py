"""The drawings of docs/concepts.md: ``python -m tools.docs.pictures`` makes them anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
FOLDER = Path(__file__).parents[2] / "docs" / "images"
FROZEN = np.array([0.25, 0.25, 0.5])
"""The model's coefficients of the three messages, in both drawings."""
CAN = np.array([[3.0, -1.0], [-0.8, 2.6], [-2.0, -1.5]])
CANNOT = np.array([[2.2, -2.4], [-2.6, 0.6], [-2.0, -2.0]])
"""Messages: by how much each prefers the class to the first and to the second rival."""
BESIDE = ((-62, -16), (-20, 9), (-20, -17))
"""Where the messages' names stand, in points from their dots."""
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"


def best(messages: Floats) -> tuple[Floats, Floats, Floats]:
    """The λ and w of the first two messages' edge where it crosses the diagonal, and the crossing.

    Where that edge is the outermost one, no mixture has a larger smaller coordinate.
    """
    a, b = messages[:2]
    step = b - a
    share = (a[0] - a[1]) / (step[1] - step[0])
    normal = np.array([step[1], -step[0]])
    return np.array([1 - share, share, 0.0]), normal / normal.sum(), a + share * step


def draw(path: Path = FOLDER / "concepts-evidence.svg") -> None:
    """A class that can win beside one that cannot."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "gnn-repair", "font.size": 10.5}
    ):
        figure = Figure(figsize=(9, 4.5), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2)
        _can(left)
        _cannot(right)
        figure.savefig(path, bbox_inches="tight", pad_inches=0.2, metadata={"Date": None})


def _can(ax: Axes) -> None:
    _, _, point = best(CAN)
    _plane(ax, CAN, "The class can win")
    ax.plot(*point, "*", color=GREEN, markersize=15)
    _say(ax, point, f"best reweighting λ,\nmargin γ = {point.min():.2f}", (-12, 20), GREEN)


def _cannot(ax: Axes) -> None:
    _, weights, point = best(CANNOT)
    _plane(ax, CANNOT, "The class cannot win")
    ends = np.array([-3.4, 3.4])
    ax.plot(ends, (point.min() - weights[0] * ends) / weights[1], "--", color=ORANGE)
    ax.plot(*point, "*", color=ORANGE, markersize=15)
    words = (
        f"rival mixture w = ({weights[0]:.2f}, {weights[1]:.2f}):\nnothing lies beyond this line"
    )
    _say(ax, point, f"{words}, γ = −{-point.min():.2f}", (-78, 84), ORANGE)


def _plane(ax: Axes, messages: Floats, title: str) -> None:
    ax.fill_between([0, 3.4], 0, 3.4, color=GREEN, alpha=0.13, linewidth=0)
    ax.text(3.3, 3.1, "the class wins", ha="right", color=GREEN)
    ax.fill(*messages.T, color=BLUE, alpha=0.15)
    ax.fill(*messages.T, fill=False, edgecolor=BLUE)
    ax.plot(*messages.T, "o", color=BLUE)
    for number, (message, offset) in enumerate(zip(messages, BESIDE, strict=True), 1):
        _say(ax, message, f"message {number}", offset, BLUE)
    frozen = FROZEN @ messages
    ax.plot(*frozen, "s", color="black")
    _say(ax, frozen, "the model's α", (-30, -17), "black")
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.axvline(0, color=GREY, linewidth=0.8)
    ax.set(xlim=(-3.4, 3.4), ylim=(-3.4, 3.4), title=title, aspect="equal")
    ax.set(xlabel="logit lead over rival 1", ylabel="logit lead over rival 2")


def _say(ax: Axes, place: Floats, words: str, offset: tuple[int, int], color: str) -> None:
    ax.annotate(
        words, (place[0], place[1]), offset, textcoords="offset points", color=color, fontsize=9.5
    )


if __name__ == "__main__":
    draw()
