"""Training budgets: plain numbers, so that naming one loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How something is trained."""

    epochs: int
    patience: int | None
    """Epochs without a strict improvement after which a member stops; None: never."""
    learning_rate: float
    weight_decay: float
    decoupled: bool = False
    """AdamW's decay instead of Adam's L2 term."""
    clip: float = 5.0
    """Largest gradient norm of a member."""
    epoch_zero: bool = False
    """Whether the untrained state is a candidate."""


SHORT = Budget(epochs=200, patience=None, learning_rate=1e-2, weight_decay=5e-4)
"""GCN, GAT and GraphSAGE."""
LONG = Budget(epochs=1000, patience=100, learning_rate=1e-2, weight_decay=5e-4)
"""The five added backbones."""

REWEIGHTING = Budget(300, 60, 5e-4, 1e-4, decoupled=True, epoch_zero=True)
TRANSLATION = Budget(500, 80, 1e-3, 1e-4, decoupled=True, epoch_zero=True)
"""Set translation."""
CONTROL = Budget(1100, 200, 1e-3, 1e-4, decoupled=True, epoch_zero=True)
"""Node translation."""
REFIT = Budget(1100, 200, 1e-3, 1e-4, decoupled=True, epoch_zero=False)
"""The refitted head, which must be trained to count."""

BATCHED = ("sgc", "mixhop", "h2gcn")
"""Backbones whose repairs the paper trains on minibatches of targets."""
BATCHES = {"squirrel": 8, "amazon-ratings": 16}
"""Batch sizes of these; BATCH on every other dataset."""
BATCH = 64
