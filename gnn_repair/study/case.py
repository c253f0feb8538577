"""One case from data to records: train its splits as one, expose, ask the oracle, repair."""

from __future__ import annotations

import functools
import gc
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import gnn_repair
from gnn_repair.backbones import (
    Backbone,
    Frozen,
    FrozenNetwork,
    OwnNetwork,
    Shape,
    find_backbone,
    load_network,
    train_backbone,
    train_own,
)
from gnn_repair.checks import as_splits, num_classes
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.methods import METHODS
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.folds import build_repair
from gnn_repair.results.protocol import BackboneProtocol, Protocol
from gnn_repair.results.records import FROZEN, ORACLE, PARTS, Case, Numbers, RunRecord, stage_keys
from gnn_repair.study.engine import Tell
from gnn_repair.study.measures import (
    OracleFindings,
    errors_fixed,
    further_scores,
    shifts_inside,
    summarise_oracle,
)
from gnn_repair.training import Progress

Architecture = type[Backbone] | Backbone | OwnNetwork
EVIDENCE = "evidence"
"""The stage in which the use of evidence is counted."""


@dataclass(frozen=True)
class Settings:
    """What all cases of a study share."""

    protocol: Protocol
    load: Callable[[str], Data]
    """A dataset by name."""
    backbones: Mapping[str, Architecture]
    """Architectures by name, built to the protocol's sizes; an instance is taken as it is."""
    device: str = "auto"
    kept_splits: frozenset[int] = frozenset()
    """Whose models go along with their records."""


class Clock:
    """Wall time by stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a block, the device's queued work included."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[stage] = time.perf_counter() - start

    def shares(self, members: int) -> dict[str, float]:
        """Each run's share of the stack's time, so that runs add up."""
        return {stage: round(value / members, 4) for stage, value in self.seconds.items()}


@dataclass(frozen=True, eq=False)
class Worked:
    """A case with its models at hand: splits trained as one, exposed, asked about and repaired."""

    settings: Settings
    case: Case
    data: Data
    masks: Mapping[str, Tensor]
    """By part, [N, S]: a column a split of the case."""
    frozen: Frozen | FrozenNetwork
    exposure: Exposure
    findings: OracleFindings
    """Of the oracle."""
    repairs: Mapping[str, Any]
    """Fitted repairs by method."""
    predicted: Mapping[str, Tensor]
    """[S, N] classes by method."""
    seconds: Mapping[str, float]
    """Each run's share of the time by stage."""
    device: torch.device
    use: Mapping[str, list[Numbers]] = field(default_factory=dict)
    """By method, how each split uses the evidence, where that was counted."""


def run_case(settings: Settings, case: Case, tell: Tell) -> list[RunRecord]:
    """Train and evaluate the splits of a case together, of a network of the user's own one after
    the other; one record a split."""
    device = choose_device(settings.device)
    try:
        parts = [case]
        if isinstance(settings.backbones.get(case.backbone), OwnNetwork):
            parts = [replace(case, splits=(split,)) for split in case.splits]
        worked = [work_case(settings, part, tell) for part in parts]
        return [record for part in worked for record in records_of(_with_use(part, tell))]
    finally:
        if device.type == "cuda":
            # The next case has other sizes; what this one's allocator holds would be in its way.
            gc.collect()
            torch.cuda.empty_cache()


def work_case(
    settings: Settings, case: Case, tell: Tell, models: Mapping[str, Path] | None = None
) -> Worked:
    """Everything that is done for a case, its models at hand; ``models`` are files of some."""
    files = models or {}
    start, device = time.perf_counter(), choose_device(settings.device)
    data = settings.load(case.dataset)
    clock = Clock(device)
    with clock(FROZEN):
        frozen = _frozen(settings, case, data, device, tell, files.get(FROZEN))
    tell("exposing")
    with clock("expose"):
        exposure = exposed(frozen, device)
    chosen = list(case.splits)
    masks = {part: as_splits(data[f"{part}_mask"])[:, chosen] for part in PARTS}
    findings = OracleFindings([None] * len(case.splits), None)
    if ORACLE in case.methods:
        tell("oracle")
        with clock(ORACLE):
            findings = summarise_oracle(exposure, data.y, masks, settings.protocol.oracle)
    repairs, predicted = {}, {}
    for name in case.methods:
        if name != ORACLE:
            with clock(name):
                repairs[name] = (
                    FittedRepair.load(files[name])
                    if name in files
                    else _fit(name, settings, case, frozen, exposure, masks, tell)
                )
                predicted[name] = repairs[name].member_logits(exposure).argmax(2)
    clock.seconds["total"] = time.perf_counter() - start
    seconds = clock.shares(len(case.splits))
    return Worked(
        settings, case, data, masks, frozen, exposure, findings, repairs, predicted, seconds, device
    )


