"""Static figures for papers: the overview's plots and one node's polytope, as SVG and PDF."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_repair.atomic import as_path, replacing
from gnn_repair.budget import as_list, check_type, check_whole
from gnn_repair.errors import InputError
from gnn_repair.methods import METHODS
from gnn_repair.published import plural
from gnn_repair.reporting.evidence import Evidence, Floats, check_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "pdf")
TRUE, RIVAL, RIVAL_TWO, OTHER = "#0072b2", "#d55e00", "#b4548c", "#8b929c"
RIGHT, REACHED = "#9fb6c9", "#009e73"
LOOKS = {"frozen": ("o", "#16191d"), "oracle": ("*", "#f0e442")}
"""Marker and colour of predictions that are no method's, as on the page."""
MARKERS = {
    "diamond": "D", "triangle": "^", "flipped": "v", "square": "s", "pentagon": "p", "circle": "o",
}  # fmt: skip
"""matplotlib's names of the page's markers."""
SPARE = ("P", "#9467bd")
"""Marker and colour of a method that is not declared."""
STATUS = (("frozen right", RIGHT), ("wrong, reachable", REACHED), ("wrong, unreachable", RIVAL))


def write_figures(
    evidence: Evidence,
    folder: str | Path,
    *,
    node: int | None = None,
    class_names: Sequence[str] | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw a run's figures into ``folder``.

    Args:
        evidence: what :func:`gnn_repair.reporting.evidence.gather` collected.
        folder: made if need be.
        node: whose polytope; the reachable error with the largest γ unless given.
        class_names: names of the classes.
        formats: ``svg`` and ``pdf``, or further formats of matplotlib.

    Returns:
        The files written.
    """
    from matplotlib.figure import Figure

    check_type("evidence", evidence, Evidence, "what gather returns")
    supported = Figure().canvas.get_supported_filetypes()
    for kind in as_list("formats", formats, "a list such as ['svg', 'pdf']"):
        if kind not in supported:
            raise InputError(f"there is no format {kind!r:.60}; choose from {', '.join(supported)}")
    names = check_names(class_names, evidence.num_classes, "class")
    target = as_path(folder)
    if target.is_file():
        raise InputError(f"{target} is no folder; name one for the figures")
    place = 0
    if node is not None:
        check_whole("write_figures", "node", node, 0)
        if node not in evidence.nodes:
            raise InputError(
                f"{evidence.noun} {node} is not among the report's {plural(evidence.noun)}; choose "
                "one of them"
            )
        place = int(np.flatnonzero(evidence.nodes == node)[0])
    # A node type's name may hold characters that a file's name cannot.
    noun = re.sub(r"[^0-9A-Za-z]+", "-", evidence.noun).strip("-") or "node"
    figures: dict[str, Callable[..., None]] = {"accuracy": draw_accuracy}
    if evidence.corrections:
        figures["moves"] = draw_moves
    figures |= {"margins": draw_margins, "degree": draw_degree}
    if not np.isnan(evidence.homophily).all():  # graphs have no neighbours
        figures["homophily"] = draw_homophily
    figures["support"] = draw_support
    node_name = f"{noun}-{evidence.nodes[place]}"
    figures[node_name] = partial(draw_polytope, i=place, names=names)
    return [
        path
        for name, draw in figures.items()
        for path in _save(partial(draw, evidence=evidence), target / name, formats)
    ]


def _save(draw: Callable[[Axes], None], stem: Path, formats: Sequence[str]) -> list[Path]:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    draw(figure.add_subplot())
    paths = []
    # Text stays text, so that a paper's own fonts and search work.
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
        for kind in formats:
            path = stem.with_name(f"{stem.name}.{kind}")
            with replacing(path, folders=True) as temporary:
                figure.savefig(temporary, format=kind)
            paths.append(path)
    return paths


def _legend(axes: Axes) -> None:
    """Above the plot, where it covers nothing."""
    columns = len(axes.get_legend_handles_labels()[1])
    axes.legend(
        frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncols=columns
    )


def plain(text: str) -> str:
    """The text with dollar signs escaped, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def draw_accuracy(axes: Axes, evidence: Evidence) -> None:
    """One marker per method."""
    truth = evidence.true_class
    rows = [("Frozen", "frozen", evidence.right)]
    rows += [(c.title, c.name, c.predictions == truth) for c in evidence.corrections]
    for y, (_, name, right) in enumerate(rows):
        marker, colour = _look(name)
        axes.plot(100 * right.mean(), y, marker, color=colour, markersize=8)
    axes.set_yticks(range(len(rows)), [plain(title) for title, _, _ in rows])
    axes.margins(0.15)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("accuracy (%)")


def draw_moves(axes: Axes, evidence: Evidence) -> None:
    """Corrected to the right, broken to the left."""
    truth, right = evidence.true_class, evidence.right
    for y, item in enumerate(evidence.corrections):
        repaired = item.predictions == truth
        corrected, broken = int((repaired & ~right).sum()), int((~repaired & right).sum())
        axes.barh(y, corrected, 0.55, color=REACHED, label="corrected" if y == 0 else None)
        axes.barh(y, -broken, 0.55, color=RIVAL, label="broken" if y == 0 else None)
    titles = [plain(item.title) for item in evidence.corrections]
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(y=0.15)
    axes.set_xlabel(plain(plural(evidence.noun)))
    _legend(axes)


def _status(evidence: Evidence) -> np.ndarray[Any, Any]:
    """[n]: 0 right, 1 wrong and reachable, 2 wrong and not."""
    return np.where(evidence.right, 0, np.where(evidence.reachable, 1, 2))


def draw_margins(axes: Axes, evidence: Evidence) -> None:
    """Histogram of γ with the threshold."""
    decided = ~np.isnan(evidence.margin)
    values, status = evidence.margin[decided], _status(evidence)[decided]
    # Outliers are counted in the end bins, or they would flatten all other bins.
    low, high = np.quantile(values, [0.01, 0.99]) if len(values) else (0.0, 1.0)
    step = max(float(high) - min(float(low), 0.0), 1e-6) / 30
    # Zero is an edge, so that no column mixes reachable and unreachable.
    bins = step * np.arange(np.floor(min(low, 0) / step), np.ceil(max(high, step) / step) + 1)
    parts = [np.clip(values[status == s], bins[0], bins[-1]) for s in range(3)]
    colours, labels = [c for _, c in STATUS], [t for t, _ in STATUS]
    axes.hist(parts, bins=list(bins), stacked=True, color=colours, label=labels)
    axes.axvline(0, color="black", linestyle="--", linewidth=1)
    margin = "best margin found" if evidence.head is not None else "γ, best margin"
    axes.set_xlabel(f"{margin} of the true class (logits)")
    axes.set_ylabel(plain(plural(evidence.noun)))
    _legend(axes)


def _shares(axes: Axes, evidence: Evidence, bins: np.ndarray[Any, Any], names: list[str]) -> None:
    status = _status(evidence)
    # An error without an answer is neither reachable nor unreachable.
    bins = np.where(np.isnan(evidence.margin) & ~evidence.right, -1, bins)
    used = [b for b in range(len(names)) if (bins == b).any()]
    base = np.zeros(len(used))
    for s, (label, colour) in enumerate(STATUS):
        share = np.array([100 * (status[bins == b] == s).mean() for b in used])
        axes.bar(range(len(used)), share, bottom=base, color=colour, label=label)
        base += share
    axes.set_xticks(range(len(used)), [names[b] for b in used])
    axes.set_ylabel(plain(f"{plural(evidence.noun)} (%)"))
    _legend(axes)


def draw_degree(axes: Axes, evidence: Evidence) -> None:
    """Shares by degree."""
    edges = np.array([1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513])
    names = ["0", "1", "2", "3–4", "5–8", "9–16", "17–32", "33–64", "65–128", "129–256", "257–512"]
    bins = np.searchsorted(edges, evidence.degree, side="right")
    _shares(axes, evidence, bins, [*names, "513+"])
    axes.set_xlabel("neighbours" if evidence.graph_starts is None else "nodes")


def draw_homophily(axes: Axes, evidence: Evidence) -> None:
    """Shares by the fraction of neighbours of the node's class."""
    share = evidence.homophily
    bins = np.where(share == 0, 0, np.minimum(5, 1 + np.floor(5 * np.nan_to_num(share) - 1e-9)))
    bins = np.where(np.isnan(share), -1, bins)
    _shares(axes, evidence, bins, ["0", ">0–20", "20–40", "40–60", "60–80", "80–100"])
    axes.set_xlabel("neighbours of the same class (%)")


def draw_support(axes: Axes, evidence: Evidence) -> None:
    """Numbers of terms per witness."""
    reachable = evidence.reachable
    counts = np.bincount(evidence.support[reachable], minlength=2)
    axes.bar(range(1, len(counts)), counts[1:], color=REACHED)
    axes.set_xticks(range(1, len(counts)))
    axes.set_xlabel("active terms of the witness")
    axes.set_ylabel(plain(f"reachable {plural(evidence.noun)}"))


def draw_polytope(axes: Axes, evidence: Evidence, i: int, names: Sequence[str]) -> None:
    """Node i's polytope, its vertices, the class regions and every method's point.

    With a nonlinear head only the vertices: each message with all of its group's mass. Two classes
    are drawn on a line.
    """
    if evidence.num_classes == 2:
        _draw_line(axes, evidence, i, [plain(name) for name in names])
        return
    plane, outline = plane_of(evidence, i), hull(evidence, i, plane_of(evidence, i))
    frozen = plane.place(evidence.frozen_logits[i])
    if len(outline):
        axes.fill(*outline.T, facecolor=TRUE, alpha=0.16)
        axes.fill(*outline.T, facecolor="none", edgecolor=TRUE, linewidth=1.4)
    axes.plot(*plane.place(vertices(evidence, i)).T, ".", color=TRUE, markersize=4)
    # A method that is not declared may read the message set.
    node_only = {name for name, method in METHODS.items() if not method.message_set}
    translated = {c.name for c in evidence.corrections if c.kind == "shift"} - node_only
    for name, title, logits in _predictions(evidence, i):
        at = plane.place(logits)
        if name in translated and len(outline):
            axes.fill(*(outline + at - frozen).T, fill=False, edgecolor=REACHED, linestyle="--")
        if name != "frozen":
            axes.annotate(
                "", tuple(at), tuple(frozen), arrowprops={"arrowstyle": "->", "color": "#5b636e"}
            )
        _mark(axes, at, name, 15 if name == "oracle" else 8, label=plain(title))
    _regions(axes, plane, names)
    axes.set_xlabel(plain(f"margin over {names[plane.one]} (logits)"))
    axes.set_ylabel(plain(f"margin over {names[plane.two]} (logits)"))
    axes.set_title(plain(f"{evidence.noun} {evidence.nodes[i]}, which is {names[plane.true]}"))
    axes.legend(frameon=False, fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))


