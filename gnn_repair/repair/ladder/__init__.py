"""The evidence ladder: which kind of evidence a frozen model lost, and a repair that reads it."""

from gnn_repair.repair.ladder.findings import Finding, Findings
from gnn_repair.repair.ladder.fitted import FittedLadder
from gnn_repair.repair.ladder.ladder import EvidenceLadder
from gnn_repair.repair.rungs import RUNGS, Rung

__all__ = ["RUNGS", "EvidenceLadder", "Finding", "Findings", "FittedLadder", "Rung"]
