"""Whether a graph that is given is the one that was exposed."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.targets import require_nodes


def with_dense_features(data: Any) -> Any:
    """The same graph with its features as a plain table, where they are a sparse one."""
    x = getattr(data, "x", None)
    if not isinstance(x, Tensor) or x.layout == torch.strided:
        return data
    same = copy(data)
    same.x = x.to_dense()
    return same


def check_graph_data(exposure: Exposed, data: Any) -> None:
    """Raise unless ``data`` has the exposed graph's entries and, if any, finite features."""
    require_nodes(exposure, "this repair")
    entries, x = getattr(data, "edge_index", None), getattr(data, "x", None)
    whole = isinstance(entries, Tensor) and entries.dtype in (torch.int32, torch.int64)
    if not whole or entries.dim() != 2 or entries.shape[0] != 2:  # type: ignore[union-attr]
        kind = exposure.names.recipient
        wanted = (
            f"a Data of the {kind!r} nodes alone: their x, and an edge_index between them"
            if exposure.names.typed
            else "the graph that was exposed"
        )
        raise InputError(f"data has no edge_index [2, E]; pass {wanted}")
    least, most = (int(entries.min()), int(entries.max())) if entries.numel() else (0, -1)  # type: ignore[union-attr]
    if least < 0:
        raise InputError(f"data.edge_index holds {least}; nodes are counted from 0")
    if x is not None and (not isinstance(x, Tensor) or x.dim() != 2):
        raise InputError("data.x is not a table [N, F]; pass the graph that was exposed")
    nodes = most + 1 if x is None else x.shape[0]
    if most >= exposure.num_nodes or (x is not None and nodes != exposure.num_nodes):
        raise InputError(
            f"data has {nodes} nodes but the exposure has {exposure.num_nodes}; "
            "pass the graph that was exposed"
        )
    if x is not None and not bool(torch.isfinite(x).all()):
        raise InputError("data.x holds NaN or infinite values; no repair can read them")
