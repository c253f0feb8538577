"""The report page: see a node's evidence."""

from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.figures import write_figures
from gnn_repair.reporting.writing import report, report_results

__all__ = ["Evidence", "gather", "report", "report_results", "write_figures"]
