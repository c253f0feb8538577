"""Checks of what a report is asked to show: each raises one sentence that names the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.tails.solution import TailSolution

LARGEST_LOGIT = 1e37
"""A page holds numbers as float32, which ends at 3e38, and draws products of two of them."""
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_INSTEAD = {"labels": "gnn_repair.solve_labels", "values": "gnn_repair.value_range"}
RESULT_COLUMNS = ("dataset", "backbone", "split", "method", "part", "metric", "value")


def check_gathered(exposure: Any, y: Any, member: Any, repairs: Any, edge_index: Any) -> None:
    """An exposure, its labels, a member of it, repairs by name and a graph."""
    if not isinstance(exposure, Exposure):
        raise InputError(f"exposure is {exposure!r:.60}; give what gnn_repair.expose returns")
    if exposure.outputs != "classes":
        raise InputError(
            f"the exposure's outputs are {exposure.outputs}, and a report shows classes; "
            f"{_INSTEAD[exposure.outputs]} answers about them"
        )
    if isinstance(member, bool) or not isinstance(member, int):
        raise InputError(f"member is {member!r:.60}; give a whole number from 0")
    if not 0 <= member < exposure.num_members:
        raise InputError(f"member {member} does not exist; there are {exposure.num_members}")
    if not isinstance(y, Tensor) or y.dtype not in INTEGERS:
        raise InputError(f"y is {_kind(y)}; give the nodes' classes as a tensor of whole numbers")
    if y.shape != (exposure.num_nodes,):
        raise InputError(f"y has shape {list(y.shape)} instead of [{exposure.num_nodes}]")
    _check_repairs(repairs)
    _check_graph(edge_index, exposure.num_sources)


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else f"{value!r:.60}"


def _check_repairs(repairs: Any) -> None:
    if repairs is None:
        return
    if not isinstance(repairs, Mapping):
        raise InputError(f"repairs is {repairs!r:.60}; give a mapping from names to fitted repairs")
    for name, repair in repairs.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a repair is called {name!r:.60}; give it a name")
        if not isinstance(repair, Tensor) and not callable(getattr(repair, "logits", None)):
            raise InputError(
                f"repair {name!r} is {repair!r:.60}; give a fitted repair (what fit returns), or "
                "logits [N, C]"
            )


def _check_graph(edge_index: Any, nodes: int) -> None:
    if edge_index is None:
        return
    fair = isinstance(edge_index, Tensor) and edge_index.dim() == 2 and edge_index.shape[0] == 2
    if not fair or edge_index.is_floating_point() or edge_index.dtype is torch.bool:
        raise InputError("edge_index is no tensor of whole numbers [2, E]; give the graph's")
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < nodes:
        raise InputError(f"edge_index names nodes outside 0 to {nodes - 1}; give the graph's own")


def check_solution(solution: Any, exposure: Exposure) -> None:
    """A solution is of this exposure: its witnesses and bounds hold there, without any solver."""
    kind = TailSolution if exposure.head is not None else OracleSolution
    if not isinstance(solution, kind):
        raise InputError(f"solution is {solution!r:.60}; give what gnn_repair.solve_oracle returns")
    remedy = "solve the oracle on this exposure, or leave the solution out"
    try:
        found: Any = solution.check(exposure)
    except (InputError, LookupError, RuntimeError) as error:
        raise InputError(f"the solution is not of this exposure ({error}); {remedy}") from error
    # An LP without an answer is no contradiction; a witness or a bound that fails here is one.
    if isinstance(solution, TailSolution):
        holds = bool(found.ok)
    else:
        holds = max(found.mass, found.margin, found.bound) <= found.tolerance
    if not holds:
        raise InputError(f"the solution is not of this exposure ({found}); {remedy}")


def check_drawable(**logits: Any) -> None:
    """Logits are small enough to be drawn."""
    for name, values in logits.items():
        most = float(np.abs(values).max()) if values.size else 0.0
        if most > LARGEST_LOGIT:
            raise InputError(
                f"{name.replace('_', ' ')} reach {most:.1e}, and a page draws up to "
                f"{LARGEST_LOGIT:.0e}; divide the model's output by a constant, which changes no "
                "prediction"
            )


def check_words(**words: Any) -> None:
    """Texts are texts."""
    for name, value in words.items():
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name} is {value!r:.60}; give a text")


def check_made(made: Any, split: Any) -> None:
    """Words for the footer and a split's number."""
    if split is not None and (isinstance(split, bool) or not isinstance(split, int) or split < 0):
        raise InputError(f"split is {split!r:.60}; give a whole number from 0, or None")
    if made is None:
        return
    if not isinstance(made, Mapping):
        raise InputError(f"made is {made!r:.60}; give a mapping from words to words")
    check_words(**{f"made[{name!r}]": value for name, value in made.items()})


def check_single(single_file: Any) -> None:
    """Yes, no or by size."""
    if single_file is not None and not isinstance(single_file, bool):
        raise InputError(f"single_file is {single_file!r:.60}; give True, False or None")


def check_results(results: Any) -> None:
    """A study's long-form results."""
    if results is None:
        return
    columns = getattr(results, "columns", ())
    missing = [name for name in RESULT_COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"results lacks the column {missing[0]!r}; give what gnn_repair.read_results returns"
        )


def check_names(names: Any, size: int, kind: str) -> list[str] | None:
    """One name each, as text."""
    if names is None:
        return None
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Sequence):
        raise InputError(f"{kind}_names is {names!r:.60}; give a list of {size} texts")
    if len(names) != size:
        raise InputError(f"{len(names)} {kind} names were given for {size}")
    return [str(name) for name in names]
