"""Exposure: a frozen model's final aggregation as a nonnegative mixture of contributions."""

from gnn_repair.exposure.expose import expose
from gnn_repair.exposure.value import Exposure, Group

__all__ = ["Exposure", "Group", "expose"]
