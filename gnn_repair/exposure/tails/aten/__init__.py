"""Translations of PyTorch's operations (ATen) into those of a tail, by name."""

from __future__ import annotations

from gnn_repair.exposure.tails.aten import (
    activations,
    arithmetic,
    layouts,
    normalization,
    products,
    reductions,
)
from gnn_repair.exposure.tails.aten.registry import Translation

TRANSLATIONS: dict[str, Translation] = {
    **layouts.TRANSLATIONS,
    **arithmetic.TRANSLATIONS,
    **activations.TRANSLATIONS,
    **products.TRANSLATIONS,
    **reductions.TRANSLATIONS,
    **normalization.TRANSLATIONS,
}
"""By the operation's name without namespace, overload and trailing underscore."""
