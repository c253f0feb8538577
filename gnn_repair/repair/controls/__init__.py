"""What one would do instead of the ladder, with the same labels: the honest comparison.

None of these is from the paper. Each is fitted like a repair and stands in the same tables.
"""

from gnn_repair.repair.controls.kept import KeptPrediction
from gnn_repair.repair.controls.label_propagation import LabelPropagation
from gnn_repair.repair.controls.perceptron import FeaturePerceptron
from gnn_repair.repair.controls.retrained import RetrainedBackbone

__all__ = ["FeaturePerceptron", "KeptPrediction", "LabelPropagation", "RetrainedBackbone"]
