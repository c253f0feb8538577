"""``gnn-repair check``: has a model's evidence become worse? For continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_repair.cli.options import (
    BASELINE,
    FactoryArgument,
    Format,
    FormatOption,
    check_outputs,
    emit,
    refuse_idle,
)
from gnn_repair.cli.user_code import made_by, printing_to_stderr
from gnn_repair.errors import InputError
from gnn_repair.published import count_of

if TYPE_CHECKING:
    from gnn_repair.oracle.baseline import BaselineComparison

SHOWN = 20
"""Changed answers printed; --format json has them all."""


def check(
    context: typer.Context,
    factory: FactoryArgument,
    baseline: Annotated[Path, typer.Option("--baseline", help="The baseline, a JSON file.")],
    save: Annotated[
        bool, typer.Option("--save", help="Write the baseline instead of comparing with it.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, help="Points of reach that may be lost.")
    ] = 0.0,
    format: FormatOption = Format.table,
) -> None:
    """Compare a model's reach with a baseline, node by node: of the nodes that diagnose asks about.

    Exit code 1 if reach dropped by more than the tolerance or answers are missing.
    """
    from gnn_repair.oracle.baseline import compare, load_baseline, save_baseline

    refuse_idle(context, saving=save)
    if tolerance != tolerance:
        raise InputError("--tolerance is nan; give points between 0 and 100")
    if save:
        check_outputs((baseline, BASELINE))
    before = None if save else load_baseline(baseline)
    exposure, solution, chance = _answers(factory)
    kind = _kind(exposure, solution)
    if before is None:
        save_baseline(solution, baseline, chance)
        chance_words = "" if chance is None else f", chance {100 * chance:.2f} %"
        reached = f"reach {_reach(solution)}{chance_words}"
        typer.echo(f"{count_of(len(solution), 'answer')}, {reached}, saved to {baseline}")
        if kind:
            typer.echo(kind)
        return
    if kind:
        typer.echo(kind, err=True)  # so that what is printed stays JSON where that is asked for
    affine = exposure.head is None
    comparison = compare(solution, before, exposure if affine else None, chance=chance)
    _show(comparison, format)
    if not comparison.ok(tolerance / 100):
        raise typer.Exit(1)


@printing_to_stderr()
def _answers(factory: str) -> tuple[Any, Any, float | None]:
    """The exposure, what the oracle says of true classes, and how often others could win."""
    from gnn_repair.diagnosis import questions_about
    from gnn_repair.oracle import reach
    from gnn_repair.oracle.metrics import Reach

    model, data, nodes = made_by(factory)
    exposure, target, nodes, *_ = questions_about(model, data, nodes=nodes)
    if exposure.outputs != "classes":
        raise InputError(
            f"the check asks about classes, and these outputs are {exposure.outputs}; "
            "gnn-repair diagnose answers about them"
        )
    figures = reach(exposure, target, nodes)
    assert isinstance(figures, Reach)  # of classes
    chance = figures.true_class_chance.value
    return exposure, figures.witnesses, None if chance != chance else chance


def _reach(solution: Any) -> str:
    """In per cent; what is proved to what is not excluded where something is undecided."""
    if not len(solution):
        return "0.00 %"
    low = 100 * float(solution.reachable.mean())
    undecided = 100 * float((~solution.decided).mean())
    return f"{low:.2f} to {low + undecided:.2f} %" if undecided else f"{low:.2f} %"


def _kind(exposure: Any, solution: Any) -> str:
    """What kind of answers these are, where the model has a nonlinear head; else nothing."""
    from gnn_repair.exposure.heads.head import followed_by

    head = exposure.head
    if head is None:
        return ""
    left = int((~solution.decided).sum())
    return (
        f"the mixture is followed by {followed_by(head)}: a win was run through the model, a loss "
        f"is proved by bounds, {count_of(left, 'answer')} {'is' if left == 1 else 'are'} undecided"
    )


def _show(comparison: BaselineComparison, format: Format) -> None:
    rows = comparison.changes.to_dict("records")
    if format is Format.json:
        names = "reach_before reach_after chance_before chance_after compared missing new"
        row = {name.replace("_", " "): getattr(comparison, name) for name in names.split()}
        broken = None if comparison.broken is None else len(comparison.broken)
        emit([{**row, "broken proofs": broken, "changes": rows}], format)
        return
    typer.echo(str(comparison))
    if rows:
        named = ("member", "node")  # numbers that are names
        emit([{str(k): str(v) if k in named else v for k, v in r.items()} for r in rows[:SHOWN]],
             format)  # fmt: skip
    if len(rows) > SHOWN:
        typer.echo(f"… and {len(rows) - SHOWN:,} more; --format json has them all")
