"""The evidence ladder and its controls, declared like the methods; asked for by name.

They stand apart from METHODS since everything that runs all methods would otherwise run them too,
and they cost more than the rest together. None of them is from the paper.
"""

from __future__ import annotations

from gnn_repair.repair.methods import Method

_SHARED = ("repairs.hidden", "repairs.dropout", "repairs.seed")


def _further(
    title: str, output: str, repair: str, *reads: str, message_set: bool = False
) -> Method:
    return Method(
        title=title,
        output=output,
        message_set=message_set,
        repair=repair,
        reads=reads,
        batched=False,
        from_paper=False,
    )


FURTHER: dict[str, Method] = {
    "evidence_ladder": _further(
        "Evidence ladder",
        "weighed rungs",
        "ladder.ladder:EvidenceLadder",
        *_SHARED,
        "repairs.set_translation",
        message_set=True,
    ),
    "cross_fitted": _further(
        "Set translation, cross-fitted",
        "centred shift",
        "cross_fitting:CrossFitted",
        *_SHARED,
        "repairs.set_translation",
        message_set=True,
    ),
    "retrained_backbone": _further(
        "Retrained backbone", "everything", "controls.retrained:RetrainedBackbone", "repairs.seed"
    ),
    "cross_fitted_smoothing": _further(
        "Correct and smooth, cross-fitted",
        "smoothed labels",
        "controls.in_folds:CrossFittedSmoothing",
        "repairs.smoothing_layers",
        "repairs.seed",
    ),
    "label_propagation": _further(
        "Label propagation",
        "spread labels",
        "controls.label_propagation:LabelPropagation",
        "repairs.smoothing_layers",
    ),
    "feature_perceptron": _further(
        "Perceptron on features",
        "everything",
        "controls.in_folds:CrossFittedPerceptron",
        "repairs.hidden",
        "repairs.seed",
    ),
}
"""By name, in the order of the tables."""
