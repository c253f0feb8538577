"""What rungs read beside the exposure, as a repair's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.baselines import sources_to_recipients
from gnn_repair.repair.evidence.data import check_graph_data
from gnn_repair.repair.evidence.features import FeatureEvidence
from gnn_repair.repair.evidence.labels import LabelEvidence
from gnn_repair.repair.folds import Roles
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.stacked_inputs import StackedInputs, picked


@dataclass(frozen=True, eq=False)
class KnownEvidence:
    """Known labels over the graph, and raw features where they were given."""

    labels: LabelEvidence
    features: FeatureEvidence | None


def gather_evidence(
    exposure: Exposed, y: Tensor, known: Tensor, data: Data | None = None
) -> KnownEvidence:
    """What there is beside the exposure.

    Args:
        exposure: whose sources stand for the graph where no data is given.
        y: [N]; read where a label is known.
        known: [S, N] bool, the training and validation nodes.
        data: the graph's ``edge_index`` and ``x``.
    """
    classes, dtype = exposure.num_classes, exposure.state.dtype
    place = exposure.recipients.device
    shown = torch.where(known, y, classes)
    if data is None:
        entries = sources_to_recipients(exposure)
        return KnownEvidence(LabelEvidence(entries, shown, classes, dtype), None)
    check_graph_data(exposure, data)
    x = getattr(data, "x", None)
    features = None if x is None else FeatureEvidence(x.to(place, dtype))
    raw = None if features is None else features.features.dense
    labels = LabelEvidence(data.edge_index.to(place), shown, classes, dtype, raw)
    return KnownEvidence(labels, features)


class EvidenceInputs(StackedInputs):
    """Stacked inputs with evidence: as a copy may see it while it learns, or all that is known."""

    def __init__(
        self,
        own: RepairInputs,
        copies: int,
        evidence: KnownEvidence,
        learning: Roles | None = None,
    ) -> None:
        """``learning`` gives what copies see in training: not their own fold, not everything."""
        super().__init__(own, copies)
        self.evidence, self.learning = evidence, learning
        # On the device and always the same memory, which a captured CUDA graph goes on writing.
        self._step = torch.zeros((), dtype=torch.long, device=own.device)

    def begin_step(self, stream: Tensor) -> None:
        """Called before each training step: other labels and features are hidden in it.

        ``stream`` is where the step's random numbers begin, whoever else is in the stack.
        """
        self._step.copy_(stream)

    @property
    def features(self) -> FeatureEvidence:
        """The raw features, which must be there."""
        if self.evidence.features is None:
            raise InputError("this repair reads raw features; pass data=… with x to fit")
        return self.evidence.features

    @cached_property
    def _everything(self) -> Tensor:
        """Histograms of all known labels, [S, N, 2 (C + 1)]."""
        labels = self.evidence.labels
        return labels.histograms(labels.known)

    @cached_property
    def _withheld(self) -> Tensor:
        """[M, N] bool: the labels of a copy's own fold."""
        assert self.learning is not None
        held = self.learning.judged.new_zeros(self.num_members, self.evidence.labels.known.shape[1])
        held[:, self.nodes] = self.learning.judged
        return held

    def labels_at(self, targets: Tensor) -> Tensor:
        """Label histograms of targets [M, L], [M, L, 2 (C + 1)]."""
        if self.learning is None:
            return picked(self._everything, self.nodes[targets])
        labels = self.evidence.labels
        table = labels.histograms(labels.partly(self._withheld, self._step))
        return picked(table, self.nodes[targets])

    @cached_property
    def _every_kin(self) -> Tensor:
        """All known labels of the nodes most alike, [S, N, k (C + 1)]."""
        labels = self.evidence.labels
        return labels.kin_histograms(labels.known)

    def kin_at(self, targets: Tensor) -> Tensor:
        """Labels of the nodes most alike to targets [M, L], [M, L, k (C + 1)]."""
        if self.learning is None:
            return picked(self._every_kin, self.nodes[targets])
        labels = self.evidence.labels
        table = labels.kin_histograms(labels.partly(self._withheld, self._step))
        return picked(table, self.nodes[targets])

    def features_times(self, targets: Tensor, weight: Tensor) -> Tensor:
        """x_v W of targets [M, L] for weights [M, F, H], [M, L, H]."""
        seed = None if self.learning is None else self._step + 1
        return self.features.times_at(weight, self.nodes[targets], seed)
