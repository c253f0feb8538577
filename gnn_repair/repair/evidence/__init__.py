"""What a repair can read beside the exposure: neighbours' labels, raw features."""

from gnn_repair.repair.evidence.graph import (
    FeatureEvidence,
    KnownEvidence,
    LabelEvidence,
    check_graph_data,
    gather_evidence,
    with_dense_features,
)

__all__ = [
    "FeatureEvidence",
    "KnownEvidence",
    "LabelEvidence",
    "check_graph_data",
    "gather_evidence",
    "with_dense_features",
]
