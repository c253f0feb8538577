"""What a report shows about one run: every chosen node's terms, witness and predictions.

Gathered once from an exposure, the oracle's answers and the fitted repairs, into plain NumPy arrays
that the page, the figures and the tests read alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.budget import check_type
from gnn_repair.checks import as_member, as_nodes, check_edges
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.heads.head import followed_by
from gnn_repair.exposure.pieces import classes_for, require_outputs
from gnn_repair.exposure.value import Group, HeldPart
from gnn_repair.methods import METHODS
from gnn_repair.oracle.heads.solve import model_logits
from gnn_repair.oracle.metrics import Changes, Reach, least_changes, reach
from gnn_repair.oracle.problems import CAN, CANNOT, UNDECIDED
from gnn_repair.oracle.rates import ReachCounts, count_reach
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from gnn_repair.published import ACTIVE, REACHABLE
from gnn_repair.repair.baselines import KeptPrediction
from gnn_repair.repair.folds import FittedCrossFit
from gnn_repair.repair.inputs import alone_logits

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
VERDICTS = (CAN, CANNOT, UNDECIDED)
RESERVED = ("frozen", "oracle", "nearest", "what_if", "unit")
"""Keys of the page's predictions that are not repairs."""
MOST_CHANGES, MOST_CHANGES_BEHIND_A_HEAD = 30_000, 300
"""Smallest changes that are computed: about a millisecond each, with a nonlinear head up to
seconds. Of more errors an evenly spread sample is solved."""
PER_NODE = frozenset({
    "nodes", "degree", "homophily", "frozen_logits", "fixed_logits", "margin", "rival_weights",
    "verdict", "bound", "reasons", "oracle_logits", "reachable", "decided", "share", "chance",
    "possible", "logits",
})  # fmt: skip
PER_TERM = frozenset({"coefficients", "witness", "alone_logits", "nearest"})
"""Fields with one row per shown node, and per term."""


class FittedLike(Protocol):
    """A fitted repair. One that reweights also has ``coefficients(exposure)``, one that
    translates ``shift(exposure)``."""

    def logits(self, exposure: Any) -> Tensor:
        """[n, C] or [S, n, C] at the recipients."""


RepairLike = FittedLike | Tensor
"""A fitted repair, or the logits [N, C] of a method of your own."""
Kind = Literal["coefficients", "shift", "logits"]
Answers = tuple[Reach, Changes]
"""Results of ``reach`` and ``least_changes`` for the shown nodes."""


# What is shown ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadEvidence:
    """Verdicts about n nodes of a model with a nonlinear head, and the logits behind them.

    Logits are then no mixture of contributions, so the page shows logits that the model, or its
    certified head, computes: at the oracle's λ, and with all of a group's mass on one message.
    """

    words: str
    """The head's operations, such as ``layer_norm, relu, affine``."""
    replayed: bool
    """Whether the oracle's logits are the model's own."""
    verdict: Integers
    """[n]: a place in VERDICTS."""
    margin: Floats
    """[n]: the best margin found, attained by the witness."""
    bound: Floats
    """[n]: proved upper bound over all reweightings; infinite where nothing is proved."""
    reasons: NDArray[np.str_]
    """[n]: why a node is undecided; empty for the others."""
    oracle_logits: Floats
    """[n, C]: with the witness's λ."""
    alone_logits: Floats
    """[T, C]: with all of a term's group mass on it and the other groups as frozen."""

    @property
    def proved(self) -> Flags:
        """[n]: some reweighting was shown to make the true class win."""
        return np.asarray(self.verdict == VERDICTS.index(CAN))

    @property
    def decided(self) -> Flags:
        """[n]: the verdict is can or cannot."""
        return self.proved | (self.verdict == VERDICTS.index(CANNOT))


