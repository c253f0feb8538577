"""Records without any training: the machinery is tested with planted numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from gnn_repair.methods import METHODS, RUNGS
from gnn_repair.results.protocol import PAPER, Protocol
from gnn_repair.results.records import Case, RunRecord
from gnn_repair.results.store import Store

OFFSETS = {"refit_head": -0.01, "node_translation": 0.01, "set_translation": 0.03}


def make_record(
    dataset: str, backbone: str, split: int, test: float = 0.8, **changes: Any
) -> RunRecord:
    """A record whose frozen test accuracy is ``test``; methods differ from it by ``OFFSETS``."""
    score = {"train": 0.9, "val": test, "best_epoch": 3, "epochs_run": 5, "diverged": False}
    reach: dict[str, Any] = {"nodes": 10, "reachable": 9, "errors": 2, "reachable_errors": 1}
    reach |= {"true_class_reach": 0.9, "error_reach": 0.5, "support": 1.5}
    graph = {"nodes": 20, "entries": 60, "features": 4, "classes": 2}
    planted: dict[str, Any] = {
        "protocol": PAPER.digest,
        "dataset": dataset,
        "backbone": backbone,
        "split": split,
        "graph": {**graph, "train": 10, "val": 5, "test": 5},
        "frozen": {**score, "test": test, "parameters": 7},
        "oracle": {"val": reach, "test": reach, "status": {"optimal": 20}, "largest_gap": 1e-15},
        "methods": {
            name: {**score, "test": test + OFFSETS.get(name, 0.0), "parameters": 7}
            for name in METHODS
        },
        "seconds": {"total": 0.5},
        "environment": {"python": "3"},
    }
    return RunRecord(**planted | changes)


def stored(folder: Path, *records: RunRecord, protocol: Protocol = PAPER) -> Store:
    """A store of these records, each as one of the protocol."""
    store = Store(folder)
    store.begin(protocol)
    for record in records:
        store.put(replace(record, protocol=protocol.digest))
    return store


def fake_case(shared: Any, case: Case, tell: Any) -> list[Any]:
    """The work of a case, in no time."""
    return [make_record(run.dataset, run.backbone, run.split) for run in case.runs]


DATASETS, BACKBONES = ("cora", "pubmed", "actor", "mine"), ("gcn", "sgc", "own_net")


def random_records(seed: int) -> list[RunRecord]:
    """Random records of a part of a grid."""
    chance = random.Random(seed)

    def maybe(value: Any, p: float = 0.85) -> Any:
        return value if chance.random() < p else None

    def share() -> float:
        return chance.randrange(0, 41) / 40  # coarse, so that ties happen

    made = []
    for dataset, backbone in product(DATASETS, BACKBONES):
        for split in chance.sample(range(9), chance.randrange(0, 4)):
            methods = {}
            for name in METHODS:
                if chance.random() < 0.75:
                    own = {"train": 0.9, "val": maybe(share()), "test": maybe(share())}
                    own |= {"parameters": maybe(chance.randrange(1, 999))}
                    own |= {"reachable_errors_fixed": maybe(chance.randrange(4), 0.6)}
                    own |= {"shifts": chance.randrange(4), "shifts_inside": 0}
                    own |= {"shifts_undecided": maybe(0)}
                    methods[name] = own
            if "evidence_ladder" in methods:
                own = methods["evidence_ladder"]
                own |= {"out-of-fold frozen": share(), "test without similar": maybe(share())}
                own |= {"out-of-fold together": share()}
                for key in ("", " frozen", " frozen scaled"):
                    own["calibration error" + key] = share()
                for rung, what in RUNGS.items():
                    name = what.formerly if what.formerly and split % 2 else rung
                    own |= {f"out-of-fold {name}": maybe(share()), f"test {name}": maybe(share())}
                    for label in range(2):
                        own[f"out-of-fold gain {name} class {label}"] = maybe(share() - 0.5)
            test = {"true_class_reach": maybe(share()), "error_reach": maybe(share())}
            test |= {"reachable_errors": maybe(chance.randrange(4)), "support": maybe(2 * share())}
            if chance.random() < 0.5:
                test |= {"chance_reach": share(), "excess": share() - 0.5, "reachable_classes": 2.5}
                test |= {"error_reach_possible": maybe(1.0), "excess_possible": 0.9}
            frozen = {"test": share(), "terms": maybe(chance.randrange(50)), "parameters": 7}
            seconds = {"frozen": share(), "reweighting": maybe(share()), "total": 2 * share()}
            made.append(
                make_record(
                    dataset, backbone, split, frozen=frozen, methods=methods, seconds=seconds,
                    oracle=maybe({"test": test}),
                )
            )  # fmt: skip
    chance.shuffle(made)
    return made