def _look(name: str) -> tuple[str, str]:
    """Marker and colour of a prediction."""
    if name in LOOKS or name not in METHODS:
        return LOOKS.get(name, SPARE)
    look = METHODS[name].look
    return MARKERS[look.marker], look.colour


def _mark(axes: Axes, at: Any, name: str, size: int, label: str = "") -> None:
    """A prediction's marker with an outline."""
    marker, colour = _look(name)
    axes.plot(*at, marker, color=colour, markersize=size, markeredgecolor="#16191d",
              markeredgewidth=0.7, linestyle="none", label=label)  # fmt: skip


def _predictions(evidence: Evidence, i: int) -> list[tuple[str, str, np.ndarray[Any, Any]]]:
    """Name, title and logits of node i's frozen point, oracle and repairs."""
    terms = evidence.terms(i)
    logits = evidence.witness[terms] @ evidence.contributions[evidence.rows[terms]]
    logits += evidence.fixed_logits[i]
    if evidence.head is not None:
        logits = evidence.head.oracle_logits[i]
    oracle = [("oracle", "Oracle", logits)] if not np.isnan(evidence.margin[i]) else []
    repairs = [(c.name, c.title, c.logits[i]) for c in evidence.corrections]
    return [("frozen", "Frozen", evidence.frozen_logits[i]), *oracle, *repairs]


