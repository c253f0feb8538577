"""The study: a grid of cases, run once, stored, resumed, merged and set beside the paper.

Names load when first used: looking into a store needs neither PyTorch nor pandas.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "INDEPENDENT": "protocol",
    "PAPER": "protocol",
    "PROTOCOLS": "protocol",
    "Protocol": "protocol",
    "override": "overrides",
    "read_protocol": "overrides",
    "Case": "cases",
    "Run": "cases",
    "Store": "store",
    "Engine": "engine",
    "LocalEngine": "engine",
    "ProcessEngine": "process_engine",
    "RayEngine": "ray_engine",
    "METHODS": "methods",
    "Outcome": "grid",
    "Plan": "grid",
    "Watcher": "grid",
    "make_plan": "grid",
    "run_study": "grid",
    "read_results": "results",
    "export_results": "results",
    "TABLES": "tables",
    "make_tables": "tables",
    "RENDERERS": "formats",
    "solve_oracle_sharded": "sharding",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnn_repair.study' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gnn_repair.study.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
