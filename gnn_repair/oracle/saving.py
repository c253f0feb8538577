"""An oracle solution's arrays as they stand in a file, and what must hold of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.names import NodeNames
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
from gnn_repair.oracle.flat_arrays import ANSWERED, ASKED, PER_TERM
from gnn_repair.oracle.status import FAILED, FALLBACK, FIXED, OPTIMAL

KIND = "gnn-repair oracle solution"
HEADER = {"skipped": int, "method": str, "reasons": dict, "scope": str, "names": dict | None}
METHODS = ("simplex", "highs", "gurobi")
ARRAYS = {
    **dict.fromkeys((*ASKED, "indptr", "terms", "sources", "groups"), np.int64),
    **dict.fromkeys(("margin", "bound", "rival_weights", "coefficients"), np.float64),
    "status": np.int8,
}
"""Every array and its type; see :class:`~gnn_repair.oracle.solution.OracleSolution`."""
NAMES = "n_id"
"""The array that only solutions of sampled subgraphs have: what the graph calls its nodes."""
WHOLE = 1e-6
"""How far Σ w may be from one: the coarsest tolerance among the solvers."""

Arrays = Mapping[str, NDArray[Any]]


def write_arrays(
    path: str | Path, arrays: Arrays, header: dict[str, Any], statuses: Collection[int]
) -> None:
    """Write a solution's arrays and words; what could not be read back is refused at once."""
    tensors = {n: torch.from_numpy(np.ascontiguousarray(array)) for n, array in arrays.items()}
    _checked(header, tensors, statuses)
    save_tensors(path, KIND, header, tensors)


def read_arrays(path: str | Path, statuses: Collection[int]) -> dict[str, Any]:
    """What :func:`write_arrays` wrote, by the solution's field names, once all of it holds."""
    header, tensors = load_tensors(path, KIND)
    with contents_of(path):
        return _checked(header, tensors, statuses)


def _checked(
    header: dict[str, Any], tensors: Mapping[str, Tensor], statuses: Collection[int]
) -> dict[str, Any]:
    arrays = _typed(tensors)
    _check_shapes(arrays)
    known = np.isin(arrays["status"], [*statuses]).all()
    _require(known, "status holds numbers that mean nothing")
    _check_numbers(arrays)
    _check_answers(arrays)
    return {**arrays, **_words(header, len(arrays["status"]))}


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise InputError(message)


def _typed(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    names = ", ".join(sorted((ARRAYS.keys() ^ tensors.keys()) - {NAMES}))
    _require(not names, f"{names[:80]} is missing or no array of a solution")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    for name, array in arrays.items():
        found, wanted = array.dtype, ARRAYS.get(name, np.int64)
        _require(found == wanted, f"{name} holds {found} instead of {wanted.__name__}")
    return arrays


def _check_shapes(arrays: Arrays) -> None:
    """L answers, C ≥ 2 classes, and supports that lie one after another."""
    for name, array in arrays.items():
        dims = 2 if name == "rival_weights" else 1
        _require(array.ndim == dims, f"{name} has {array.ndim} axes instead of {dims}")
    lps, classes = arrays["rival_weights"].shape
    for name in (*ASKED, *ANSWERED):
        _require(len(arrays[name]) == lps, f"{name} has {len(arrays[name])} answers, not {lps}")
    _require(classes >= 2, f"a solution needs at least two classes, not {classes}")
    indptr, terms = arrays["indptr"], len(arrays["terms"])
    whole = len(indptr) == lps + 1 and indptr[0] == 0 and indptr[-1] == terms
    rising = whole and (np.diff(indptr) >= 0).all()
    _require(rising, "indptr must rise from 0 to the number of entries")
    for name in PER_TERM:
        _require(len(arrays[name]) == terms, f"{name} has {len(arrays[name])} entries, not {terms}")


def _check_numbers(arrays: Arrays) -> None:
    """Places are nonnegative (a source may be nobody, −1), terms ascend within an LP."""
    for name in ("member", "recipient", "node", "target", "terms", "groups"):
        _require((arrays[name] >= 0).all(), f"{name} holds negative numbers")
    _require((arrays["sources"] >= -1).all(), "sources holds numbers below -1")
    if NAMES in arrays:
        most = max(arrays["node"].max(initial=-1), arrays["sources"].max(initial=-1))
        _require(most < len(arrays[NAMES]), f"{NAMES} does not name node {most}")
        _require((arrays[NAMES] >= 0).all(), f"{NAMES} holds negative numbers")
    classes = arrays["rival_weights"].shape[1]
    _require((arrays["target"] < classes).all(), f"target must lie in 0..{classes - 1}")
    terms, starts = arrays["terms"], arrays["indptr"][1:-1]
    rises = np.diff(terms) > 0
    inner = starts[(starts > 0) & (starts < len(terms))]
    rises[inner - 1] = True  # another LP begins
    _require(rises.all(), "terms must ascend within an LP")


def _check_answers(arrays: Arrays) -> None:
    """λ > 0; where an optimum is claimed, its numbers are finite and w is a mixture of rivals."""
    share, weights = arrays["coefficients"], arrays["rival_weights"]
    _require((np.isfinite(share) & (share > 0)).all(), "coefficients must be positive and finite")
    _require(np.isfinite(weights).all() and (weights >= 0).all(), "rival_weights must be ≥ 0")
    own = weights[np.arange(len(weights)), arrays["target"]]
    _require((own == 0).all(), "rival_weights must be zero at the target")
    failed = arrays["status"] == FAILED
    _require(np.isnan(arrays["margin"][failed]).all(), "a failed LP has a margin")
    _require(np.isfinite(arrays["margin"][~failed]).all(), "margin holds NaN or infinite values")
    claimed = np.isin(arrays["status"], (OPTIMAL, FALLBACK, FIXED))
    _require(np.isfinite(arrays["bound"][claimed]).all(), "bound holds NaN or infinite values")
    mixed = np.abs(weights[claimed].sum(1) - 1) <= WHOLE
    _require(mixed.all(), "rival_weights must sum to one")


def _words(header: dict[str, Any], lps: int) -> dict[str, Any]:
    header = {"scope": "", "names": None, **header}  # files of earlier versions name none
    check_fields(header, HEADER, "header")
    _require(header["skipped"] >= 0, f"skipped is {header['skipped']}")
    _require(header["method"] in METHODS, f"method {header['method'][:80]!r} is unknown")
    reasons: dict[int, str] = {}
    for key, text in header["reasons"].items():
        plain = key.isascii() and key.isdigit() and str(int(key[:18])) == key
        index = int(key[:18]) if plain else -1
        told = 0 <= index < lps and type(text) is str
        _require(told, f"reason {key[:80]!r} belongs to no LP")
        reasons[index] = text
    return {**header, "reasons": reasons, "names": NodeNames.of_header(header["names"])}
