"""The refitted linear head: the control that asks whether another boundary would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnn_repair.budget import REFIT, Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import METHODS
from gnn_repair.repair.base import FittedRepair, TrainedRepair
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.layers import Noise, Parameters, affine
from gnn_repair.repair.targets import Targets

FLAT = 1e-6
"""Coordinates with a smaller standard deviation are not divided by it: they are constant up to
rounding."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedHead(FittedRepair["RefitHead"]):
    """z = W (r − mean) / scale + b."""

    one_by_one = True

    @property
    def input_width(self) -> int:
        """How wide the embedding is."""
        return self.constants["mean"].shape[1]

    def logits(self, exposure: Exposure) -> Tensor:
        """The new head's logits at the recipients, [S, n, C] float64."""
        p, inputs = self._matching(exposure), repair_inputs(exposure)
        _check_width(inputs, self.input_width)
        with self.gradients(exposure):
            return self.repair.corrected(p, inputs, None, inputs.everyone, None).double()


@dataclass(frozen=True)
class RefitHead(TrainedRepair[FittedHead]):
    """A new affine classifier on the frozen embedding r, standardised over training nodes."""

    title: ClassVar[str] = METHODS["refit_head"].title
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedHead
    budget_setting: ClassVar[str] = "refit_head"
    takes_labels: ClassVar[bool] = True
    budget: Budget = REFIT
    dropout: float = 0.0
    shared_settings: ClassVar[tuple[str, ...]] = ()

    def network(self, width: int, classes: int) -> nn.Module:
        """The new classifier."""
        return nn.ModuleDict({"head": nn.Linear(width, classes)})

    def input_width(self, inputs: RepairInputs) -> int:
        """How wide the embedding is."""
        return _embedding(inputs).shape[2]

    def constants(self, inputs: RepairInputs, train: Targets) -> dict[str, Tensor]:
        """Mean and population standard deviation over training nodes, each [S, k]."""
        means, scales = [], []
        for member, size in enumerate(train.sizes.tolist()):
            nodes = inputs.nodes[train.positions[member, :size]]
            rows = _embedding(inputs)[member, nodes].double()
            deviation = rows.std(0, correction=0)
            means.append(rows.mean(0))
            scales.append(torch.where(deviation < FLAT, 1.0, deviation))
        return {
            "mean": torch.stack(means).to(inputs.dtype),
            "scale": torch.stack(scales).to(inputs.dtype),
        }

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """W (r − mean) / scale + b."""
        embedding = _embedding(inputs)
        index = inputs.nodes[targets].unsqueeze(2).expand(-1, -1, embedding.shape[2])
        rows = embedding.gather(1, index).to(inputs.dtype)
        return affine(p, "head", (rows - p["mean"].unsqueeze(1)) / p["scale"].unsqueeze(1))

    def check_constants(self, fitted: FittedHead) -> None:
        """Mean and a positive scale, each [S, k]."""
        shapes = {name: value.shape for name, value in fitted.constants.items()}
        if shapes.keys() != {"mean", "scale"} or shapes["mean"] != shapes["scale"]:
            raise InputError("a refitted head needs a mean and a scale of one shape")
        if len(shapes["mean"]) != 2 or not bool((fitted.constants["scale"] > 0).all()):
            raise InputError("a refitted head's scale must be positive, one for every coordinate")


def _embedding(inputs: RepairInputs) -> Tensor:
    if inputs.embedding is None:
        raise InputError(
            "this exposure has no embedding for a refitted head to read; expose one of the "
            "package's backbones, or set the exposure's embedding to what your classifier reads"
        )
    return inputs.embedding


def _check_width(inputs: RepairInputs, width: int) -> None:
    found = _embedding(inputs).shape[2]
    if found != width:
        raise InputError(
            f"the head was fitted on embeddings of width {width} but the exposure's are {found} "
            "wide; use an exposure of the same model"
        )