def exposed(frozen: Frozen | FrozenNetwork, device: torch.device) -> Exposure:
    """The final aggregation of a trained model, named as pages name it."""
    if isinstance(frozen, Frozen):
        return expose(frozen)
    found = expose(frozen.network, frozen.data.clone().to(device), forward=frozen.own.forward)
    graph = frozen.data.get("name") or "a graph"
    return replace(found, origin=f"{frozen.own.title or found.origin} on {graph}")


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


def _frozen(
    settings: Settings, case: Case, data: Data, device: torch.device, tell: Tell, file: Path | None
) -> Frozen | FrozenNetwork:
    """The trained model, from its file where there is one."""
    if case.backbone not in settings.backbones:
        find_backbone(case.backbone)
        raise InputError(f"backbone {case.backbone!r} was not given to this study")
    sizes, chosen = settings.protocol.backbones, settings.backbones[case.backbone]
    options: dict[str, Any] = {"device": device, "seed": sizes.seed}
    if isinstance(chosen, OwnNetwork):
        if file is not None:
            return load_network(file, chosen, data)
        (split,) = case.splits
        on_progress = _teller(tell, f"training split {split}")
        budget = sizes.budget(chosen.budget)
        return train_own(chosen, data, split, budget=budget, on_progress=on_progress, **options)
    backbone = build_backbone(chosen, sizes)
    on_progress, budget = _teller(tell, "training"), sizes.budget(backbone.budget)
    if file is not None:
        return Frozen.load(file, data, backbone, budget, sizes.seed)
    return train_backbone(
        backbone, data, case.splits, budget=budget, on_progress=on_progress, **options
    )


def _teller(tell: Tell, what: str) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        tell(f"{what}, epoch {progress.epoch}")

    return on_progress


def _fit(
    name: str,
    settings: Settings,
    case: Case,
    frozen: Frozen | FrozenNetwork,
    exposure: Any,
    masks: Mapping[str, Tensor],
    tell: Tell,
) -> Any:
    """One method fitted for all splits."""
    method, data = METHODS[name], frozen.data
    title = method.title.lower()
    tell(title)
    repair = build_repair(method, settings.protocol.repairs, exposure)
    options: dict[str, Any] = {}
    if method.trained:
        options = {"device": exposure.recipients.device, "on_progress": _teller(tell, title)}
    if method.batched:
        options["batch_size"] = settings.protocol.batches.of(case.dataset, case.backbone)
    given = {"data": data, "frozen": frozen}
    options |= {need: given[need] for need in method.needs}
    return repair.fit(exposure, data.y, masks["train"], masks["val"], **options)


# What is stored of it -----------------------------------------------------------------------------


def _with_use(worked: Worked, tell: Tell) -> Worked:
    """The case with how its methods use the evidence."""
    tell("use of evidence")
    clock, test = Clock(worked.device), worked.masks["test"]
    wrong, use = worked.findings.reachable_errors, dict[str, list[Numbers]]()
    with clock(EVIDENCE):
        for name, fitted in worked.repairs.items():
            fixed = errors_fixed(worked.predicted[name], worked.data.y, wrong, test)
            inside = shifts_inside(fitted, worked.exposure, test)
            use[name] = [a | b for a, b in zip(fixed, inside, strict=True)]
    took = clock.shares(len(worked.case.splits))
    total = worked.seconds["total"] + took[EVIDENCE]
    return replace(worked, use=use, seconds={**worked.seconds, **took, "total": total})


