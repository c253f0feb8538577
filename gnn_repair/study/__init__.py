"""The study: a grid of cases, run once, stored, resumed, merged and set beside the paper.

Names load when first used: looking into a store needs neither PyTorch nor pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and the reference see; the same names as in _HOMES
    from gnn_repair.study.cases import Case as Case
    from gnn_repair.study.cases import Run as Run
    from gnn_repair.study.engine import Engine as Engine
    from gnn_repair.study.engine import LocalEngine as LocalEngine
    from gnn_repair.study.formats import RENDERERS as RENDERERS
    from gnn_repair.study.grid import Outcome as Outcome
    from gnn_repair.study.grid import Plan as Plan
    from gnn_repair.study.grid import Watcher as Watcher
    from gnn_repair.study.grid import make_plan as make_plan
    from gnn_repair.study.grid import run_study as run_study
    from gnn_repair.study.methods import METHODS as METHODS
    from gnn_repair.study.overrides import override as override
    from gnn_repair.study.overrides import read_protocol as read_protocol
    from gnn_repair.study.process_engine import ProcessEngine as ProcessEngine
    from gnn_repair.study.protocol import INDEPENDENT as INDEPENDENT
    from gnn_repair.study.protocol import PAPER as PAPER
    from gnn_repair.study.protocol import PROTOCOLS as PROTOCOLS
    from gnn_repair.study.protocol import Protocol as Protocol
    from gnn_repair.study.ray_engine import RayEngine as RayEngine
    from gnn_repair.study.results import export_results as export_results
    from gnn_repair.study.results import read_results as read_results
    from gnn_repair.study.sharded_repair import repaired_logits_sharded as repaired_logits_sharded
    from gnn_repair.study.sharding import solve_oracle_sharded as solve_oracle_sharded
    from gnn_repair.study.store import Store as Store
    from gnn_repair.study.tables import TABLES as TABLES
    from gnn_repair.study.tables import make_tables as make_tables

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
    "repaired_logits_sharded": "sharded_repair",
    "solve_oracle_sharded": "sharding",
}

__all__ = list(_HOMES)


if not TYPE_CHECKING:  # which would otherwise take every name for a public one

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'gnn_repair.study' has no attribute {name!r}")
        return getattr(importlib.import_module(f"gnn_repair.study.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
