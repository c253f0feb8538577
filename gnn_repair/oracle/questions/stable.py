"""Which terms every good reweighting needs, and which can stand in for one another.

The optimum of an LP may not be unique, so one λ says little about a single term. Over all
admissible λ whose worst margin is within ε of γ, each term's share λ_a ranges over an interval:
a term whose lower end is notable is indispensable, one whose upper end alone is notable is
interchangeable, the others do not matter. Notable is more than a hundredth of the group's mass.

Behind a nonlinear head γ is known up to its verdict only, so instead of ranges of λ the question
is, term by term, whether the class can still win while the term's message stays unused. A λ that
wins without it answers at once; a term that is all of its group cannot stay unused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import ONE_KIND, NodeNames, require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.highs import new_highs, status_of
from gnn_repair.oracle.fallback import SMALLEST, pass_oracle, solve_with_second_attempts
from gnn_repair.oracle.lps import map_lps
from gnn_repair.oracle.problems import (
    CAN,
    CANNOT,
    FAILED,
    UNDECIDED,
    Floats,
    Instance,
    Integers,
    Problems,
    Tables,
    build_lp,
    check_number,
    list_entries,
    remap_replay,
    require_exposure,
    select_terms,
)
from gnn_repair.oracle.solution import Solution, decide_verdicts, require_class_answers, write_frame
from gnn_repair.oracle.solver import solve
from gnn_repair.oracle.witness import within
from gnn_repair.published import ACTIVE

if TYPE_CHECKING:
    import pandas as pd

QUESTIONS = 1 << 16
"""Asked together: with some hundred terms each, the copies of their rows take 50 MB."""
NOTABLE = 0.01
"""Share of a group's mass below which a term does not matter: nobody would name it as a reason."""


@dataclass(frozen=True, eq=False)
class StableEvidence:
    """One node's terms: which of them every good reweighting needs.

    Without a head the range of every term's λ over the near-optimal reweightings; behind one, for
    every term whether the class can win while it is unused.
    """

    member: int
    node: int
    target: int
    margin: float
    """γ; behind a head the largest margin found."""
    terms: Integers
    """[K]: all terms of the node."""
    sources: Integers
    """[K]."""
    epsilon: float = np.nan
    """How far below γ a reweighting may stay."""
    mass: Floats | None = None
    """[K]: the mass of the term's group."""
    low: Floats | None = None
    """[K]: the smallest λ_a; NaN where no answer was found."""
    high: Floats | None = None
    """[K]: the largest λ_a, likewise."""
    verdict: str | None = None
    """Behind a head: whether the class can win with all terms."""
    without: NDArray[np.str_] | None = None
    """[K] behind a head: whether the class can win while this term is unused: ``can``, ``cannot``
    (proved, or the term is all of its group) or ``undecided``."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""

    @property
    def indispensable(self) -> NDArray[np.bool_]:
        """[K]: every near-optimal reweighting uses the term; the class cannot win without it."""
        if self.without is not None:
            return (self.without == CANNOT) & (self.verdict == CAN)
        assert self.low is not None and self.mass is not None
        return self.low > NOTABLE * self.mass

    @property
    def interchangeable(self) -> NDArray[np.bool_]:
        """[K]: some use it, others do not; the class can win without it."""
        if self.without is not None:
            return np.asarray(self.without == CAN)
        assert self.high is not None and self.mass is not None
        return ~self.indispensable & (self.high > NOTABLE * self.mass)

    def __str__(self) -> str:
        head = within(f"{self.names.node(self.node)}, class {self.target}", self.scope)
        needed, shared = np.flatnonzero(self.indispensable), int(self.interchangeable.sum())
        if self.without is None:
            low, high = np.asarray(self.low), np.asarray(self.high)
            needed = needed[np.argsort(-low[needed])]
            ranges = [f" (λ {low[i]:.4g} to {high[i]:.4g})" for i in needed]
            head += f", within {self.epsilon:.3g} of γ {self.margin:.4g}"
            rest = f"{shared} interchangeable of {len(self.terms)}"
            unknown = int(np.isnan(low + high).sum())
        elif self.verdict == CANNOT:
            return f"{head} cannot win, with all of its {len(self.terms)} terms or fewer"
        elif self.verdict != CAN:
            return f"{head} is undecided, so it is not known which terms it needs"
        else:
            ranges, head = [""] * len(needed), f"{head} can win"
            rest = f"{shared} of {len(self.terms)} can be done without"
            unknown = int((self.without == UNDECIDED).sum())
        senders = [self.names.sender(self.sources[i]) for i in needed]
        named = ", ".join(map("".join, list(zip(senders, ranges, strict=True))[:6]))
        return f"{head}: {len(needed)} indispensable terms{': ' * bool(named)}{named}; {rest}" + (
            f", {unknown} undecided" if unknown else ""
        )

    __repr__ = __str__


def stable_evidence(
    exposure: Exposure,
    target: Tensor,
    nodes: Tensor,
    *,
    epsilon: float = 1e-3,
    threads: int | None = None,
) -> tuple[StableEvidence, ...]:
    """The smallest and largest λ_a of every term over reweightings within ``epsilon`` of γ.

    Args:
        exposure: as for :func:`solve`, like ``target``, ``nodes`` and ``threads``.
        target: [N] a class per node.
        nodes: which nodes; this solves up to two LPs per term, so choose a few.
        epsilon: how far below γ, in logits; γ of a model with a head is known up to its verdict
            only, so there the question is whether the class still wins without the term.
        threads: worker threads, each with its own highspy.

    Returns:
        One answer per node. With a head, a verdict about every term.
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    epsilon = check_number(epsilon, "epsilon")
    if not epsilon > 0:
        raise InputError(f"epsilon must be positive, not {epsilon}")
    if exposure.head is not None:
        return _needed_terms(exposure, target, nodes)
    solution = solve(exposure, target, nodes, threads=threads)
    tables = Tables.from_exposure(exposure)

    def answer(index: int, highs: Any) -> StableEvidence:
        witness = solution[index]
        problem = build_lp(tables, witness.member, int(solution.recipient[index]), witness.target)
        optimum = np.zeros(len(problem.terms))
        optimum[witness.terms - problem.terms[:1]] = witness.coefficients
        low, high = np.full((2, len(problem.terms)), np.nan)
        if solution.status[index] != FAILED and len(problem.terms):
            weights = solution.rival_weights[index][problem.rivals]
            low, high = _ranges(highs, problem, optimum, weights, witness.margin, epsilon)
        senders, mass = tables.sources[tables.rows[problem.terms]], problem.mass[problem.group]
        ranges = {"epsilon": epsilon, "mass": mass, "low": low, "high": high}
        return _named(solution, index, problem.terms, senders, **ranges)

    return tuple(map_lps(len(solution), answer, new_highs, threads))


