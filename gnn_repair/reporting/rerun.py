"""A run of a study once more, to look at its nodes.

A store holds a run's numbers, not its model; with the protocol's seeds the same split is trained
again, exposed and repaired in seconds to minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import BACKBONES, find_backbone, train_backbone
from gnn_repair.datasets import as_splits, load_dataset
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.reporting.corrections import RepairLike
from gnn_repair.reporting.evidence import Evidence, gather
from gnn_repair.reporting.writing import report
from gnn_repair.study.methods import METHODS, ORACLE, chosen_methods
from gnn_repair.study.overrides import override
from gnn_repair.study.protocol import PAPER, Protocol
from gnn_repair.study.run_case import build_backbone
from gnn_repair.study.store import Store

if TYPE_CHECKING:
    import pandas as pd

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Rerun:
    """A run with its model at hand."""

    dataset: str
    backbone: str
    split: int
    data: Data
    exposure: Exposure
    repairs: Mapping[str, RepairLike]

    @property
    def test_mask(self) -> Tensor:
        """[N]: the split's test nodes."""
        return as_splits(self.data.test_mask)[:, self.split].cpu()

    @property
    def class_names(self) -> list[str] | None:
        """What the dataset calls its classes, where it says so."""
        return self.data.get("class_names")

    def evidence(self) -> Evidence:
        """What a report shows of it."""
        return gather(
            self.exposure,
            self.data.y,
            self.test_mask,
            repairs=self.repairs,
            edge_index=self.data.edge_index,
        )

    def report(self, path: str | Path, results: pd.DataFrame | None = None) -> Path:
        """Write its report page."""
        return report(
            self.exposure,
            self.data.y,
            path,
            nodes=self.test_mask,
            repairs=self.repairs,
            edge_index=self.data.edge_index,
            class_names=self.class_names,
            dataset=self.dataset,
            backbone=self.backbone,
            title=f"{self.exposure.origin}, split {self.split}",
            results=results,
        )


def rerun(
    dataset: str,
    backbone: str,
    split: int = 0,
    *,
    protocol: Protocol = PAPER,
    methods: list[str] | None = None,
    device: str = "auto",
    root: str | Path | None = None,
    tell: Tell = lambda text: None,
) -> Rerun:
    """Train one split, expose it and fit repairs to it (the paper's four unless named)."""
    find_backbone(backbone)
    data = load_dataset(dataset, root)
    sizes = protocol.backbones
    built = build_backbone(BACKBONES[backbone], sizes)
    place = choose_device(device)
    tell(f"training {built.title} on {dataset}, split {split}")
    frozen = train_backbone(
        built, data, [split], device=place, budget=sizes.budget(built.budget), seed=sizes.seed
    )
    exposure = expose(frozen)
    paper = [name for name, method in METHODS.items() if method.from_paper]
    repairs = {}
    for name in chosen_methods(paper if methods is None else methods):
        if name != ORACLE:
            tell(f"fitting {METHODS[name].title.lower()}")
            batch = protocol.batches.of(dataset, backbone)
            repairs[name] = _fit(name, protocol, exposure, data, split, batch)
    return Rerun(dataset, backbone, split, data, exposure, repairs)


def _fit(
    name: str, protocol: Protocol, exposure: Exposure, data: Data, split: int, batch: int | None
) -> Any:
    method = METHODS[name]
    options: dict[str, Any] = {}
    if method.trained:
        options["device"] = exposure.recipients.device
    if method.batched:
        options["batch_size"] = batch
    train, val = (as_splits(data[f"{part}_mask"])[:, [split]] for part in ("train", "val"))
    return method.build(protocol.repairs, exposure).fit(exposure, data.y, train, val, **options)


def stored_protocol(store: str | Path, digest: str | None = None) -> Protocol:
    """The protocol whose results a store holds; ``digest`` chooses among several."""
    held = Store(store)
    found = held.digests()
    if digest is None:
        if len(found) > 1 and PAPER.digest not in found:
            raise InputError(f"{store} holds the protocols {', '.join(found)}; choose --digest")
        digest = found[0] if len(found) == 1 else PAPER.digest
    if digest not in found:
        raise InputError(f"{store} holds no result of protocol {digest}; run a study first")
    settings = held.settings(digest)
    if settings is None:
        raise InputError(f"{store} lacks the settings of protocol {digest}; copy protocol.json")
    protocol = override(PAPER, _assignments(settings))
    if protocol.digest != digest:
        raise InputError(f"protocol {digest} is of another version; run the study again")
    return protocol


def _assignments(settings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{path}{name}.")
        else:
            yield f"{path}{name}={'none' if value is None else json.dumps(value)}"
