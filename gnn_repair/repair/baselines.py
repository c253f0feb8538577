"""What one would try instead; not from the paper. Same interface, same tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn import CorrectAndSmooth as PropagatedLabels
from torch_geometric.utils import coalesce

from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import FittedRepair, Repair, on_device
from gnn_repair.repair.fitting import Targets, find_targets
from gnn_repair.training import ProgressCallback

ALPHAS = (0.5, 0.8, 0.95)
"""Propagation strengths that validation accuracy chooses from."""
TEMPERATURES = (0.05, 20.0)
"""Where τ is looked for."""
TINY = 1e-12
"""Smoothed scores below this count as this in logarithms."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedTemperature(FittedRepair):
    """z = z⁰ / τ."""

    def logits(self, exposure: Exposure) -> Tensor:
        """z⁰ / τ at the recipients, [S, n, C] float64."""
        scale = self._matching(exposure)["temperature"].double().view(-1, 1, 1)
        return exposure.frozen_logits[:, exposure.recipients] / scale


@dataclass(frozen=True)
class TemperatureScaling(Repair[FittedTemperature]):
    """One temperature per member, the best in validation likelihood; predictions stay."""

    title: ClassVar[str] = "Temperature scaling"
    from_paper: ClassVar[bool] = False

    @torch.no_grad()
    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> FittedTemperature:
        """Find τ on the validation nodes; nothing is trained, so batches do not matter."""
        exposure = on_device(exposure, choose_device(device))
        _, val = find_targets(exposure, y, train_mask, val_mask)
        index = exposure.recipients[val.positions].unsqueeze(2)
        logits = exposure.frozen_logits.gather(1, index.expand(-1, -1, exposure.num_classes))
        temperature = self._search(logits, val)
        return self.fitted(
            **_untrained(exposure), parameters={"temperature": temperature.unsqueeze(1)}
        )

    def _search(self, logits: Tensor, val: Targets) -> Tensor:
        """Golden-section search in 1/τ, where the likelihood is concave; [S]."""
        low = torch.full((logits.shape[0],), 1 / TEMPERATURES[1], dtype=torch.float64)
        low = low.to(logits.device)
        high = torch.full_like(low, 1 / TEMPERATURES[0])
        ratio = (5**0.5 - 1) / 2
        for _ in range(80):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            better = _likelihood(logits * left.view(-1, 1, 1), val) > _likelihood(
                logits * right.view(-1, 1, 1), val
            )
            low, high = torch.where(better, low, left), torch.where(better, right, high)
        return 2 / (low + high)

    def fitted(self, **values: Any) -> FittedTemperature:
        """The fitted value with these fields."""
        return FittedTemperature(repair=self, **values)


def _likelihood(logits: Tensor, val: Targets) -> Tensor:
    chosen = logits.log_softmax(2).gather(2, val.labels.unsqueeze(2)).squeeze(2)
    return (chosen * val.real).sum(1)


def _untrained(exposure: Exposure) -> dict[str, Any]:
    zeros = torch.zeros(exposure.num_members, dtype=torch.long, device=exposure.recipients.device)
    return {
        "width": exposure.state.shape[2],
        "num_classes": exposure.num_classes,
        "best_epoch": zeros,
        "epochs_run": zeros.clone(),
        "diverged": zeros.bool(),
    }


class _Strengths(NamedTuple):
    correct: float
    smooth: float
    autoscale: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedSmoothing(FittedRepair):
    """Frozen probabilities, corrected and smoothed over the graph with the training labels."""

    @torch.no_grad()
    def logits(self, exposure: Exposure) -> Tensor:
        """Logarithms of the smoothed scores at the recipients, [S, n, C] float64.

        The training labels are part of this prediction, so it holds for the graph it was fitted
        on only.
        """
        self._matching(exposure)
        place = exposure.recipients.device
        labels, strengths = self.constants["labels"].to(place), self.constants["strengths"]
        if labels.shape[1] != exposure.num_nodes:
            raise InputError(
                f"correct-and-smooth was fitted on a graph of {labels.shape[1]} nodes, not "
                f"{exposure.num_nodes}; fit it again on this one"
            )
        method: CorrectAndSmooth = self.repair  # type: ignore[assignment]
        entries = sources_to_recipients(exposure)
        out = torch.empty_like(exposure.frozen_logits)
        for member in range(self.num_members):
            correct, smooth, autoscale = strengths[member].tolist()
            out[member] = method.propagate(
                exposure.frozen_logits[member],
                labels[member],
                entries,
                _Strengths(correct, smooth, bool(autoscale)),
            )
        return out[:, exposure.recipients].clamp(min=TINY).log()


@dataclass(frozen=True)
class CorrectAndSmooth(Repair[FittedSmoothing]):
    """PyG's Correct-and-Smooth over the exposure's own sources, strengths chosen on validation."""

    title: ClassVar[str] = "Correct and smooth"
    from_paper: ClassVar[bool] = False
    layers: int = 50
    """Propagation steps of each of the two parts."""

    @torch.no_grad()
    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> FittedSmoothing:
        """Choose each member's strengths by validation accuracy; batches do not matter."""
        exposure = on_device(exposure, choose_device(device))
        train, val = find_targets(exposure, y, train_mask, val_mask)
        labels = torch.full(
            (exposure.num_members, exposure.num_nodes), -1, device=exposure.recipients.device
        )
        entries, chosen = sources_to_recipients(exposure), []
        for member in range(exposure.num_members):
            own = train.positions[member, : int(train.sizes[member])]
            labels[member, exposure.recipients[own]] = train.labels[member, : own.numel()]
            chosen.append(self._best(exposure, member, labels[member], entries, val))
        strengths = torch.tensor(chosen, dtype=torch.float64)
        constants = {"labels": labels, "strengths": strengths}
        return self.fitted(**_untrained(exposure), parameters={}, constants=constants)

    def _best(
        self, exposure: Exposure, member: int, labels: Tensor, entries: Tensor, val: Targets
    ) -> _Strengths:
        size = int(val.sizes[member])
        nodes = exposure.recipients[val.positions[member, :size]]
        truth = val.labels[member, :size]

        def accuracy(strengths: _Strengths) -> int:
            scores = self.propagate(exposure.frozen_logits[member], labels, entries, strengths)
            return int((scores[nodes].argmax(1) == truth).sum())

        return max(_candidates(), key=accuracy)

    def propagate(
        self, logits: Tensor, labels: Tensor, entries: Tensor, strengths: _Strengths
    ) -> Tensor:
        """Corrected and smoothed class scores of every node, [N, C]."""
        known = labels >= 0
        method = PropagatedLabels(
            self.layers, strengths.correct, self.layers, strengths.smooth, strengths.autoscale
        )
        soft = logits.softmax(1)
        soft = method.correct(soft, labels[known], known, entries)
        smoothed: Tensor = method.smooth(soft, labels[known], known, entries)
        return smoothed

    def fitted(self, **values: Any) -> FittedSmoothing:
        """The fitted value with these fields."""
        return FittedSmoothing(repair=self, **values)


def _candidates() -> Iterator[_Strengths]:
    return (_Strengths(c, s, scaled) for c, s, scaled in product(ALPHAS, ALPHAS, (True, False)))


def sources_to_recipients(exposure: Exposure) -> Tensor:
    """Who sends to whom, each pair once, [2, E] in PyG's order."""
    source = exposure.sources[exposure.rows.long()].long()
    recipient = exposure.recipients[exposure.terms_by_recipient.recipients.long()]
    entries: Tensor = coalesce(torch.stack([source, recipient]), num_nodes=exposure.num_nodes)
    return entries
