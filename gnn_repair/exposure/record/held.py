"""What lets other nodes' numbers into a node's logits and is not reweighted, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from gnn_repair.exposure.record.analysis import Analysis
from gnn_repair.exposure.record.words import Title, titled


@dataclass(frozen=True)
class HeldPart:
    """One place of the model that mixes nodes and stays as it is."""

    module: str
    """Its name in the model; empty: the model's own forward."""
    operations: tuple[str, ...]
    """PyTorch's names of what it does, such as ``scatter_add``."""
    beside: bool
    """Whether it reaches the logits beside the final messages; otherwise only through them."""
    title: str = ""

    def __str__(self) -> str:
        return f"{self.title} ({', '.join(self.operations)})"


def held_parts(
    analysis: Analysis, modules: Mapping[str, nn.Module], final: Sequence[int]
) -> tuple[HeldPart, ...]:
    """Everything that mixes nodes on a way to the logits and is not one of the final sums."""
    found: dict[tuple[Title, bool], list[str]] = {}
    beside = set(analysis.beside(final))
    for place in sorted(beside | set(analysis.within(final))):
        if place in final:
            continue
        step = analysis.record.steps[place]
        key = titled(modules, step.module), place in beside
        names = found.setdefault(key, [])
        if step.name not in names:
            names.append(step.name)
    return tuple(
        HeldPart(title.name, tuple(names), near, title.text)
        for (title, near), names in found.items()
    )
