"""Solutions and reach as pandas frames, and what they say of the whole graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.arguments import classes_for
from gnn_repair.exposure.names import recipients_called
from gnn_repair.exposure.outputs import require_outputs
from gnn_repair.oracle.flat_arrays import in_use
from gnn_repair.oracle.tables import check_solution
from gnn_repair.thresholds import ACTIVE

if TYPE_CHECKING:
    from gnn_repair.oracle.metrics import Changes, Reach
    from gnn_repair.oracle.solution import OracleSolution
    from gnn_repair.oracle.tails.solution import TailSolution

LIMITS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Shares of a node's mass, for the distribution of what must move."""


def solution_frame(
    solution: OracleSolution | TailSolution, status: Mapping[int, str]
) -> pd.DataFrame:
    """One row an LP; ``terms`` holds (source, λ) of the active terms, the largest λ first.

    Where there are several kinds of node a source is named, such as ``author 3``; where graphs
    are classified the recipient is called ``graph``.
    """
    return pd.DataFrame(
        {
            "member": solution.member,
            recipients_called(solution.names): solution.named(solution.node),
            "class": solution.target,
            "verdict": solution.verdict,
            "margin": solution.margin,
            "bound": solution.bound,
            "status": [status[code] for code in solution.status.tolist()],
            "support": solution.support,
            "terms": [_active(solution, i) for i in range(len(solution))],
        }
    )


def _active(solution: OracleSolution | TailSolution, index: int) -> tuple[tuple[Any, float], ...]:
    part = slice(solution.indptr[index], solution.indptr[index + 1])
    sources = solution.named(solution.sources[part]).tolist()
    if solution.names.typed:
        sources = [solution.names.sender(source) for source in sources]
    pairs = zip(sources, solution.coefficients[part].tolist(), strict=True)
    return tuple(sorted((p for p in pairs if p[1] > ACTIVE), key=lambda pair: -pair[1]))


def reach_frame(reach: Reach) -> pd.DataFrame:
    """One row per member: reach as shares with their counts, chance and excess (of 1), support."""
    rows: list[dict[str, Any]] = []
    for index, member in enumerate(reach.members):
        row: dict[str, Any] = {"member": index}
        for name, rate in (("true_class", member.true_class), ("error", member.error)):
            low, high = rate.interval
            row |= {f"{name}_reach": rate.value, f"{name}_possible": rate.possible}
            row |= {f"{name}_low": low, f"{name}_high": high}
            row |= {f"{name}_hits": rate.hits, f"{name}_total": rate.total}
        for name, mean in (("chance", member.chance), ("excess", member.excess)):
            low, high = mean.interval
            row |= {name: mean.low, f"{name}_possible": mean.high}
            row |= {f"{name}_low": low, f"{name}_high": high}
        rows.append(row | {"support": member.support, "undecided": member.undecided})
    return pd.DataFrame(rows)


def changes_frame(changes: Changes) -> pd.DataFrame:
    """One row per limit: which share of errors the true class wins when at most that share of the
    mass moves, and which share of the classes neither true nor predicted does."""
    own, others = changes.shares()
    return pd.DataFrame(
        {
            "mass_moved": LIMITS,
            "true_class": [
                float((own <= limit).mean()) if len(own) else np.nan for limit in LIMITS
            ],
            "chance": [
                float((others <= limit).mean()) if len(others) else np.nan for limit in LIMITS
            ],
        }
    )


# The whole graph ----------------------------------------------------------------------------------


def source_ranking(
    solution: OracleSolution | TailSolution,
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
    _check_same(solution, exposure)
    if indispensable and exposure.head is not None:
        raise InputError(
            "a model with a tail is not asked again source by source here; "
            "gr.stable_evidence(exposure, y) says which terms it needs"
        )
    owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
    used = in_use(solution, exposure.mass.cpu()) & solution.reachable[owner]
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
        ["witnesses", "gained", "source"], ascending=[False, False, True]
    )
    ranked = ranked.reset_index(drop=True)
    if indispensable:
        ranked = ranked.merge(_needed(solution, exposure), on="source", how="left")
    if solution.names.typed:
        kind, ranked["source"] = solution.names.split(ranked["source"].to_numpy())
        ranked.insert(0, "source_type", kind)
    return _written(ranked, csv)


def _needed(solution: Any, exposure: Any) -> pd.DataFrame:
    """For every source how many classes cannot win without it, and of how many nobody knows."""
    from gnn_repair.oracle.indispensable import without_each_source

    found = without_each_source(solution, exposure)
    told = {"needed": found["verdict"] == "cannot", "unsure": found["verdict"] == "undecided"}
    counted = pd.DataFrame({"source": found["source"], **told}).groupby("source").sum()
    return counted.astype(int).reset_index()


def _written(frame: pd.DataFrame, csv: str | Path | None) -> pd.DataFrame:
    """The frame itself, once it stands in the file."""
    if csv is not None:
        with replacing(check_target(csv)) as temporary:
            frame.to_csv(temporary, index=False)
    return frame


def confusion_by_reach(
    solution: OracleSolution | TailSolution,
    exposure: Exposure,
    y: Tensor,
    *,
    csv: str | Path | None = None,
) -> pd.DataFrame:
    """Which classes steal from which, and how often the evidence for the true one was there.

    One row a pair of true and predicted class among the nodes asked about with their true class:
    ``nodes``, of which ``can`` win, ``cannot``, or stay ``undecided``. ``csv`` names a file to
    write the frame to as well.
    """
    _check_same(solution, exposure)
    require_outputs(exposure, "classes")
    true = classes_for(exposure, y).cpu().numpy()
    own = solution.target == true[solution.node]
    if not own.any():
        raise InputError("no LP is about a node's true class; solve with target=y")
    predicted = exposure.frozen_logits.argmax(2).cpu().numpy()
    frame = pd.DataFrame(
        {
            "true": solution.target[own],
            "predicted": predicted[solution.member[own], solution.node[own]],
            "verdict": solution.verdict[own],
        }
    )
    counted = pd.crosstab([frame["true"], frame["predicted"]], frame["verdict"])
    counted = counted.reindex(columns=["can", "cannot", "undecided"], fill_value=0)
    counted.insert(0, "nodes", counted.sum(axis=1))
    counted.columns.name = None
    ranked = counted.reset_index()
    ranked = ranked.sort_values(["nodes", "true"], ascending=[False, True])
    return _written(ranked.reset_index(drop=True), csv)


def _check_same(solution: OracleSolution | TailSolution, exposure: Exposure) -> None:
    check_solution(solution)
    if hasattr(solution, "wanted"):
        raise InputError(
            f"solution is a {type(solution).__name__}, whose answers are not about classes; give "
            "what solve_oracle returns, or see its own to_frame()"
        )
    if not isinstance(exposure, Exposure):
        kind = type(exposure).__name__
        raise InputError(f"exposure is a {kind}; give what expose(model, data) returns")
    terms, nodes = solution.terms.max(initial=-1), solution.node.max(initial=-1)
    if terms >= exposure.num_terms or nodes >= exposure.num_nodes:
        raise InputError("the solution is of another exposure; pass the one that was solved")