def _files(worked: Worked, member: int) -> dict[str, bytes]:
    """One split's models as files; without those that no file can hold, which are made again."""
    frozen, files = worked.frozen, dict[str, bytes]()
    models: dict[str, Any] = {
        FROZEN: frozen.member(member) if isinstance(frozen, Frozen) else frozen
    }
    models |= {name: fitted.member(member) for name, fitted in worked.repairs.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models.items():
            with suppress(InputError):
                model.save(Path(folder) / name)
                files[name] = (Path(folder) / name).read_bytes()
    return files if FROZEN in files else {}


def records_of(worked: Worked) -> list[RunRecord]:
    """What is stored of a case, one record a split."""
    case, settings, data = worked.case, worked.settings, worked.data
    keys = stage_keys(settings.protocol, case.dataset, case.backbone)
    stages = [FROZEN, *(name for name in case.methods if name in keys)]
    frozen = worked.frozen
    nothing: list[Numbers] = [{}] * len(case.splits)
    sizes = {
        "parameters": sum(value[0].numel() for value in frozen.parameters.values()),
        "terms": worked.exposure.num_terms,
    }
    accuracies = _scores(frozen, frozen.logits.argmax(2), worked, nothing, sizes)
    methods = {}
    for name, fitted in worked.repairs.items():
        more = further_scores(fitted, worked.exposure, data.y, worked.masks["test"])
        used = worked.use.get(name, nothing)
        rows = [own | use for own, use in zip(more, used, strict=True)]
        sizes = {"parameters": int(fitted.num_parameters)}
        methods[name] = _scores(fitted, worked.predicted[name], worked, rows, sizes)
    return [
        RunRecord(
            protocol=settings.protocol.digest,
            dataset=case.dataset,
            backbone=case.backbone,
            split=split,
            stages={name: keys[name] for name in stages},
            graph={
                "nodes": int(data.num_nodes),
                "entries": int(data.edge_index.shape[1]),
                "features": int(data.x.shape[1]),
                "classes": num_classes(data),
                **{part: int(mask[:, member].sum()) for part, mask in worked.masks.items()},
            },
            frozen=accuracies[member],
            oracle=worked.findings.summaries[member],
            methods={name: rows[member] for name, rows in methods.items()},
            seconds=dict(worked.seconds),
            members=len(case.splits),
            stack=list(case.splits),
            environment=environment(worked.device),
            models=_files(worked, member) if split in settings.kept_splits else {},
        )
        for member, split in enumerate(case.splits)
    ]


def _scores(
    found: Any, predicted: Tensor, worked: Worked, more: list[Numbers], sizes: Numbers
) -> list[Numbers]:
    """Shares of correct predictions [S, N] by part, None where it is empty; how they were found."""
    right = predicted.cpu() == worked.data.y.cpu()
    rows = []
    for member, own in enumerate(right):
        chosen = {part: mask[:, member].cpu() for part, mask in worked.masks.items()}
        rows.append(
            {
                **{
                    part: int(own[mask].sum()) / int(mask.sum()) if bool(mask.any()) else None
                    for part, mask in chosen.items()
                },
                **more[member],
                "best_epoch": int(found.best_epoch[member]),
                "epochs_run": int(found.epochs_run[member]),
                "diverged": bool(found.diverged[member]),
                **sizes,
            }
        )
    return rows


def environment(device: torch.device) -> dict[str, str]:
    """What a result was made with: versions, device and source revision."""
    packages = ("torch", "torch-geometric", "numpy", "numba", "highspy")
    name = f"{device.type}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "gnn-repair": gnn_repair.__version__,
        **source(),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
        "system": f"{platform.system()} {platform.machine()}",
        "device": name,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def source() -> dict[str, str]:
    """The git revision of the package's own checkout, and whether its files are that revision's."""
    folder = Path(gnn_repair.__file__).parent
    if not (folder.parent / ".git").exists():
        return {"revision": "released", "source": "clean"}
    try:
        revision = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".").splitlines()
    except (OSError, subprocess.SubprocessError):
        return {"revision": "unknown", "source": "unknown"}
    state = f"{len(changed)} files differ from the revision" if changed else "clean"
    return {"revision": revision, "source": state}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
