"""Find out why a trained graph neural network is wrong about a node, and repair it.

    import gnn_repair as gr

    data = gr.load_dataset("builtin")
    frozen = gr.train_backbone("gcn", data)
    exposure = gr.expose(frozen)

The public names are those of ``__all__``; they load when first used, so importing the package and
starting the command line stay quick.
"""

from __future__ import annotations

import importlib
from typing import Any

from gnn_repair.startup import collection_paused

__version__ = "0.1.0"

_HOMES = {
    "DATASETS": "datasets",
    "load_dataset": "datasets",
    "BACKBONES": "backbones",
    "Backbone": "backbones",
    "Frozen": "backbones",
    "load_frozen": "backbones",
    "train_backbone": "backbones",
    "Exposure": "exposure",
    "expose": "exposure",
    "OracleExplainer": "oracle",
    "OracleSolution": "oracle",
    "nearest_reweighting": "oracle",
    "reach": "oracle",
    "solve_oracle": "oracle",
    "stable_evidence": "oracle",
    "CrossFitted": "repair",
    "EvidenceLadder": "repair",
    "NodeTranslation": "repair",
    "RefitHead": "repair",
    "Reweighting": "repair",
    "SetTranslation": "repair",
    "load_repair": "repair",
    "run_study": "study",
    "read_results": "study",
    "report": "reporting",
    "GnnRepairError": "errors",
}
"""Where each public name lives."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnn_repair' has no attribute {name!r}")
    with collection_paused():
        value = getattr(importlib.import_module(f"gnn_repair.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
