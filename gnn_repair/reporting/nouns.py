"""What recipients are called, one and many: node and nodes, graph and graphs, paper and papers."""

from __future__ import annotations

from gnn_repair.exposure import Exposure


def noun_of(exposure: Exposure) -> str:
    """What one recipient is called."""
    if exposure.graph_starts is not None:
        return "graph"
    return exposure.names.recipient or "node"


def plural(noun: str) -> str:
    """More than one of them; a node type that is called ``users`` is one already."""
    low = noun.lower()
    if len(low) > 2 and low.endswith("y") and low[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if low.endswith(("ss", "us", "x", "z", "ch", "sh")):
        return f"{noun}es"
    return noun if low.endswith("s") else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Such as ``1 node`` and ``1,041 nodes``."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"
