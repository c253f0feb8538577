"""The report page: see a node's evidence."""

from gnn_repair.reporting import plots
from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.figures import write_figures
from gnn_repair.reporting.payload import Beside
from gnn_repair.reporting.writing import (
    PageContext,
    evidence_of,
    report,
    report_results,
    report_run,
)

__all__ = [
    "Beside",
    "Evidence",
    "PageContext",
    "evidence_of",
    "gather",
    "plots",
    "report",
    "report_results",
    "report_run",
    "write_figures",
]
