"""The report page: see a node's evidence."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gnn_repair.report.evidence import Evidence, gather
from gnn_repair.report.figures import write_figures
from gnn_repair.report.writing import report, report_results

__all__ = ["Evidence", "gather", "report", "report_results", "write_figures"]


class _CallableModule(ModuleType):
    """``gnn_repair.report`` names this folder and the function in it; both must work, whichever
    of them was imported first."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return report(*args, **keywords)


sys.modules[__name__].__class__ = _CallableModule
