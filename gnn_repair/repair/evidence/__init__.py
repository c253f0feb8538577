"""What a repair can read beside the exposure: neighbours' labels, raw features."""

from gnn_repair.repair.evidence.data import check_data
from gnn_repair.repair.evidence.features import FeatureEvidence
from gnn_repair.repair.evidence.inputs import Evidence, EvidenceInputs, gather_evidence
from gnn_repair.repair.evidence.labels import LabelEvidence

__all__ = [
    "Evidence",
    "EvidenceInputs",
    "FeatureEvidence",
    "LabelEvidence",
    "check_data",
    "gather_evidence",
]