def _named(
    solution: Solution, i: int, terms: Integers, sources: Any, **fields: Any
) -> StableEvidence:
    """The answer to question i about the node's terms and who sent them, [K] each."""
    return StableEvidence(
        member=int(solution.member[i]),
        node=int(solution.named(solution.node[i])),
        target=int(solution.target[i]),
        margin=float(solution.margin[i]),
        terms=terms,
        sources=solution.named(sources.astype(np.int64)),
        names=solution.names,
        scope=solution.scope,
        **fields,
    )


def _ranges(
    highs: Any, problem: Instance, optimum: Floats, weights: Floats, margin: float, epsilon: float
) -> tuple[Floats, Floats]:
    """λ's extremes, as one LP whose cost changes: the solver starts from its last answer."""
    used = np.abs(problem.columns[optimum > 0]).max(initial=0.0)
    highs.clearSolver()
    shorter = pass_oracle(
        highs, problem, max(float(used), epsilon, SMALLEST), pinned=margin - epsilon
    )
    mass = problem.mass[problem.group]
    scores = problem.gaps @ weights
    # By weak duality λ_a (best − s_a) ≤ ε: a term far from tight needs no LP to be ruled out.
    deficit = problem.best(scores)[problem.group] - scores
    capped = np.minimum(mass, 2 * epsilon / np.maximum(deficit, 1e-300))
    low, high = np.zeros(len(mass)), capped.copy()
    for a in range(len(mass)):
        if optimum[a] > ACTIVE * mass[a]:
            low[a] = min(_extreme(highs, a, 1.0) * shorter[a], 1.0) * mass[a]
        if capped[a] > ACTIVE * mass[a]:
            high[a] = min(-_extreme(highs, a, -1.0) * shorter[a], 1.0) * mass[a]
    return low.clip(min=0.0), np.maximum(high, optimum)


def _extreme(highs: Any, column: int, sign: float) -> float:
    """min sign · x_column over the near-optimal set; NaN where highspy finds no optimum."""
    highs.changeColCost(column, sign)
    highs.run()
    value = float(highs.getInfo().objective_function_value)
    if status_of(highs) != "Optimal":
        value = np.nan
    highs.changeColCost(column, 0.0)
    return value


# Behind a head -----------------------------------------------------------------------------------


