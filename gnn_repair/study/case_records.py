"""What is stored of a case once it has been worked: accuracies, time, and how evidence was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.datasets import num_classes
from gnn_repair.study.environment import environment
from gnn_repair.study.evidence_use import EvidenceUse, errors_fixed, merged, shifts_inside
from gnn_repair.study.further_scores import further_scores
from gnn_repair.study.identity import FROZEN, stage_keys
from gnn_repair.study.records import Record

if TYPE_CHECKING:
    from gnn_repair.study.run_case import Worked

PARTS = ("train", "val", "test")


def use_of_evidence(worked: Worked) -> EvidenceUse:
    """How the methods of a case use what reweighting could do; one table a method and split."""
    wrong, test = worked.findings.reachable_errors, worked.masks["test"]
    return {
        name: merged(
            errors_fixed(worked.predicted[name], worked.data.y, wrong, test),
            shifts_inside(fitted, worked.exposure, test),
        )
        for name, fitted in worked.fitted.items()
    }


def records_of(
    worked: Worked, use: EvidenceUse | None = None, more: Mapping[str, float] | None = None
) -> list[Record]:
    """What is stored of a case, one record a split.

    Args:
        worked: the case.
        use: from :func:`use_of_evidence`; records lack these numbers unless given.
        more: seconds by further stages, a run's share each.
    """
    case, protocol = worked.case, worked.settings.protocol
    keys = stage_keys(protocol, case.dataset, case.backbone)
    stages = [FROZEN, *(name for name in case.methods if name in keys)]
    methods = {name: _scores(worked, name, (use or {}).get(name)) for name in worked.fitted}
    seconds = {**worked.seconds, **(more or {})}
    seconds["total"] = sum((more or {}).values(), seconds["total"])
    return [
        {
            "protocol": protocol.digest,
            "dataset": case.dataset,
            "backbone": case.backbone,
            "split": split,
            "stages": {name: keys[name] for name in stages},
            "graph": _graph(worked.data, worked.masks, member),
            "frozen": _frozen(worked, member),
            "oracle": worked.findings.summaries[member],
            "methods": {name: rows[member] for name, rows in methods.items()},
            "seconds": dict(seconds),
            "members": len(case.splits),
            "stack": list(case.splits),
            "environment": environment(worked.device),
        }
        for member, split in enumerate(case.splits)
    ]


def _scores(
    worked: Worked, name: str, use: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """A method's accuracies and how it was found, one a split."""
    fitted = worked.fitted[name]
    scores = _accuracies(worked.predicted[name], worked.data, worked.masks)
    exposure: Any = worked.exposure  # repairs take either kind
    more = further_scores(fitted, exposure, worked.data.y, worked.masks["test"])
    return [
        {
            **{part: scores[part][member] for part in PARTS},
            **more[member],
            **(use[member] if use else {}),
            "best_epoch": int(fitted.best_epoch[member]),
            "epochs_run": int(fitted.epochs_run[member]),
            "diverged": bool(fitted.diverged[member]),
            "parameters": int(fitted.num_parameters),
        }
        for member in range(len(worked.case.splits))
    ]


def _accuracies(
    predicted: Tensor, data: Data, masks: Mapping[str, Tensor]
) -> dict[str, list[float | None]]:
    """Shares of correct predictions [S, N] by part and member; None where a part is empty."""
    right = (predicted.cpu() == data.y.cpu()).t()
    return {
        part: [
            int(right[chosen, member].sum()) / int(chosen.sum()) if bool(chosen.any()) else None
            for member, chosen in enumerate(mask.cpu().t())
        ]
        for part, mask in masks.items()
    }


def _frozen(worked: Worked, member: int) -> dict[str, Any]:
    frozen = worked.frozen
    own = {part: mask[:, member : member + 1] for part, mask in worked.masks.items()}
    predicted = frozen.logits[member : member + 1].argmax(2)
    scores = _accuracies(predicted, worked.data, own)
    return {
        **{part: scores[part][0] for part in PARTS},
        "best_epoch": int(frozen.best_epoch[member]),
        "epochs_run": int(frozen.epochs_run[member]),
        "diverged": bool(frozen.diverged[member]),
        "parameters": sum(value[0].numel() for value in frozen.parameters.values()),
        "terms": worked.exposure.num_terms,
    }


def _graph(data: Data, masks: Mapping[str, Tensor], member: int) -> dict[str, int]:
    return {
        "nodes": int(data.num_nodes),
        "entries": int(data.edge_index.shape[1]),
        "features": int(data.x.shape[1]),
        "classes": num_classes(data),
        **{part: int(mask[:, member].sum()) for part, mask in masks.items()},
    }
