"""What a repair can read beside the exposure: neighbours' labels, raw features."""

from gnn_repair.repair.evidence.data import check_graph_data, with_dense_features
from gnn_repair.repair.evidence.features import FeatureEvidence
from gnn_repair.repair.evidence.inputs import EvidenceInputs, KnownEvidence, gather_evidence
from gnn_repair.repair.evidence.labels import LabelEvidence

__all__ = [
    "EvidenceInputs",
    "FeatureEvidence",
    "KnownEvidence",
    "LabelEvidence",
    "check_graph_data",
    "gather_evidence",
    "with_dense_features",
]