def _needed_terms(
    exposure: Exposure, target: Tensor, nodes: Tensor | None
) -> tuple[StableEvidence, ...]:
    """One answer per node, in the order of :func:`solve`."""
    exposure = exposure.to("cpu")
    solution = solve(exposure, target, nodes)
    ends = exposure.segments[:: exposure.num_groups].numpy()
    begin, end = ends[solution.recipient], ends[solution.recipient + 1]
    verdict, used = solution.verdict, solution.in_use(exposure.mass)
    # What cannot with all terms cannot with fewer; where that is not known, nothing is. (NumPy cuts
    # texts to the first one's length unless told.)
    counts = zip(end - begin, verdict, strict=True)
    without = [np.full(count, word, verdict.dtype) for count, word in counts]
    asked: dict[int, list[tuple[int, int]]] = {}
    for i in np.flatnonzero(verdict == CAN).tolist():
        single, shared = _used(exposure, solution, used, i)
        without[i][single - begin[i]] = CANNOT
        asked.setdefault(solution.node[i], []).extend((i, term) for term in shared.tolist())
    for one_per_node in zip_longest(*asked.values()):
        chosen, dropped = np.array([pair for pair in one_per_node if pair]).T
        answers = _solve_without(exposure, solution, chosen, dropped)
        for i, term, answer in zip(chosen, dropped, answers, strict=True):
            without[i][term - begin[i]] = answer
    sources = exposure.sources[exposure.rows.long()].numpy()
    terms = [np.arange(first, last) for first, last in zip(begin, end, strict=True)]
    return tuple(
        _named(solution, i, term, sources[term], verdict=str(verdict[i]), without=without[i])
        for i, term in enumerate(terms)
    )


def _used(
    exposure: Exposure, solution: Solution, used: NDArray[np.bool_], i: int
) -> tuple[Integers, Integers]:
    """Terms alone in their group, and others that the λ which wins uses."""
    groups, position = exposure.num_groups, int(solution.recipient[i])
    ends = exposure.segments[position * groups : (position + 1) * groups + 1].numpy()
    single = ends[:-1][np.diff(ends) == 1]
    part = slice(solution.indptr[i], solution.indptr[i + 1])
    return single, np.setdiff1d(solution.terms[part][used[part]], single)


def _solve_without(
    exposure: Exposure, solution: Solution, chosen: Integers, dropped: Integers
) -> list[str]:
    """The verdicts of the chosen questions (of different nodes) without one term each."""
    groups, nodes = exposure.num_groups, torch.from_numpy(solution.node[chosen])
    part = exposure.restrict(nodes)
    theirs = exposure.segments[::groups].numpy()[solution.recipient[chosen]]
    ours = part.segments[::groups].numpy()[:-1]
    target = torch.full((exposure.num_nodes,), -1)
    target[nodes] = torch.from_numpy(solution.target[chosen])
    rest = without_terms(part, torch.from_numpy(dropped - theirs + ours))
    # None: every recipient, in the order in which they were chosen.
    return [str(word) for word in solve(rest, target, None).verdict]


