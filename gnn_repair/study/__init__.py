"""The study: a grid of cases, run once, stored, resumed, merged and set beside the paper."""

from gnn_repair.study.cases import METHODS, Case, Run
from gnn_repair.study.engine import Engine, LocalEngine, ProcessEngine
from gnn_repair.study.grid import Outcome, Plan, Watcher, make_plan, run_study
from gnn_repair.study.protocol import (
    INDEPENDENT,
    PAPER,
    PROTOCOLS,
    Protocol,
    override,
    read_protocol,
)
from gnn_repair.study.ray_engine import RayEngine
from gnn_repair.study.records import RunRecord
from gnn_repair.study.rendering import RENDERERS
from gnn_repair.study.sharding import repaired_logits_sharded, solve_oracle_sharded
from gnn_repair.study.store import Store, export_results, read_results
from gnn_repair.study.tables import TABLES, make_tables

__all__ = [
    "INDEPENDENT",
    "METHODS",
    "PAPER",
    "PROTOCOLS",
    "RENDERERS",
    "TABLES",
    "Case",
    "Engine",
    "LocalEngine",
    "Outcome",
    "Plan",
    "ProcessEngine",
    "Protocol",
    "RayEngine",
    "Run",
    "RunRecord",
    "Store",
    "Watcher",
    "export_results",
    "make_plan",
    "make_tables",
    "override",
    "read_protocol",
    "read_results",
    "repaired_logits_sharded",
    "run_study",
    "solve_oracle_sharded",
]
