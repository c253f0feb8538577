"""One case from data to records: train its splits as one, expose, ask the oracle, repair."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import (
    Backbone,
    Frozen,
    FrozenNetwork,
    OwnNetwork,
    Shape,
    find_backbone,
    train_backbone,
    train_own,
)
from gnn_repair.datasets import as_splits
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, TailedExposure, expose
from gnn_repair.study.case_records import PARTS, records_of, use_of_evidence
from gnn_repair.study.cases import Case
from gnn_repair.study.clock import Clock
from gnn_repair.study.engine import Tell
from gnn_repair.study.evidence_use import EVIDENCE
from gnn_repair.study.identity import FROZEN
from gnn_repair.study.methods import METHODS, ORACLE
from gnn_repair.study.oracle_summary import OracleFindings, summarise_oracle
from gnn_repair.study.protocol import BackboneProtocol, Protocol
from gnn_repair.study.records import Record
from gnn_repair.training import Progress

Architecture = type[Backbone] | Backbone | OwnNetwork
AnyExposure = Exposure | TailedExposure


@dataclass(frozen=True)
class Settings:
    """What all cases of a study share."""

    protocol: Protocol
    load: Callable[[str], Data]
    """A dataset by name."""
    backbones: Mapping[str, Architecture]
    """Architectures by name, built to the protocol's sizes; an instance is taken as it is."""
    device: str = "auto"


@dataclass(frozen=True, eq=False)
class Worked:
    """A case with its models at hand: splits trained as one, exposed, asked about and repaired."""

    settings: Settings
    case: Case
    data: Data
    masks: Mapping[str, Tensor]
    """By part, [N, S]: a column a split of the case."""
    frozen: Frozen | FrozenNetwork
    exposure: AnyExposure
    findings: OracleFindings
    """Of the oracle."""
    fitted: Mapping[str, Any]
    """Repairs by method."""
    predicted: Mapping[str, Tensor]
    """[S, N] classes by method."""
    seconds: Mapping[str, float]
    """Each run's share of the time by stage."""
    device: torch.device


def run_case(settings: Settings, case: Case, tell: Tell) -> list[Record]:
    """Train and evaluate the splits of a case together; one record a split."""
    device = choose_device(settings.device)
    try:
        parts = [work_case(settings, part, tell) for part in trained_together(settings, case)]
        return [record for part in parts for record in _with_use(part, device, tell)]
    finally:
        if device.type == "cuda":
            # The next case has other sizes; what this one's allocator holds would be in its way.
            gc.collect()
            torch.cuda.empty_cache()


def trained_together(settings: Settings, case: Case) -> list[Case]:
    """A network of the user's own is trained one split after the other, a backbone all at once."""
    if isinstance(settings.backbones.get(case.backbone), OwnNetwork):
        return [replace(case, splits=(split,)) for split in case.splits]
    return [case]


def work_case(settings: Settings, case: Case, tell: Tell) -> Worked:
    """Everything that is done for a case, its models kept."""
    start, device = time.perf_counter(), choose_device(settings.device)
    data = settings.load(case.dataset)
    clock = Clock(device)
    with clock(FROZEN):
        frozen = _train(settings, case, data, device, tell)
    tell("exposing")
    with clock("expose"):
        exposure = _exposed(frozen, device)
    masks = {part: as_splits(data[f"{part}_mask"])[:, list(case.splits)] for part in PARTS}
    findings = _oracle(settings.protocol, case, exposure, data, masks, clock, tell)
    fitted, predicted = {}, {}
    for name in case.methods:
        if name != ORACLE:
            fitted[name], predicted[name] = _repair(
                name, settings, case, frozen, exposure, masks, clock, tell
            )
    clock.add("total", time.perf_counter() - start)
    seconds = clock.shares(len(case.splits))
    return Worked(
        settings, case, data, masks, frozen, exposure, findings, fitted, predicted, seconds, device
    )


