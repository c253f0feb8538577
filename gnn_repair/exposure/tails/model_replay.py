"""Running the user's own model with its final messages reweighted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnn_repair.errors import InputError
from gnn_repair.exposure.certification import reweighted_run
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.model_state import forget_propagations, resting
from gnn_repair.exposure.recording import Trace, Watch


@dataclass(frozen=True, eq=False)
class ModelReplay:
    """λ [T] → the logits [N, C] of the model itself, in the state it was exposed in."""

    watch: Watch
    mixtures: tuple[Mixture, ...]
    trace: Trace
    """The recorded final propagates."""
    order: Tensor | None
    """The place of each term of the mixtures among the exposure's."""
    dtype: torch.dtype
    """The precision of the model's coefficients."""
    versions: tuple[int, ...]
    """Of the parameters, by which a change is noticed."""

    @torch.no_grad()
    def __call__(self, coefficients: Tensor) -> Tensor:
        """The logits under λ [T], float64.

        What comes before the final propagates is not run again, since λ does not reach it.
        """
        model = self.watch.model
        if versions_of(model) != self.versions:
            raise InputError(
                f"{type(model).__name__} has changed since it was exposed; expose it again"
            )
        with resting(model):
            forget_propagations(model)
            with self.watch.installed():
                return self.run(coefficients)

    def run(self, coefficients: Tensor) -> Tensor:
        """The same while the watch is installed already."""
        count = sum(mixture.rows.numel() for mixture in self.mixtures)
        if not isinstance(coefficients, Tensor) or coefficients.numel() != count:
            raise InputError(f"replay needs one coefficient for each of {count} terms, [T]")
        placed = coefficients.reshape(-1).to(self.trace.output.device, self.dtype)
        if self.order is not None:
            given, placed = placed, torch.empty_like(placed)
            placed[self.order] = given
        return reweighted_run(self.watch, placed, self.mixtures, self.trace).double()


def replay_of(
    watch: Watch, mixtures: Sequence[Mixture], trace: Trace, order: Tensor | None
) -> ModelReplay:
    """The replay of what was found."""
    dtype, versions = mixtures[0].coefficients.dtype, versions_of(watch.model)
    return ModelReplay(watch, tuple(mixtures), trace, order, dtype, versions)


def versions_of(model: nn.Module) -> tuple[int, ...]:
    """Numbers that change whenever a parameter or buffer is written."""
    tensors = [*model.parameters(), *model.buffers()]
    return tuple(number for t in tensors for number in (id(t), t._version))
