"""The evidence ladder: which kind of evidence a frozen model lost, and a repair that reads it."""

from gnn_repair.repair.ladder.ladder import EvidenceLadder, FittedLadder
from gnn_repair.repair.ladder.rungs import Finding, Findings

__all__ = ["EvidenceLadder", "Finding", "Findings", "FittedLadder"]