def _regions(axes: Axes, plane: Plane, names: Sequence[str]) -> None:
    """The regions where each of the three classes wins, in the background."""
    axes.axis("tight")
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    wide, high = 0.08 * (right - left), 0.08 * (top - bottom)
    left, right = min(left, -wide), max(right, wide)
    bottom, top = min(bottom, -high), max(top, high)
    far = 2 * max(-left, right, -bottom, top, 1e-9)
    corners = {
        plane.true: ([(0, 0), (far, 0), (far, far), (0, far)], TRUE),
        plane.one: ([(0, 0), (0, far), (-far, far), (-far, -far)], RIVAL),
        plane.two: ([(0, 0), (far, 0), (far, -far), (-far, -far)], RIVAL_TWO),
    }
    for index, (polygon, colour) in corners.items():
        axes.fill(*zip(*polygon, strict=True), color=colour, alpha=0.14, zorder=0,
                  label=plain(f"{names[index]} wins"), linewidth=0)  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


# The plane a polytope is drawn in, and the line of two classes ------------------------------------


@dataclass(frozen=True, eq=False)
class Plane:
    """Margins of the true class over two rivals: across over ``one``, up over ``two``."""

    true: int
    one: int
    two: int

    def place(self, logits: Floats) -> Floats:
        """[…, C] logits to […, 2] positions."""
        rivals = logits[..., [self.one, self.two]]
        return np.asarray(logits[..., [self.true]] - rivals)