@dataclass(frozen=True, eq=False)
class ClassEvidence:
    """Which classes could win at n nodes, and by which smallest change."""

    reachable: Flags
    """[n, C]: some reweighting was shown to make the class win."""
    decided: Flags
    """[n, C]: reachable, or proved unreachable; with a nonlinear head at errors only."""
    share: Floats
    """[n, C]: the least share of the node's mass that must move; infinite where the class cannot
    win, NaN where it was not computed (right nodes, other classes with a nonlinear head)."""
    nearest: Floats
    """[T]: the λ of the true class's smallest change; α elsewhere."""
    chance: Floats
    """[n]: the share of classes neither true nor predicted that can win; NaN with two classes, and
    where it was not computed."""
    possible: Floats
    """[n]: the share of such classes that are not excluded."""
    figures: Reach | None
    """Counts over these nodes; None where reach was not computed."""


@dataclass(frozen=True, eq=False)
class Correction:
    """One repair's answers at n nodes."""

    name: str
    title: str
    """The name as it was given."""
    kind: Kind
    logits: Floats
    """[n, C]."""
    coefficients: Floats | None = None
    """[T]: λ, where the repair reweights."""

    @property
    def predictions(self) -> Integers:
        """[n]."""
        return self.logits.argmax(1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """One member's view of n chosen nodes: errors first, by γ from high to low.

    Sizes: n nodes, N nodes of the graph, G groups, T terms, R table rows, C classes.
    """

    groups: tuple[str, ...]
    nodes: Integers
    """[n]: the graph node."""
    labels: Integers
    """[N]: y, −1 where unknown."""
    predictions: Integers
    """[N]: the frozen model's class."""
    degree: Integers
    """[n]: neighbours that send to it, the node itself left out; of graphs their nodes."""
    homophily: Floats
    """[n]: share of them with the node's class, of those labelled; NaN without any."""
    frozen_logits: Floats
    """[n, C]: z⁰."""
    fixed_logits: Floats
    """[n, C]: β; zero with a nonlinear head, whose logits have no such part."""
    segments: Integers
    """[n·G + 1]: terms of node i and group g are ``segments[i·G+g] : segments[i·G+g+1]``."""
    rows: Integers
    """[T]: the table row of a term."""
    coefficients: Floats
    """[T]: α."""
    contributions: Floats
    """[R, C]: ℓ; zero with a nonlinear head."""
    sources: Integers
    """[R]: the node that sent it."""
    margin: Floats
    """[n]: γ of the true class, NaN where undecided; with a nonlinear head the best one found."""
    rival_weights: Floats
    """[n, C]: w."""
    witness: Floats
    """[T]: the oracle's λ."""
    corrections: tuple[Correction, ...] = ()
    edges: Integers | None = None
    """[2, E]: each undirected edge once, for drawing; None where the graph is not known."""
    unlabelled: int = 0
    """Chosen nodes that are not shown because their class is unknown."""
    head: HeadEvidence | None = None
    """Verdicts and logits of a model with a nonlinear head."""
    classes: ClassEvidence | None = None
    """Which classes could win; None where it was not computed."""
    graph_starts: Integers | None = None
    """[B + 1] where graphs are classified: where the nodes of each start, counted from the first.
    Graphs are numbered first, then the nodes of all of them."""
    senders: tuple[str, ...] = ()
    """Senders of other kinds, such as ``author 3``: their numbers follow the nodes'."""
    origin: str = field(default="", kw_only=True)
    noun: str = field(default="node", kw_only=True)
    """What one recipient is called."""
    scope: tuple[str, str] = field(default=("", ""), kw_only=True)
    """What was reweighted where that is not everything, and which parts were held."""

    @property
    def num_classes(self) -> int:
        """C."""
        return self.frozen_logits.shape[1]

    @property
    def true_class(self) -> Integers:
        """[n]."""
        return self.labels[self.nodes]

    @property
    def right(self) -> Flags:
        """[n]: whether the frozen model is right."""
        return self.predictions[self.nodes] == self.true_class

    @property
    def starts(self) -> Integers:
        """[n + 1]: where each node's terms begin."""
        return self.segments[:: len(self.groups)]

    def terms(self, i: int) -> slice:
        """Those of node i."""
        return slice(int(self.starts[i]), int(self.starts[i + 1]))

    @property
    def support(self) -> Integers:
        """[n]: active terms of the witness."""
        active = np.concatenate([[0], np.cumsum(self.witness > ACTIVE)])
        return active[self.starts[1:]] - active[self.starts[:-1]]

    @property
    def reachable(self) -> Flags:
        """[n]: whether the true class can win."""
        return self.margin > REACHABLE

    @property
    def reach(self) -> ReachCounts:
        """Counts over the chosen nodes that have an answer; with a nonlinear head proved nodes are
        counted among all."""
        if self.head is not None:
            counted = np.ones(len(self.nodes), bool)
            return count_reach(self.head.proved, ~self.right, self.support, counted)
        return count_reach(self.reachable, ~self.right, self.support, ~np.isnan(self.margin))

    def cut(self, places: Integers) -> Evidence:
        """The evidence of the nodes at these places, with the table rows and edges they need."""
        group_lengths = np.diff(self.segments).reshape(-1, len(self.groups))[places].ravel()
        lengths = np.diff(self.starts)[places]
        # start, start + 1, … of every node's range of terms
        first = np.repeat(self.starts[places] - np.cumsum(lengths) + lengths, lengths)
        terms = first + np.arange(len(first))
        table_rows, rows = np.unique(self.rows[terms], return_inverse=True)
        sources = self.sources[table_rows]
        edges = self.edges
        if edges is not None:  # edges that a picture of a neighbourhood can show
            is_drawn = np.zeros(len(self.labels), bool)
            is_drawn[self.nodes[places]] = is_drawn[sources] = True
            edges = edges[:, is_drawn[edges].all(0)]

        def cut(value: Any) -> Any:
            index = dict.fromkeys(PER_NODE, places) | dict.fromkeys(PER_TERM, terms)
            arrays = {f.name: getattr(value, f.name) for f in fields(value) if f.name in index}
            return replace(value, **{n: v[index[n]] for n, v in arrays.items() if v is not None})

        return replace(
            cut(self),
            segments=np.append(0, np.cumsum(group_lengths)),
            rows=rows.astype(np.int64),
            contributions=self.contributions[table_rows],
            sources=sources,
            corrections=tuple(cut(correction) for correction in self.corrections),
            edges=edges,
            head=None if self.head is None else cut(self.head),
            classes=None if self.classes is None else cut(self.classes),
        )


# Gathering ----------------------------------------------------------------------------------------


def gather(
    exposure: Exposure,
    y: Tensor,
    nodes: Tensor | None = None,
    *,
    member: int = 0,
    repairs: Mapping[str, RepairLike] | None = None,
    edge_index: Tensor | None = None,
    all_classes: bool = False,
    answers: Answers | None = None,
) -> Evidence:
    """Collect what a report shows; arguments as of :func:`gnn_repair.report`.

    Without ``edge_index`` the sources of the terms count as neighbours. ``all_classes`` also finds
    which other classes could win, and by what change. ``answers`` for different nodes are ignored.
    """
    check_type("exposure", exposure, Exposure, "what gnn_repair.expose returns")
    require_outputs(exposure, "classes")
    y = classes_for(exposure, y).cpu()
    member = as_member(member, exposure.num_members)
    check_repairs(repairs)
    if answers is not None and not (isinstance(answers, tuple) and isinstance(answers[0], Reach)):
        raise InputError(f"answers is {answers!r:.60}; give reach(…) and its changes, or None")
    if edge_index is not None:
        check_type("edge_index", edge_index, Tensor, "the graph's tensor [2, E]")
        check_edges(edge_index, exposure.num_sources)
    if bool((exposure.sources < 0).any()):
        raise InputError(
            "the exposure has terms that nobody sent (relaxed masses), and a report shows who sent "
            "what; report the exposure that it was relaxed from"
        )
    exposure = exposure.to("cpu")
    recipients = chosen_nodes(exposure, nodes, member)
    labelled = recipients[y[recipients] >= 0]
    if not len(labelled):
        raise InputError("no labelled node was chosen for the report; check the mask and y")
    model = exposure.member(member)
    if answers is not None and not np.array_equal(answers[0].classes.node, labelled):
        answers = None
    figures, changes = answers or (None, None)
    if all_classes and figures is None and exposure.head is None:
        figures = _reach(model, y, labelled)
    solution = solve(model, y, labelled) if figures is None else figures.witnesses
    margin = np.where(solution.decided, solution.margin, np.nan)
    predicted = model.frozen_logits[0].argmax(1)
    wrong = predicted[labelled] != y[labelled]
    order = np.lexsort((labelled.numpy(), -margin, ~wrong.numpy()))
    part = exposure.restrict(labelled[torch.from_numpy(order)])
    model_part = part.member(member)
    edges = None if edge_index is None else _undirected(edge_index, part)
    table_rows, rows = np.unique(part.rows.numpy(), return_inverse=True)
    witness = np.zeros(part.num_terms)
    shifts = _term_shifts(model, model_part)
    by_term = np.repeat(shifts[solution.node], np.diff(solution.indptr))
    witness[solution.terms + by_term] = solution.coefficients
    fixed, table, head = _logit_parts(model_part, solution, order, witness)
    weights = np.zeros((len(order), exposure.num_classes))  # of proofs that have none per node
    if solution.rival_weights is not None:
        weights = np.where(np.isnan(margin)[:, None], 0.0, solution.rival_weights)[order]
    degree, homophily = _surroundings(part, y, edge_index)
    held_parts = ", ".join(_held_words(part, exposure.groups) for part in exposure.held)
    evidence = Evidence(
        groups=tuple(group.name for group in exposure.groups),
        nodes=part.recipients.numpy(),
        labels=y.numpy(),
        predictions=predicted.numpy(),
        degree=degree,
        homophily=homophily,
        frozen_logits=model_part.frozen_logits[0, part.recipients].numpy(),
        fixed_logits=fixed,
        segments=part.segments.numpy(),
        rows=rows.astype(np.int64),
        coefficients=model_part.coefficients[0].double().numpy(),
        contributions=table[table_rows],
        sources=part.sources.numpy()[table_rows].astype(np.int64),
        margin=margin[order],
        rival_weights=weights,
        witness=witness,
        corrections=tuple(
            correction_of(name, repair, exposure, part, member)
            for name, repair in (repairs or {}).items()
        ),
        edges=edges,
        unlabelled=len(recipients) - len(labelled),
        head=head,
        origin=exposure.origin,
        noun=noun_of(exposure),
        # Without the brackets in which PyG writes an edge type's name.
        scope=(exposure.scope, re.sub(r"<(.+?)>", lambda n: n[1].replace("___", " "), held_parts)),
    )
    if all_classes:
        if figures is None and bool(wrong.any()):  # with a head errors only: seconds per node
            figures = _reach(model, y, labelled[wrong])
        classes = _class_evidence(evidence, model, y, figures, changes, shifts)
        evidence = replace(evidence, classes=classes)
    typed = part.graph_starts is not None or part.names.typed
    return _with_senders(evidence, part) if typed else evidence


def _held_words(part: HeldPart, groups: Sequence[Group]) -> str:
    """A held part; of a convolution whose messages are reweighted, what of it is held."""
    own = [group for group in groups if part.title.startswith(f"`{group.name.split()[0]}`")]
    if not own:
        return part.title
    attention = all("α = attention" in group.rule for group in own)
    return f"{'attention' if attention else ' and '.join(part.operations)} of {part.title}"


def chosen_nodes(exposure: Exposure, nodes: Any, member: int, name: str = "nodes") -> Tensor:
    """Recipients [n], sorted and unique, that a mask, numbers or None (all) name."""
    if nodes is None:
        return exposure.recipients.cpu()
    if isinstance(nodes, Tensor) and nodes.dtype == torch.bool and nodes.dim() == 2:
        if nodes.shape[1] != exposure.num_members:
            raise InputError(
                f"the mask has {nodes.shape[1]} columns for {exposure.num_members} members; "
                "give one column per member, or one mask"
            )
        nodes = nodes[:, member]
    numbers = torch.unique(as_nodes(nodes, exposure.num_nodes, name, noun_of(exposure)).cpu())
    absent = numbers[~torch.isin(numbers, exposure.recipients.cpu())]
    if len(absent):
        node = exposure.names.node(int(absent[0]))
        raise InputError(f"{node} is no recipient of the exposure; choose others")
    return numbers


def _term_shifts(exposure: Exposure, part: Exposure) -> Integers:
    """[N]: a term's number in ``part`` minus that in ``exposure``, by its recipient."""
    shifts = np.zeros(exposure.num_nodes, np.int64)
    for value, sign in ((exposure, -1), (part, 1)):
        shifts[value.recipients.numpy()] += sign * value.segments[: -1 : value.num_groups].numpy()
    return shifts


def _logit_parts(
    part: Exposure, solution: Solution, order: Integers, witness: Floats
) -> tuple[Floats, Floats, HeadEvidence | None]:
    """β [n, C] and ℓ [R, C]; with a nonlinear head zeros, and the evidence about the head."""
    head = part.head
    if head is None:
        fixed = part.fixed_logits[0, part.recipients].numpy()
        return fixed, part.contributions[0].numpy(), None
    terms = torch.arange(part.num_terms)
    evidence = HeadEvidence(
        words=followed_by(head),
        replayed=part.replay is not None,
        verdict=np.array([VERDICTS.index(str(word)) for word in solution.verdict[order]], np.int64),
        margin=solution.margin[order],
        bound=solution.bound[order],
        reasons=np.array([solution.reasons.get(int(i), "") for i in order], np.str_),
        oracle_logits=model_logits(part, torch.from_numpy(witness)).numpy(),
        alone_logits=alone_logits(part, terms, len(terms))[0].detach().numpy(),
    )
    shape = (part.num_recipients, part.num_classes)
    return np.zeros(shape), np.zeros((len(part.sources), part.num_classes)), evidence


# Other classes ------------------------------------------------------------------------------------


def _reach(exposure: Exposure, y: Tensor, nodes: Tensor) -> Reach:
    answer = reach(exposure, y, nodes)
    assert isinstance(answer, Reach)
    return answer


def _class_evidence(
    evidence: Evidence,
    exposure: Exposure,
    y: Tensor,
    figures: Reach | None,
    changes: Changes | None,
    shifts: Integers,
) -> ClassEvidence:
    """Which classes could win, by what change; nothing was computed if ``figures`` is None."""
    n, classes = len(evidence.nodes), evidence.num_classes
    reachable, decided = np.zeros((n, classes), bool), np.zeros((n, classes), bool)
    chance, possible = np.full(n, np.nan), np.full(n, np.nan)
    share, nearest = np.full((n, classes), np.nan), evidence.coefficients.copy()
    if figures is not None:
        place = np.full(exposure.num_nodes, -1)
        place[evidence.nodes] = np.arange(n)
        answers = figures.classes
        rows = place[answers.node]
        reachable[rows], decided[rows] = answers.reachable, answers.decided
        if classes > 2:
            others = figures.others
            number = others.sum(1)  # one more where the prediction is right
            chance[rows] = (answers.reachable & others).sum(1) / number
            possible[rows] = ((answers.reachable | ~answers.decided) & others).sum(1) / number
        changes = _sampled_changes(figures, exposure, y) if changes is None else changes
        for row, (node, true) in enumerate(zip(changes.node, changes.true, strict=True)):
            column = slice(None) if changes.complete else int(true)
            share[place[node], column] = changes.share[row, column]
            answer = changes.answers.get((row, int(true)))
            if answer is not None and np.isfinite(answer.moved):
                nearest[answer.terms + shifts[node]] += answer.change
    return ClassEvidence(reachable, decided, share, nearest, chance, possible, figures)


def _sampled_changes(figures: Reach, exposure: Exposure, y: Tensor) -> Changes:
    """The smallest changes of the errors, of an evenly spread sample where they are too many."""
    head, wrong = exposure.head is not None, np.flatnonzero(figures.wrong)
    most = MOST_CHANGES_BEHIND_A_HEAD if head else MOST_CHANGES
    number = len(wrong) if head else int(figures.classes.count[wrong].sum())
    if number > most:
        steps = np.linspace(0, len(wrong) - 1, len(wrong) * most // number)
        sample = figures.classes.node[wrong[steps.astype(np.int64)]]
        figures = _reach(exposure, y, torch.from_numpy(sample))
    return least_changes(figures, exposure, others=not head)


# What a repair did -------------------------------------------------------------------------------


def correction_of(
    name: str, repair: RepairLike, exposure: Exposure, part: Exposure, member: int
) -> Correction:
    """The repair's answers at the recipients of ``part``, a restriction of ``exposure``."""
    key = _key(name)
    kind: Kind = "logits"
    coefficients = None
    if isinstance(repair, Tensor):
        expected = (part.num_nodes, part.num_classes)
        if tuple(repair.shape) != expected:
            shapes = f"{list(repair.shape)} instead of {list(expected)}"
            raise InputError(f"the logits of {name!r} have shape {shapes}")
        logits = repair.detach().cpu().double()[part.recipients]
    elif hasattr(repair, "coefficients"):
        kind = "coefficients"
        weights = repair.coefficients(part).detach().cpu().double()
        logits, coefficients = part.logits(weights)[member], weights[member].numpy()
    else:
        kind = "shift" if hasattr(repair, "shift") else "logits"
        # A method may look at all recipients at once, so it gets the whole exposure.
        answers = repair.logits(exposure).detach().cpu().double()
        if answers.dim() == 3:  # several members, or a method that keeps an axis of length one
            answers = answers[member if len(answers) > 1 else 0]
        everywhere = torch.empty(part.num_nodes, part.num_classes, dtype=torch.float64)
        everywhere[exposure.recipients] = answers
        logits = everywhere[part.recipients]
    invalid = torch.argwhere(~logits.isfinite())
    if len(invalid):
        row, column = invalid[0].tolist()
        node = part.names.node(int(part.recipients[row]))
        raise InputError(
            f"the logits of {name!r:.60} at {node} hold {logits[row, column]}; give finite "
            "numbers, such as logits before a softmax"
        )
    return Correction(key, name, kind, logits.numpy(), coefficients)


def check_repairs(repairs: Any) -> None:
    """A mapping from names to fitted repairs or logits."""
    repairs = {} if repairs is None else repairs
    check_type("repairs", repairs, Mapping, "a mapping from names to fitted repairs")
    for name, repair in repairs.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a repair is called {name!r:.60}; give it a name")
        if not isinstance(repair, Tensor) and not callable(getattr(repair, "logits", None)):
            raise InputError(
                f"repair {name!r} is {repair!r:.60}; give a fitted repair (what fit returns), or "
                "logits [N, C]"
            )


def best_on(
    repairs: Mapping[str, RepairLike], exposure: Exposure, y: Tensor, nodes: Tensor, member: int
) -> str | None:
    """The repair that is right most often at the validation ``nodes``; None where none gains.

    Repairs that learned from these labels are judged on held-out nodes, or skipped.
    """
    part = exposure.to("cpu").restrict(nodes)
    truth = y.cpu()[part.recipients].numpy()
    frozen = part.frozen_logits[member, part.recipients].argmax(1).numpy()
    best, most = None, float((frozen == truth).mean())
    for name, repair in repairs.items():
        method = METHODS.get(_key(name))
        if hasattr(repair, "nested"):  # a ladder, with weights fitted without each node's fold
            share = float(repair.nested[member if len(repair.nested) > 1 else 0])
        elif isinstance(repair, FittedCrossFit | KeptPrediction) or (
            method is not None and not method.by_default
        ):
            continue  # learns from validation labels as well
        else:
            answers = correction_of(name, repair, exposure.to("cpu"), part, member)
            share = float((answers.predictions == truth).mean())
        if share > most:
            best, most = _key(name), share
    return best


_BY_TITLE = {method.title: key for key, method in METHODS.items()}


def _key(name: str) -> str:
    """The repair's key on the page; methods of this package may be written with dashes, or by the
    title that a study gives them."""
    key = _BY_TITLE.get(name, name.replace("-", "_"))
    if key in RESERVED:
        raise InputError(f"a repair cannot be called {name!r}, which means something else here")
    return key if key in METHODS else name


# What recipients are called, and who sends to them ------------------------------------------------


def noun_of(exposure: Exposure) -> str:
    """The word for a recipient: graph, a node type's name, or node."""
    if exposure.graph_starts is not None:
        return "graph"
    return exposure.names.recipient or "node"


def _undirected(edge_index: Tensor, part: Exposure) -> Integers:
    """[2, E]: each edge between two different nodes once; of graphs those of the chosen graphs."""
    ends = edge_index.cpu().numpy()
    low, high = ends.min(0), ends.max(0)
    mask = low != high
    if part.graph_starts is not None:
        starts = part.graph_starts.numpy()
        graph = np.searchsorted(starts, low, side="right") - 1
        if (high >= starts[np.minimum(graph + 1, len(starts) - 1)]).any():
            raise InputError(
                "edge_index ties nodes of different graphs; give that of the batch, as "
                "Batch.from_data_list(graphs).edge_index"
            )
        mask &= np.isin(graph, part.recipients.numpy())
    pairs = np.unique(np.stack([low, high])[:, mask], axis=1)
    return pairs.astype(np.int64)


def _surroundings(part: Exposure, y: Tensor, edges: Tensor | None) -> tuple[Integers, Floats]:
    """Degree and local homophily [n] of the recipients, by who sends to them along the graph's
    edges or its terms; of graphs their numbers of nodes, and NaN."""
    nodes = part.recipients.numpy()
    if part.graph_starts is not None:
        return np.diff(part.graph_starts.numpy())[nodes], np.full(len(nodes), np.nan)
    if edges is not None:
        pairs = edges.cpu().numpy()
        pairs = pairs[:, np.isin(pairs[1], nodes)]
    else:
        counts = np.diff(part.segments[:: part.num_groups].numpy())
        source = part.sources.numpy()[part.rows.numpy()].astype(np.int64)
        pairs = np.stack([source, np.repeat(nodes, counts)])
    ends = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
    foreign = part.names.count(len(y)) - len(y)  # senders of other types, which have no class
    labels = np.concatenate([y.numpy(), np.full(foreign, -1)])
    is_labelled = labels[ends[0]] >= 0
    agrees = is_labelled & (labels[ends[0]] == labels[ends[1]])
    degree, labelled, agreeing = (
        np.bincount(recipients, minlength=len(labels))[nodes]
        for recipients in (ends[1], ends[1][is_labelled], ends[1][agrees])
    )
    homophily = np.where(labelled > 0, agreeing / np.maximum(labelled, 1), np.nan)
    return degree.astype(np.int64), homophily


def _with_senders(evidence: Evidence, part: Exposure) -> Evidence:
    """The evidence with every sender numbered: graphs first, then nodes, then the senders of other
    types (typed nodes, clusters, edges) that occur."""
    starts, sources = None, evidence.sources
    graphs, inner, limit = 0, 0, part.names.own(len(evidence.labels))
    if part.graph_starts is not None:  # the senders are the nodes of graphs
        starts = part.graph_starts.numpy()
        graphs, inner = len(starts) - 1, int(starts[-1])
        limit = inner
    foreign = np.unique(sources[sources >= limit])
    labels = np.full(inner + len(foreign), -1)
    predictions = labels.copy()
    if starts is not None:
        nodes = sources[sources < limit]
        sender = part.sources[part.rows.long()].long()
        logits = alone_logits(part, sender, part.num_sources)[0]
        predictions[nodes] = logits[nodes].argmax(1)
    first = inner if graphs else len(evidence.labels)
    foreign_places = first + np.searchsorted(foreign, sources)
    return replace(
        evidence,
        labels=np.concatenate([evidence.labels, labels]),
        predictions=np.concatenate([evidence.predictions, predictions]),
        sources=np.where(sources < limit, sources, foreign_places) + graphs,
        senders=tuple(part.names.sender(source) for source in foreign),
        edges=None if evidence.edges is None else evidence.edges + graphs,
        graph_starts=starts,
    )


# Checks -------------------------------------------------------------------------------------------


def check_names(names: Any, size: int, kind: str) -> list[str]:
    """``size`` names as text; ``class 0``, ``class 1``, … unless given."""
    if names is None:
        return [f"{kind} {index}" for index in range(size)]
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Sequence):
        raise InputError(f"{kind}_names is {names!r:.60}; give a list of {size} texts")
    if len(names) != size:
        raise InputError(f"{len(names)} {kind} names were given for {size}")
    return [str(name) for name in names]
