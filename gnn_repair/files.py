"""Saving and loading values: safetensors with a JSON header, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gnn_repair.atomic import replacing
from gnn_repair.errors import FileFormatError


def save_tensors(
    path: str | Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write ``tensors`` and the JSON ``header`` as one safetensors file of this ``kind``."""
    # Clones, since the format refuses tensors that share memory.
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"kind": kind, "header": json.dumps(dict(header))}
    with replacing(Path(path)) as temporary:
        save_file(flat, temporary, metadata=metadata)


def load_tensors(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read back what :func:`save_tensors` wrote: header and tensors (on the CPU)."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist or is not a file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata.get("header", "{}"))
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise FileFormatError(f"{path} is damaged or not a safetensors file: {error}") from error
    if metadata.get("kind") != kind:
        found = metadata.get("kind", "something else")
        raise FileFormatError(f"{path} holds {found}, not {kind}")
    return header, tensors
