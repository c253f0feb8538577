"""Find out why a trained graph neural network is wrong about a node, and repair it.

Which errors are fixable, by weighing the model's last messages differently?

    import gnn_repair as gr

    found = gr.diagnose(model, data)  # your own trained model; test nodes by default
    print(found)  # error reach beside chance, the smallest change that is enough
    found.to_csv("errors.csv")  # a row per node
    found.report("errors.html")  # a page to look at

``data`` is a PyG ``Data`` or ``HeteroData``, or a list, batch or loader of graphs. For links, pass
what ``gr.expose_links`` returns in place of the model.

Learn a repair on the frozen model, and use it in its place:

    fitted = gr.EvidenceLadder().fit(
        found.exposure, data.y, data.train_mask, data.val_mask, data=data
    )
    print(fitted)  # what each kind of evidence is worth
    better = gr.repaired(model, fitted)  # called as your model is
    better.save("repaired.safetensors")
    better = gr.RepairedModel.load("repaired.safetensors", model)  # in another process

``gr.Reweighting`` and ``gr.SetTranslation`` are the paper's repairs, ``gr.NodeTranslation`` and
``gr.RefitHead`` its controls; all are fitted in the same way. ``gr.expose``, ``gr.solve``,
``gr.reach`` and ``gr.nearest_reweighting`` are the steps of ``gr.diagnose``; ``gr.run_study`` runs
the paper's grid. The public names are those of ``__all__``; they load when first used.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gnn_repair.startup import collection_paused

if TYPE_CHECKING:  # what type checkers and editors see; the same names as in _HOMES
    from gnn_repair.backbones import BACKBONES as BACKBONES
    from gnn_repair.backbones import Backbone as Backbone
    from gnn_repair.backbones import Frozen as Frozen
    from gnn_repair.backbones import train_backbone as train_backbone
    from gnn_repair.budget import Budget as Budget
    from gnn_repair.catalog import DATASETS as DATASETS
    from gnn_repair.datasets import load_dataset as load_dataset
    from gnn_repair.diagnosis import Diagnosis as Diagnosis
    from gnn_repair.diagnosis import diagnose as diagnose
    from gnn_repair.errors import ExposureRefused as ExposureRefused
    from gnn_repair.errors import GnnRepairError as GnnRepairError
    from gnn_repair.errors import InputError as InputError
    from gnn_repair.exposure import Exposure as Exposure
    from gnn_repair.exposure import expose as expose
    from gnn_repair.exposure import expose_links as expose_links
    from gnn_repair.oracle import OracleExplainer as OracleExplainer
    from gnn_repair.oracle import Solution as Solution
    from gnn_repair.oracle import class_reach as class_reach
    from gnn_repair.oracle import compare as compare
    from gnn_repair.oracle import confusion_by_reach as confusion_by_reach
    from gnn_repair.oracle import nearest_reweighting as nearest_reweighting
    from gnn_repair.oracle import reach as reach
    from gnn_repair.oracle import save_baseline as save_baseline
    from gnn_repair.oracle import solve as solve
    from gnn_repair.oracle import source_ranking as source_ranking
    from gnn_repair.oracle import stable_evidence as stable_evidence
    from gnn_repair.oracle import value_range as value_range
    from gnn_repair.repair import CorrectAndSmooth as CorrectAndSmooth
    from gnn_repair.repair import CrossFitted as CrossFitted
    from gnn_repair.repair import EvidenceLadder as EvidenceLadder
    from gnn_repair.repair import FittedRepair as FittedRepair
    from gnn_repair.repair import NodeTranslation as NodeTranslation
    from gnn_repair.repair import RefitHead as RefitHead
    from gnn_repair.repair import Reweighting as Reweighting
    from gnn_repair.repair import SetTranslation as SetTranslation
    from gnn_repair.repair import TemperatureScaling as TemperatureScaling
    from gnn_repair.repair.model import RepairedModel as RepairedModel
    from gnn_repair.repair.model import repaired as repaired
    from gnn_repair.reporting import plots as plots
    from gnn_repair.reporting import report as report
    from gnn_repair.results.store import read_results as read_results
    from gnn_repair.study import run_study as run_study

__version__ = "1.0.0"

_PUBLIC = {
    "catalog": "DATASETS",
    "datasets": "load_dataset",
    "backbones": "BACKBONES Backbone Frozen train_backbone",
    "budget": "Budget",
    "diagnosis": "Diagnosis diagnose",
    "exposure": "Exposure expose expose_links",
    "oracle": (
        "OracleExplainer Solution class_reach compare confusion_by_reach nearest_reweighting "
        "reach save_baseline solve source_ranking stable_evidence value_range"
    ),
    "repair": (
        "CorrectAndSmooth CrossFitted EvidenceLadder FittedRepair NodeTranslation RefitHead "
        "Reweighting SetTranslation TemperatureScaling"
    ),
    "repair.model": "RepairedModel repaired",
    "study": "run_study",
    "results.store": "read_results",
    "reporting": "plots report",
    "errors": "GnnRepairError InputError ExposureRefused",
}
"""The public names by the module that defines them."""
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names.split()}
_MOVED = {
    "load_frozen": ("backbones", "Frozen.load", "gr.Frozen.load"),
    "load_repair": ("repair", "FittedRepair.load", "gr.FittedRepair.load"),
    "OracleSolution": ("oracle", "Solution", "gr.Solution"),
    "solve_labels": ("oracle", "solve", "gr.solve"),
    "solve_oracle": ("oracle.solver", "solve_oracle", "gr.solve"),
    "TailedExposure": ("exposure", "Exposure", "gr.Exposure with a head"),
    "plot_node": ("reporting.plots", "node", "gr.plots.node"),
    "plot_reach": ("reporting.plots", "reach", "gr.plots.reach"),
    "plot_rungs": ("reporting.plots", "rungs", "gr.plots.rungs"),
}
"""Names of version 0.2: where each lives now, what it is called there, and how users write it. They
warn, and leave with version 1.1."""

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # which would otherwise take every name for a public one

    def __getattr__(name: str) -> Any:
        if name in _MOVED:
            home, attribute, successor = _MOVED[name]
            warnings.warn(f"gr.{name} is {successor} now", DeprecationWarning, stacklevel=2)
            return attrgetter(attribute)(importlib.import_module(f"gnn_repair.{home}"))
        if name not in _HOMES:
            text = f"module 'gnn_repair' has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[__name__])  # Python suggests one
        with collection_paused():
            value = getattr(importlib.import_module(f"gnn_repair.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
