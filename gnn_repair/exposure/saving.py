"""Exposures in files: plain values in the header, tensors by the names of the fields."""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.checks import OPTIONAL, PIECES
from gnn_repair.exposure.heads.head import read_head, write_head
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure

KIND = "gnn-repair exposure"
WITH_HEAD = "gnn-repair tailed exposure"
"""What version 0.2 called the file of an exposure with a head."""
HEADER = {
    "groups": list, "root": bool, "origin": str, "fixed": str, "residual": float | None,
    "fingerprint": list, "called": str, "names": dict | None, "outputs": str, "held": list,
    "head": dict | None,
}  # fmt: skip
ABSENT: dict[str, Any] = {
    "fingerprint": [], "called": "", "names": None, "outputs": "classes", "held": [], "head": None,
}  # fmt: skip
"""What files may leave out, and what that means; of tensors also messages that are the state."""


def write_exposure(exposure: Exposure, path: str | Path) -> None:
    """Write an exposure; what is absent, and a second name of one matrix, is left out."""
    values = {field.name: getattr(exposure, field.name) for field in fields(exposure)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    header = {name: values[name] for name in HEADER}
    header["groups"] = [list(astuple(group)) for group in exposure.groups]
    header["fingerprint"] = list(exposure.fingerprint)
    header["names"] = exposure.names.header() if exposure.names.typed else None
    header["held"] = [[part.title, list(part.operations), part.beside] for part in exposure.held]
    header["head"] = None if exposure.head is None else write_head(exposure.head, tensors)
    if exposure.messages.data_ptr() == exposure.state.data_ptr():
        del tensors["messages"]
    given = {n: v for n, v in header.items() if n not in ABSENT or v != ABSENT[n]}
    save_tensors(path, KIND, given, tensors)


def read_pieces(path: str | Path) -> dict[str, Any]:
    """What :func:`write_exposure` wrote, by the exposure's field names; lists of texts as lists."""
    header, tensors = load_tensors(path, KIND, formerly=(WITH_HEAD,))
    with contents_of(path):
        if "aggregate" in header:
            header, tensors = _as_written_now(header, tensors)
        header = {**ABSENT, **header}
        head = None if header["head"] is None else read_head(header["head"], tensors)
        _check_header(header)
        _check_tensors(tensors)
    # Since an exposure may hold one matrix as both, it does so after reading, too.
    return {"messages": tensors["state"], **header, **tensors, "head": head}


def _as_written_now(header: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, Any]:
    """Header and tensors of an exposure with a head that version 0.2 wrote."""
    check_fields(header, {"aggregate": dict, "tail": dict, "residual": float | None}, "header")
    names = {"frozen_logits": "frozen_logits", "aggregate/frozen_logits": "frozen_aggregate"}
    moved = {
        names.get(name, name.removeprefix("aggregate/").replace("tail/", "head/", 1)): tensor
        for name, tensor in tensors.items()
    }
    return {**header["aggregate"], "head": header["tail"], "residual": header["residual"]}, moved


def _check_header(header: dict[str, Any]) -> None:
    check_fields(header, HEADER, "header")
    for group in header["groups"]:
        if not isinstance(group, list) or [type(text) for text in group] != [str] * 3:
            raise InputError("a group is not named by three texts")
    for part in header["held"]:
        fit = isinstance(part, list) and [type(item) for item in part] == [str, list, bool]
        if not fit or any(not isinstance(name, str) for name in part[1]):
            raise InputError(f"a held part is {str(part)[:60]!r}: not a title, names and a mark")
    if any(not isinstance(digest, str) for digest in header["fingerprint"]):
        raise InputError("its fingerprint is not a list of texts")
    if header["residual"] is not None and header["residual"] < 0:
        raise InputError(f"residual is {header['residual']}, which is negative")


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    """What the exposure itself does not check when it is built."""
    if unknown := sorted(tensors.keys() - PIECES.keys()):
        raise InputError(f"it holds {unknown[0][:80]!r}, which is no piece of an exposure")
    if missing := sorted(PIECES.keys() - {*OPTIONAL, "messages"} - tensors.keys()):
        raise InputError(f"it lacks {missing[0]}, which every exposure has")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name} holds NaN or infinite values")