def _exposed(frozen: Frozen | FrozenNetwork, device: torch.device) -> AnyExposure:
    if isinstance(frozen, Frozen):
        return expose(frozen)
    data = frozen.data.clone().to(device)
    found = expose(frozen.network, data, forward=frozen.own.forward)
    return (
        replace(found, aggregate=_named(found.aggregate, frozen))
        if isinstance(found, TailedExposure)
        else _named(found, frozen)
    )


def _named(exposure: Exposure, frozen: FrozenNetwork) -> Exposure:
    """What the page calls the model."""
    graph = frozen.data.get("name") or "a graph"
    return replace(exposure, origin=f"{frozen.own.title or exposure.origin} on {graph}")


def _with_use(worked: Worked, device: torch.device, tell: Tell) -> list[Record]:
    """The records of a case with how its methods use the evidence."""
    tell("use of evidence")
    clock = Clock(device)
    with clock(EVIDENCE):
        use = use_of_evidence(worked)
    return records_of(worked, use, clock.shares(len(worked.case.splits)))


def build_backbone(chosen: type[Backbone] | Backbone, settings: BackboneProtocol) -> Backbone:
    """A backbone in the protocol's sizes; an instance keeps its own."""
    if isinstance(chosen, Backbone):
        return chosen
    shape = Shape(
        settings.hidden,
        settings.heads,
        settings.dropout,
        settings.self_loops,  # type: ignore[arg-type]  # checked with the protocol
        settings.zero_stream_biases,
    )
    return chosen(shape)


def _train(
    settings: Settings, case: Case, data: Data, device: torch.device, tell: Tell
) -> Frozen | FrozenNetwork:
    if case.backbone not in settings.backbones:
        find_backbone(case.backbone)
        raise InputError(f"backbone {case.backbone!r} was not given to this study")
    sizes = settings.protocol.backbones
    chosen = settings.backbones[case.backbone]
    if isinstance(chosen, OwnNetwork):
        (split,) = case.splits
        return train_own(
            chosen,
            data,
            split,
            device=device,
            budget=sizes.budget(chosen.budget),
            seed=sizes.seed,
            on_progress=_teller(tell, f"training split {split}"),
        )
    backbone = build_backbone(chosen, sizes)
    return train_backbone(
        backbone,
        data,
        case.splits,
        device=device,
        budget=sizes.budget(backbone.budget),
        seed=sizes.seed,
        on_progress=_teller(tell, "training"),
    )


def _teller(tell: Tell, what: str) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        tell(f"{what}, epoch {progress.epoch}")

    return on_progress


def _oracle(
    protocol: Protocol,
    case: Case,
    exposure: AnyExposure,
    data: Data,
    masks: Mapping[str, Tensor],
    clock: Clock,
    tell: Tell,
) -> OracleFindings:
    if ORACLE not in case.methods:
        return OracleFindings([None] * len(case.splits), None)
    tell("oracle")
    with clock(ORACLE):
        return summarise_oracle(exposure, data.y, masks["val"], masks["test"], protocol.oracle)


def _repair(
    name: str,
    settings: Settings,
    case: Case,
    frozen: Frozen | FrozenNetwork,
    exposure: Any,
    masks: Mapping[str, Tensor],
    clock: Clock,
    tell: Tell,
) -> tuple[Any, Tensor]:
    """Fit one method for all splits; the fitted repair and its classes [S, N]."""
    method, data = METHODS[name], frozen.data
    title = method.title.lower()
    tell(title)
    repair = method.build(settings.protocol.repairs, exposure)
    options: dict[str, Any] = {}
    if method.trained:
        options = {"device": exposure.recipients.device, "on_progress": _teller(tell, title)}
    if method.batched:
        options["batch_size"] = settings.protocol.batches.of(case.dataset, case.backbone)
    given = {"data": data, "frozen": frozen}
    options |= {need: given[need] for need in method.needs}
    with clock(name):
        fitted = repair.fit(exposure, data.y, masks["train"], masks["val"], **options)
        predicted = fitted.logits(exposure).argmax(2)
    return fitted, predicted
