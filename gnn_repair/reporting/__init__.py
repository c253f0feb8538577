"""The report page: see a node's evidence."""

from gnn_repair.reporting import plots
from gnn_repair.reporting.beside import Beside
from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.figures import write_figures
from gnn_repair.reporting.runs import evidence_of, report_run
from gnn_repair.reporting.writing import report, report_results

__all__ = [
    "Beside",
    "Evidence",
    "evidence_of",
    "gather",
    "plots",
    "report",
    "report_results",
    "report_run",
    "write_figures",
]
