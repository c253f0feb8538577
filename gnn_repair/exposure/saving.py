"""An exposure's pieces as they stand in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.files import (
    INDEX,
    REAL,
    check_fields,
    check_tensor,
    contents_of,
    load_tensors,
    save_tensors,
)

KIND = "gnn-repair exposure"
HEADER = {
    "groups": list, "root": bool, "origin": str, "fixed": str, "residual": float | None,
    "fingerprint": list, "called": str, "names": dict | None, "outputs": str, "held": list,
}  # fmt: skip
ABSENT: dict[str, Any] = {
    "fingerprint": [], "called": "", "names": None, "outputs": "classes", "held": [],
}  # fmt: skip
"""What files may leave out, and what that means."""
PIECES = {
    "recipients": (1, INDEX),
    "segments": (1, INDEX),
    "rows": (1, INDEX),
    "coefficients": (2, REAL),
    "contributions": (3, REAL),
    "fixed_logits": (3, REAL),
    "frozen_logits": (3, REAL),
    "state": (3, REAL),
    "messages": (3, REAL),
    "message_rows": (1, INDEX),
    "sources": (1, INDEX),
    "embedding": (3, REAL),
    "n_id": (1, INDEX),
    "graph_starts": (1, INDEX),
}
"""Axes and types of every tensor; see :class:`~gnn_repair.exposure.value.Exposure`."""
OPTIONAL = {"messages", "embedding", "n_id", "graph_starts"}
"""Left out where messages are the state itself, where the model shows no embedding, where nodes
have no other numbers, and where recipients are nodes."""


def write_pieces(path: str | Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an exposure's pieces; one matrix by node is written once."""
    check_pieces({**ABSENT, **header}, tensors)
    if tensors["messages"].data_ptr() == tensors["state"].data_ptr():
        tensors = {name: value for name, value in tensors.items() if name != "messages"}
    save_tensors(path, KIND, header, tensors)


def read_pieces(path: str | Path) -> dict[str, Any]:
    """What :func:`write_pieces` wrote, by the exposure's field names; groups as lists of texts."""
    header, tensors = load_tensors(path, KIND)
    header = {**ABSENT, **header}
    with contents_of(path):
        check_pieces(header, tensors)
    # Since an exposure may hold one matrix as both, it does so after reading, too.
    return {"messages": tensors["state"], **header, **tensors}


def check_pieces(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise :class:`InputError` unless header and tensors are what an exposure is made of."""
    check_fields(header, HEADER, "header")
    for group in header["groups"]:
        if not isinstance(group, list) or [type(text) for text in group] != [str] * 3:
            raise InputError("a group is not named by three texts")
    if any(not isinstance(digest, str) for digest in header["fingerprint"]):
        raise InputError("its fingerprint is not a list of texts")
    if header["residual"] is not None and header["residual"] < 0:
        raise InputError(f"residual is {header['residual']}, which is negative")
    if unknown := sorted(tensors.keys() - PIECES.keys()):
        raise InputError(f"it holds {unknown[0][:80]!r}, which is no piece of an exposure")
    if missing := sorted(PIECES.keys() - OPTIONAL - tensors.keys()):
        raise InputError(f"it lacks {missing[0]}, which every exposure has")
    for name, tensor in tensors.items():
        check_tensor(name, tensor, *PIECES[name])
