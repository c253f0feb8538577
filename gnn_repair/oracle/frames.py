"""What the witnesses of a whole graph say together: who is listened to, who steals from whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import classes_for, require_outputs
from gnn_repair.oracle.problems import require_exposure
from gnn_repair.oracle.questions.stable import without_each_source
from gnn_repair.oracle.solution import Solution, require_class_answers


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
    _check_same(solution, exposure)
    if indispensable and exposure.head is not None:
        raise InputError(
            "a model with a head is not asked again source by source here; "
            "gr.stable_evidence(exposure, y) says which terms it needs"
        )
    owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
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
        ["witnesses", "gained", "source"], ascending=[False, False, True]
    )
    ranked = ranked.reset_index(drop=True)
    if indispensable:
        ranked = ranked.merge(_needed(solution, exposure), on="source", how="left")
    if solution.names.typed:
        kind, ranked["source"] = solution.names.split(ranked["source"].to_numpy())
        ranked.insert(0, "source_type", kind)
    return _written(ranked, csv)


def _needed(solution: Solution, exposure: Exposure) -> pd.DataFrame:
    """For every source how many classes cannot win without it, and of how many nobody knows."""
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
    solution: Solution,
    exposure: Exposure,
    y: Tensor,
    *,
    csv: str | Path | None = None,
) -> pd.DataFrame:
    """Which classes steal from which, and how often the evidence for the true one was there.

    One row per pair of true and predicted class among the nodes asked about with their true class:
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


def _check_same(solution: Solution, exposure: Exposure) -> None:
    require_class_answers(solution)
    require_exposure(exposure)
    terms, nodes = solution.terms.max(initial=-1), solution.node.max(initial=-1)
    if terms >= exposure.num_terms or nodes >= exposure.num_nodes:
        raise InputError("the solution is of another exposure; pass the one that was solved")