def without_terms(exposure: Exposure, dropped: Tensor) -> Exposure:
    """The exposure whose λ leave some terms unused; each of their groups has others.

    Its frozen coefficients spread a dropped term's share over the rest of its group, in proportion
    to α.
    """
    mixture = exposure.aggregate
    kept = torch.ones(mixture.num_terms, dtype=torch.bool)
    kept[dropped] = False
    count = len(mixture.segments) - 1
    owner = torch.repeat_interleave(torch.arange(count), mixture.segments.diff())[kept]
    alpha = mixture.coefficients[0].double()[kept]
    left = alpha.new_zeros(count).index_add_(0, owner, alpha)
    scaled = alpha * (mixture.mass[0].reshape(-1) / left.clamp(min=1e-300))[owner]
    lengths = torch.bincount(owner, minlength=count)
    rows, recipients = mixture.rows[kept], mixture.recipients
    frozen, logits = mixture.fixed_logits.clone(), exposure.frozen_logits.clone()
    sent = scaled.unsqueeze(1) * mixture.contributions[0, rows.long()]
    frozen[0].index_add_(0, recipients[owner // mixture.num_groups], sent)
    assert exposure.head is not None
    logits[0, recipients] = exposure.head(frozen[0, recipients], recipients).detach()
    pieces = replace(
        mixture,
        segments=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        rows=rows,
        coefficients=scaled.unsqueeze(0),
        frozen_logits=frozen,
    )
    replay = remap_replay(exposure, kept.nonzero().view(-1))
    return pieces.with_head(exposure.head, logits, exposure.residual, replay)


# Whose messages matter ---------------------------------------------------------------------------


def source_ranking(
    solution: Solution,
    exposure: Exposure,
    *,
    indispensable: bool = False,
    csv: str | Path | None = None,
) -> pd.DataFrame:
    """Which nodes' messages the witnesses listen to, the most used first.

    Of LPs whose class can win. ``witnesses``: how many use the source; ``mass``: Σ λ there;
    ``gained``: Σ max(λ − α, 0), what reweighting gives it beyond the frozen model; ``alone``:
    witnesses that use nobody else.

    Args:
        solution: the oracle's answers.
        exposure: what was solved.
        indispensable: whether to ask every witness again without each of its sources; adds
            ``needed``, how many classes can no longer win without the source, and ``unsure``, of
            how many that is not decided.
        csv: a file to write the frame to as well.
    """
    import pandas as pd

    require_class_answers(solution, exposure)
    if indispensable and exposure.head is not None:
        raise InputError(
            "a model with a head is not asked again source by source here; "
            "gr.stable_evidence(exposure, y) says which terms it needs"
        )
    owner = solution.owner
    used = solution.in_use(exposure.mass.cpu()) & solution.reachable[owner]
    alpha = exposure.coefficients.cpu().numpy()
    member = np.minimum(solution.member[owner], len(alpha) - 1)
    gained = np.maximum(solution.coefficients - alpha[member, solution.terms], 0)
    frame = pd.DataFrame(
        {
            "source": solution.named(solution.sources[used]),
            "lp": owner[used],
            "mass": solution.coefficients[used],
            "gained": gained[used],
        }
    )
    # A source may send several terms: over several heads, say.
    frame = frame.groupby(["lp", "source"], as_index=False).sum()
    frame["alone"] = frame.groupby("lp")["source"].transform("size") == 1
    ranked = frame.groupby("source").agg(
        witnesses=("lp", "size"),
        mass=("mass", "sum"),
        gained=("gained", "sum"),
        alone=("alone", "sum"),
    )
    ranked = ranked.reset_index().sort_values(
        ["witnesses", "gained", "source"], ascending=[False, False, True], ignore_index=True
    )
    if indispensable:
        answers = without_each_source(solution, exposure)
        counts = {"needed": answers["verdict"] == CANNOT, "unsure": answers["verdict"] == UNDECIDED}
        counted = pd.DataFrame({"source": answers["source"], **counts}).groupby("source").sum()
        ranked = ranked.merge(counted.astype(int).reset_index(), on="source", how="left")
    if solution.names.typed:
        kind, ranked["source"] = solution.names.split(ranked["source"].to_numpy())
        ranked.insert(0, "source_type", kind)
    return write_frame(ranked, csv)


def without_each_source(solution: Solution, exposure: Exposure) -> pd.DataFrame:
    """What becomes of every class that can win when one sender of its witness falls silent.

    One row an LP and source of its witness: member, node, class, source, ``margin`` without the
    source's messages at that node (−inf where nobody else could carry a group's mass) and
    ``verdict``. Sources that a witness does not use are never indispensable: it stays a witness.
    """
    import pandas as pd

    tables = Tables.from_exposure(exposure)
    owner = solution.owner
    used = solution.in_use(tables.mass) & solution.reachable[owner] & (solution.sources >= 0)
    lp, source = np.unique(np.stack([owner[used], solution.sources[used]]), axis=1)
    parts = [slice(first, first + QUESTIONS) for first in range(0, max(1, len(lp)), QUESTIONS)]
    answers = [_asked(tables, solution, lp[part], source[part]) for part in parts]
    margins, verdicts = (np.concatenate(arrays) for arrays in zip(*answers, strict=True))
    return pd.DataFrame(
        {
            "member": solution.member[lp],
            "node": solution.named(solution.node[lp]),
            "class": solution.target[lp],
            "source": solution.named(source),
            "margin": margins,
            "verdict": verdicts,
        }
    )


def _asked(
    tables: Tables, solution: Solution, lp: Integers, source: Integers
) -> tuple[Floats, NDArray[np.str_]]:
    position = solution.recipient[lp]
    owner = np.repeat(np.arange(len(lp)), tables.counts(position))
    terms = list_entries(tables.segments[:: tables.num_groups], position)
    left = tables.sources[tables.rows[terms]] != source[owner]
    reduced = select_terms(tables, position, owner[left], terms[left])
    asked = Problems(solution.member[lp], np.arange(len(lp)), solution.target[lp])
    piece = solve_with_second_attempts(reduced, asked)
    # A group that has lost all its terms has nowhere to put its mass.
    before, after = (
        np.diff(one.segments).reshape(-1, tables.num_groups) > 0 for one in (tables, reduced)
    )
    lost = (before[position] & ~after).any(1)
    margin, bound = (np.where(lost, -np.inf, x) for x in (piece.margin, piece.bound))
    return margin, decide_verdicts(margin, bound, piece.status)
