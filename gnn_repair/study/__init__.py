"""The study: a grid of cases, run once, stored, resumed, merged and set beside the paper."""

from gnn_repair.results.protocol import (
    INDEPENDENT,
    PAPER,
    PROTOCOLS,
    Protocol,
    override,
    read_protocol,
)
from gnn_repair.results.records import Case, Run, RunRecord
from gnn_repair.results.rendering import RENDERERS
from gnn_repair.results.store import Plan, Store, export_results, make_plan, read_results
from gnn_repair.results.tables import TABLES, make_tables
from gnn_repair.study.engine import Engine, LocalEngine, ProcessEngine, RayEngine
from gnn_repair.study.grid import Outcome, StudyProgress, Watcher, run_study
from gnn_repair.study.sharding import repaired_logits_sharded, solve_oracle_sharded

__all__ = [
    "INDEPENDENT",
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
    "StudyProgress",
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
