"""A label solution's arrays as they stand in a file, and what must hold of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.exposure.names import NodeNames
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
from gnn_repair.oracle.flat_arrays import PER_TERM

KIND = "gnn-repair label solution"
RANGE = "gnn-repair value range"
HEADER = {"threshold": float, "skipped": int, "noun": str, "scope": str, "names": dict | None}
NOUNS = ("label", "value", "link")
ARRAYS: dict[str, type] = {
    **dict.fromkeys(("member", "recipient", "node", "target", "indptr"), np.int64),
    **dict.fromkeys(("terms", "sources", "groups"), np.int64),
    **dict.fromkeys(("margin", "bound", "coefficients"), np.float64),
    "wanted": np.bool_,
}
"""Every array and its type; see :class:`~gnn_repair.oracle.labels.solution.LabelSolution`."""
LARGEST = 1e300
"""No threshold is larger: sums with it stay finite."""
QUESTIONS = ("member", "recipient", "node", "target", "wanted", "margin", "bound")
Arrays = Mapping[str, NDArray[Any]]


def write_solution(path: str | Path, arrays: Arrays, header: dict[str, Any]) -> None:
    """Write a solution's arrays and words; what could not be read back is refused at once."""
    _check(header, arrays)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    save_tensors(path, KIND, header, tensors)


def read_solution(path: str | Path) -> dict[str, Any]:
    """What :func:`write_solution` wrote, by the solution's field names, once all of it holds."""
    header, tensors = load_tensors(path, KIND)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with contents_of(path):
        _check(header, arrays)
        return {**arrays, **_words(header)}


def _words(header: dict[str, Any]) -> dict[str, Any]:
    """The header's values by the solution's field names."""
    names = NodeNames.of_header(header["names"])
    return {**header, "threshold": float(header["threshold"]), "names": names}


def write_range(path: str | Path, ends: Mapping[str, tuple[Arrays, dict[str, Any]]]) -> None:
    """Write both ends of a range, ``low`` and ``high``, and the ``frozen`` values beside them."""
    header: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for end, (arrays, words) in ends.items():
        own = {name: array for name, array in arrays.items() if name != "frozen"}
        _check(words, own)
        header[end] = words
        for name, array in arrays.items():
            tensors[f"{end}/{name}"] = torch.from_numpy(np.ascontiguousarray(array))
    save_tensors(path, RANGE, header, tensors)


def read_range(path: str | Path) -> dict[str, dict[str, Any]]:
    """What :func:`write_range` wrote: the fields of both ends, once all of it holds."""
    header, tensors = load_tensors(path, RANGE)
    ends: dict[str, dict[str, Any]] = {}
    with contents_of(path):
        check_fields(header, {"low": dict, "high": dict}, "header")
        for end in ("low", "high"):
            own = {n.partition("/")[2]: t.numpy() for n, t in tensors.items() if _of(n, end)}
            frozen = own.pop("frozen", None)
            _check(header[end], own)
            _require(_matches(frozen, own["margin"]), "frozen does not fit the ends")
            ends[end] = {**own, **_words(header[end]), "frozen": frozen}
        same = all((ends["low"][n] == ends["high"][n]).all() for n in ("node", "target"))
        _require(same, "its two ends are not of the same outputs")
        _require(not any(n.partition("/")[0] not in ends for n in tensors), "it holds more")
    return ends


def _of(name: str, end: str) -> bool:
    return name.partition("/")[0] == end


def _matches(frozen: NDArray[Any] | None, margin: NDArray[Any]) -> bool:
    if frozen is None or frozen.shape != margin.shape or frozen.dtype != np.float64:
        return False
    return bool(np.isfinite(frozen).all())


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise InputError(message)


def _check(header: dict[str, Any], arrays: Arrays) -> None:
    check_fields(header, HEADER, "header")
    _require(header["skipped"] >= 0, f"skipped is {header['skipped']}")
    # JSON's whole numbers have no end, and are read as real ones.
    _require(abs(header["threshold"]) <= LARGEST, f"threshold is beyond {LARGEST}")
    _require(header["noun"] in NOUNS, f"its outputs are called {header['noun'][:40]!r}")
    names = ", ".join(sorted(ARRAYS.keys() ^ (arrays.keys() - {"links", "n_id"})))
    _require(not names, f"{names[:80]} is missing or no array of a label solution")
    for name, wanted in ARRAYS.items():
        found = arrays[name].dtype
        _require(found == wanted, f"{name} holds {found} instead of {wanted.__name__}")
        _require(arrays[name].ndim == 1, f"{name} has {arrays[name].ndim} axes instead of 1")
    _check_lengths(arrays)
    _check_numbers(arrays)


def _check_lengths(arrays: Arrays) -> None:
    count, terms, indptr = len(arrays["margin"]), len(arrays["terms"]), arrays["indptr"]
    for name in QUESTIONS:
        _require(len(arrays[name]) == count, f"{name} has {len(arrays[name])} entries, not {count}")
    whole = len(indptr) == count + 1 and indptr[0] == 0 and indptr[-1] == terms
    _require(whole and (np.diff(indptr) >= 0).all(), "indptr must rise from 0 to the entries")
    for name in PER_TERM:
        _require(len(arrays[name]) == terms, f"{name} has {len(arrays[name])} entries, not {terms}")
    if "links" in arrays:
        shape, kind = arrays["links"].shape, arrays["links"].dtype
        _require(shape == (count, 2) and kind == np.int64, f"links has shape {list(shape)}")
        _require((arrays["links"] >= 0).all(), "links holds negative numbers")
    if "n_id" in arrays:
        n_id, most = arrays["n_id"], [arrays[n].max(initial=-1) for n in ("node", "sources")]
        whole = n_id.ndim == 1 and n_id.dtype == np.int64 and (n_id >= 0).all()
        _require(whole and max(most) < n_id.size, "n_id does not number every node")


def _check_numbers(arrays: Arrays) -> None:
    for name in ("member", "recipient", "node", "target", "terms", "groups"):
        _require((arrays[name] >= 0).all(), f"{name} holds negative numbers")
    _require((arrays["sources"] >= -1).all(), "sources holds numbers below -1")
    terms, starts = arrays["terms"], arrays["indptr"][1:-1]
    rises = np.diff(terms) > 0
    rises[starts[(starts > 0) & (starts < len(terms))] - 1] = True  # another question begins
    _require(rises.all(), "terms must ascend within a question")
    share = arrays["coefficients"]
    _require((np.isfinite(share) & (share > 0)).all(), "coefficients must be positive and finite")
    _require(np.isfinite(arrays["margin"]).all(), "margin holds NaN or infinite values")
    _require(not np.isnan(arrays["bound"]).any(), "bound holds NaN")