def plane_of(evidence: Evidence, i: int) -> Plane:
    """The default plane: the strongest rival when frozen, and the one with the largest weight in
    the proof (or the next strongest)."""
    true = int(evidence.true_class[i])
    ranked = [int(c) for c in np.argsort(-evidence.frozen_logits[i]) if c != true]
    weights = evidence.rival_weights[i].copy()
    weights[[true, ranked[0]]] = 0.0
    two = int(weights.argmax()) if weights.max() > 0 else ranked[min(1, len(ranked) - 1)]
    return Plane(true, ranked[0], two)


def vertices(evidence: Evidence, i: int) -> Floats:
    """[K, C]: logits with all of a term's group mass on it and the other groups as frozen."""
    if evidence.head is not None:
        alone = evidence.head.alone_logits[evidence.terms(i)]
        return alone if len(alone) else evidence.frozen_logits[i : i + 1]
    logits = []
    for terms in group_slices(evidence, i):
        alpha, table = evidence.coefficients[terms], evidence.contributions[evidence.rows[terms]]
        if len(alpha):
            logits.append(evidence.frozen_logits[i] - alpha @ table + alpha.sum() * table)
    return np.concatenate(logits) if logits else evidence.frozen_logits[i : i + 1]


def hull(evidence: Evidence, i: int, plane: Plane) -> Floats:
    """[H, 2]: outline of the projected β + Σ_g m_g conv{ℓ_a}, counterclockwise.

    The logits of a nonlinear head are no polytope; then there is no outline, [0, 2].
    """
    if evidence.head is not None:
        return np.empty((0, 2))
    outline = plane.place(evidence.fixed_logits[i])[None]
    for terms in group_slices(evidence, i):
        mass = evidence.coefficients[terms].sum()
        if mass > 0:
            part = convex_hull(mass * plane.place(evidence.contributions[evidence.rows[terms]]))
            outline = convex_hull((outline[:, None] + part[None]).reshape(-1, 2))
    return outline


def group_slices(evidence: Evidence, i: int) -> list[slice]:
    """The terms of node i, by group."""
    groups = len(evidence.groups)
    ends = evidence.segments[i * groups : (i + 1) * groups + 1]
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def convex_hull(points: Floats) -> Floats:
    """Corners of the convex hull in the plane, counterclockwise (Andrew's monotone chain)."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    if len(ordered) < 3:
        return np.array(ordered)
    corners: list[tuple[float, float]] = []
    for points_in_order in (ordered, ordered[::-1]):
        chain: list[tuple[float, float]] = []
        for x, y in points_in_order:
            while len(chain) > 1:
                (ox, oy), (ax, ay) = chain[-2:]
                if (ax - ox) * (y - oy) - (ay - oy) * (x - ox) > 0:  # a turn to the left
                    break
                chain.pop()
            chain.append((x, y))
        corners += chain[:-1]
    return np.array(corners)


def lead_range(evidence: Evidence, i: int) -> tuple[float, float] | None:
    """The smallest and the largest lead of node i's true class over its only rival, over all
    mixtures of its messages; None with a nonlinear head, where it is unknown."""
    if evidence.head is not None:
        return None
    true = int(evidence.true_class[i])
    low = high = float(evidence.fixed_logits[i, true] - evidence.fixed_logits[i, 1 - true])
    for terms in group_slices(evidence, i):
        mass, table = evidence.coefficients[terms].sum(), evidence.contributions
        lead = table[evidence.rows[terms], true] - table[evidence.rows[terms], 1 - true]
        if len(lead):
            low, high = low + float(mass * lead.min()), high + float(mass * lead.max())
    return low, high


def _draw_line(axes: Axes, evidence: Evidence, i: int, names: Sequence[str]) -> None:
    """One row per prediction; all mixtures as a bar."""
    true, predictions = int(evidence.true_class[i]), _predictions(evidence, i)
    rival = 1 - true
    rows = [plain(title) for _, title, _ in predictions]
    for row, (name, _, logits) in enumerate(predictions):
        _mark(axes, (logits[true] - logits[rival], row), name, 9)
    reach = lead_range(evidence, i)
    if reach is not None:
        rows.append("all mixtures")
        low, high = reach
        axes.barh(len(rows) - 1, high - low, 0.4, left=low, color="#0072b2", alpha=0.4)
    rows.append("terms, each alone")
    points = vertices(evidence, i)
    leads = points[:, true] - points[:, rival]
    axes.plot(leads, np.full(len(leads), len(rows) - 1), ".", color="#0072b2")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"lead of {names[true]} over {names[rival]} (logits)")
    axes.set_title(f"{evidence.noun} {evidence.nodes[i]}, which is {names[true]}")
