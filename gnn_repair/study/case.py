"""One case from data to records: train its splits together, expose, solve, repair.

Also the checks made before the first case, and single runs repeated to look at their nodes.
"""

from __future__ import annotations

import functools
import gc
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
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
from gnn_repair.backbones.frozen import STATISTICS
from gnn_repair.catalog import data_root, find_dataset
from gnn_repair.checks import as_splits, check_data, num_classes
from gnn_repair.datasets import load_dataset
from gnn_repair.datasets.loading import SPLITS
from gnn_repair.devices import choose_device, parse_device
from gnn_repair.errors import FileFormatError, InputError, SplitError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.files import load_tensors
from gnn_repair.methods import METHODS
from gnn_repair.repair import FittedRepair
from gnn_repair.repair.folds import build_repair
from gnn_repair.results import records
from gnn_repair.results.protocol import PAPER, BackboneProtocol, Protocol
from gnn_repair.results.records import FROZEN, ORACLE, PARTS, Case, Numbers, RunRecord
from gnn_repair.results.store import ResultsSource
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
Grid = Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """What all cases of a study share."""

    protocol: Protocol
    load: Callable[[str], Data]
    """Returns a dataset by name."""
    backbones: Mapping[str, Architecture]
    """By name; classes are built in the protocol's sizes, instances are used as they are."""
    device: str = "auto"
    kept_splits: frozenset[int] = frozenset()
    """Splits whose models are stored with their records."""


class Clock:
    """Wall time by stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a block, including the device's queued work."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[stage] = time.perf_counter() - start

    def shares(self, members: int) -> dict[str, float]:
        """Seconds per stage divided by the number of members, so that the runs add up."""
        return {stage: round(value / members, 4) for stage, value in self.seconds.items()}


@dataclass(frozen=True, eq=False)
class CaseModels:
    """A case's frozen model and repairs, with what was computed from them."""

    settings: Settings
    case: Case
    data: Data
    masks: Mapping[str, Tensor]
    """By part, [N, S]: one column per split of the case."""
    frozen: Frozen | FrozenNetwork
    exposure: Exposure
    findings: OracleFindings
    repairs: Mapping[str, Any]
    """Fitted repairs by method."""
    predicted: Mapping[str, Tensor]
    """[S, N] classes by method."""
    seconds: Mapping[str, float]
    """Time by stage, divided among the splits."""
    device: torch.device
    use: Mapping[str, list[Numbers]] = field(default_factory=dict)
    """By method, how each split uses the evidence; empty unless counted."""


def run_case(settings: Settings, case: Case, tell: Tell) -> list[RunRecord]:
    """One record per split, trained together; a user's own network one split after the other."""
    device, parts = choose_device(settings.device), [case]
    if isinstance(settings.backbones.get(case.backbone), OwnNetwork):
        parts = [replace(case, splits=(split,)) for split in case.splits]
    try:
        results = [train_case(settings, part, tell) for part in parts]
        return [r for result in results for r in make_records(_count_evidence(result, tell))]
    finally:
        if device.type == "cuda":
            # The next case has other sizes, and the allocator would keep this one's memory.
            gc.collect()
            torch.cuda.empty_cache()


def train_case(
    settings: Settings, case: Case, tell: Tell, files: Mapping[str, Path] | None = None
) -> CaseModels:
    """All models of a case, read from ``files`` (by name) where they are there, else trained."""
    files = files or {}
    start, device = time.perf_counter(), choose_device(settings.device)
    data = settings.load(case.dataset)
    clock = Clock(device)
    with clock(FROZEN):
        frozen = _train_frozen(settings, case, data, device, tell, files.get(FROZEN))
    tell("exposing")
    with clock("expose"):
        exposure = expose_frozen(frozen, device)
    splits = list(case.splits)
    masks = {part: as_splits(data[f"{part}_mask"])[:, splits] for part in PARTS}
    findings = OracleFindings([None] * len(case.splits), None)
    if ORACLE in case.methods:
        tell("oracle")
        with clock(ORACLE):
            findings = summarise_oracle(exposure, data.y, masks, settings.protocol.oracle)
    repairs, predicted = dict[str, Any](), {}
    for name in case.methods:
        if name != ORACLE:
            with clock(name):
                if name in files:
                    repairs[name] = FittedRepair.load(files[name])
                else:
                    repairs[name] = _fit(name, settings, case, frozen, exposure, masks, tell)
                predicted[name] = repairs[name].member_logits(exposure).argmax(2)
    clock.seconds["total"] = time.perf_counter() - start
    seconds = clock.shares(len(case.splits))
    return CaseModels(
        settings, case, data, masks, frozen, exposure, findings, repairs, predicted, seconds, device
    )


def expose_frozen(frozen: Frozen | FrozenNetwork, device: torch.device) -> Exposure:
    """The final aggregation of a trained model, with the title that pages show."""
    if isinstance(frozen, Frozen):
        return expose(frozen)
    exposure = expose(frozen.network, frozen.data.clone().to(device), forward=frozen.own.forward)
    graph = frozen.data.get("name") or "a graph"
    return replace(exposure, origin=f"{frozen.own.title or exposure.origin} on {graph}")


def build_backbone(backbone: Architecture, settings: BackboneProtocol) -> Backbone | OwnNetwork:
    """A backbone in the protocol's sizes; what is an instance already keeps its own."""
    if isinstance(backbone, Backbone | OwnNetwork):
        return backbone
    return backbone(Shape(**{size.name: getattr(settings, size.name) for size in fields(Shape)}))


def _train_frozen(
    settings: Settings, case: Case, data: Data, device: torch.device, tell: Tell, file: Path | None
) -> Frozen | FrozenNetwork:
    """The trained model, read from its file where there is one."""
    if case.backbone not in settings.backbones:
        find_backbone(case.backbone)
        raise InputError(f"backbone {case.backbone!r} was not given to this study")
    sizes = settings.protocol.backbones
    model = build_backbone(settings.backbones[case.backbone], sizes)
    budget = sizes.budget(model.budget)
    options: dict[str, Any] = {"device": device, "budget": budget, "seed": sizes.seed}
    if isinstance(model, OwnNetwork):
        if file is not None:
            return load_network(file, model, data)
        (split,) = case.splits
        progress = _report_epochs(tell, f"training split {split}")
        return train_own(model, data, split, on_progress=progress, **options)
    if file is not None:
        return Frozen.load(file, data, model, budget, sizes.seed)
    progress = _report_epochs(tell, "training")
    return train_backbone(model, data, case.splits, on_progress=progress, **options)


def _report_epochs(tell: Tell, stage: str) -> Callable[[Progress], None]:
    return lambda progress: tell(f"{stage}, epoch {progress.epoch}")


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
        options["device"] = exposure.recipients.device
        options["on_progress"] = _report_epochs(tell, title)
    if method.batched:
        options["batch_size"] = settings.protocol.batches.of(case.dataset, case.backbone)
    available = {"data": data, "frozen": frozen}
    options |= {need: available[need] for need in method.needs}
    return repair.fit(exposure, data.y, masks["train"], masks["val"], **options)


# Records of a case --------------------------------------------------------------------------------


def _count_evidence(models: CaseModels, tell: Tell) -> CaseModels:
    """The case with counts of how its methods use the evidence."""
    tell("use of evidence")
    clock, test = Clock(models.device), models.masks["test"]
    errors, use = models.findings.reachable_errors, dict[str, list[Numbers]]()
    with clock("evidence"):
        for name, fitted in models.repairs.items():
            fixed = errors_fixed(models.predicted[name], models.data.y, errors, test)
            inside = shifts_inside(fitted, models.exposure, test)
            use[name] = [a | b for a, b in zip(fixed, inside, strict=True)]
    seconds = {**models.seconds, **clock.shares(len(models.case.splits))}
    seconds["total"] += seconds["evidence"]
    return replace(models, use=use, seconds=seconds)


def _model_files(models: CaseModels, member: int) -> dict[str, bytes]:
    """One split's models as files; models that cannot be saved are left out."""
    frozen, files = models.frozen, dict[str, bytes]()
    values: dict[str, Any] = {
        FROZEN: frozen.member(member) if isinstance(frozen, Frozen) else frozen
    }
    values |= {name: fitted.member(member) for name, fitted in models.repairs.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in values.items():
            with suppress(InputError):
                model.save(Path(folder) / name)
                files[name] = (Path(folder) / name).read_bytes()
    return files if FROZEN in files else {}


def make_records(models: CaseModels) -> list[RunRecord]:
    """What is stored of a case, one record per split."""
    case, settings, data, frozen = models.case, models.settings, models.data, models.frozen
    keys = records.stage_keys(settings.protocol, case.dataset, case.backbone)
    stages = [FROZEN, *(name for name in case.methods if name in keys)]
    nothing: list[Numbers] = [{}] * len(case.splits)
    size = sum(value[0].numel() for value in frozen.parameters.values())
    sizes = {"parameters": size, "terms": models.exposure.num_terms}
    accuracies = _score(frozen, frozen.logits.argmax(2), models, nothing, sizes)
    methods = {}
    for name, fitted in models.repairs.items():
        extra = further_scores(fitted, models.exposure, data.y, models.masks["test"])
        extra = [a | b for a, b in zip(extra, models.use.get(name, nothing), strict=True)]
        sizes = {"parameters": int(fitted.num_parameters)}
        methods[name] = _score(fitted, models.predicted[name], models, extra, sizes)
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
                **{part: int(mask[:, member].sum()) for part, mask in models.masks.items()},
            },
            frozen=accuracies[member],
            oracle=models.findings.summaries[member],
            methods={name: rows[member] for name, rows in methods.items()},
            seconds=dict(models.seconds),
            members=len(case.splits),
            stack=list(case.splits),
            environment=describe_environment(models.device),
            models=_model_files(models, member) if split in settings.kept_splits else {},
        )
        for member, split in enumerate(case.splits)
    ]


def _score(
    model: Any, predicted: Tensor, case: CaseModels, extra: list[Numbers], sizes: Numbers
) -> list[Numbers]:
    """One table per split: the accuracy of ``predicted`` [S, N] by part (None where the part is
    empty), ``further`` scores, training statistics and sizes."""
    rows = []
    for member, right in enumerate(predicted.cpu() == case.data.y.cpu()):
        row: Numbers = {}
        for part, masks in case.masks.items():
            mask = masks[:, member].cpu()
            row[part] = int(right[mask].sum()) / int(mask.sum()) if bool(mask.any()) else None
        statistics = {name: getattr(model, name)[member].item() for name in STATISTICS}
        rows.append(row | extra[member] | statistics | sizes)
    return rows


def describe_environment(device: torch.device) -> dict[str, str]:
    """What a result was made with: versions, device and source revision."""
    packages = ("torch", "torch-geometric", "numpy", "numba", "highspy")
    name = f"{device.type}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    versions = dict.fromkeys(packages, "unknown")
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "gnn-repair": gnn_repair.__version__,
        **source_revision(),
        "python": platform.python_version(),
        **versions,
        "system": f"{platform.system()} {platform.machine()}",
        "device": name,
    }


@functools.cache
def source_revision() -> dict[str, str]:
    """The git revision of the package's checkout, and whether its files differ from it."""
    folder = Path(gnn_repair.__file__).parent
    if not (folder.parent / ".git").exists():
        return {"revision": "released", "source": "clean"}
    options: dict[str, Any] = {"cwd": folder, "text": True, "timeout": 10}
    options["stderr"] = subprocess.DEVNULL
    try:
        revision = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], **options)
        changed = subprocess.check_output(["git", "status", "--porcelain", "--", "."], **options)
    except (OSError, subprocess.SubprocessError):
        return {"revision": "unknown", "source": "unknown"}
    count = len(changed.strip().splitlines())
    state = f"{count} files differ from the revision" if count else "clean"
    return {"revision": revision.strip(), "source": state}


# Checks before the first case, so that a bad setting does not fail every case ---------------------


def check_settings(
    datasets: Grid,
    backbones: Grid,
    cases: Sequence[Case],
    protocol: Protocol,
    device: str = "auto",
    root: str | Path | None = None,
    elsewhere: bool = False,
    kept_splits: frozenset[int] = frozenset(),
) -> Settings:
    """What all cases share, once it has been checked.

    The devices and files of another machine (``elsewhere``) cannot be checked.
    """
    if not elsewhere:
        choose_device(device)
    elif device != "auto":
        parse_device(device)
    load: Any
    if isinstance(datasets, Mapping):
        splits = {name: _count_splits(name, data) for name, data in datasets.items()}
        load = dict(datasets).__getitem__
    else:
        specs = [find_dataset(name) for name in datasets]
        if not elsewhere and any(spec.source is not None for spec in specs):
            data_root(root)
        splits = dict.fromkeys(datasets, SPLITS)
        load = functools.partial(_load, root, protocol.data.draw)
    architectures = _check_backbones(backbones, protocol)
    for case in cases:
        last = splits[case.dataset] - 1
        if max(case.splits) > last:
            split = next(split for split in case.splits if split > last)
            raise SplitError(f"split {split} does not exist; {case.dataset} has splits 0 to {last}")
        retraining = [n for n in case.methods if n in METHODS and "frozen" in METHODS[n].needs]
        if retraining and isinstance(architectures.get(case.backbone), OwnNetwork):
            raise InputError(
                f"{retraining[0]} trains the backbone again, which a study does with a Backbone "
                f"alone; leave it out of the methods for {case.backbone!r}, which is an OwnNetwork"
            )
    return Settings(protocol, load, architectures, device, kept_splits)


def _count_splits(name: str, data: Any) -> int:
    """The number of splits of the user's own graph, which is checked."""
    try:
        check_data(data)
    except InputError as error:
        raise type(error)(f"dataset {name!r} cannot be used: {error}") from error
    return int(as_splits(data.train_mask).shape[1])


def _check_backbones(backbones: Grid, protocol: Protocol) -> Mapping[str, Architecture]:
    if not isinstance(backbones, Mapping):
        backbones = {name: type(find_backbone(name)) for name in backbones}
    architectures = {name: _as_architecture(name, value) for name, value in backbones.items()}
    for name, architecture in architectures.items():
        try:
            build_backbone(architecture, protocol.backbones)
        except TypeError as error:
            raise InputError(f"backbone {name!r} cannot be built: {error}") from error
    return architectures


def _as_architecture(name: str, value: Any) -> Architecture:
    is_class, is_model = isinstance(value, type), isinstance(value, nn.Module)
    if isinstance(value, Backbone | OwnNetwork) or (is_class and issubclass(value, Backbone)):
        return value
    if issubclass(value, nn.Module) if is_class else callable(value) and not is_model:
        return OwnNetwork(value, title=getattr(value, "__name__", name))
    kind = f"the class {value.__name__}" if is_class else type(value).__name__
    remedy = (
        "a study trains its models itself; give its class, say how it is built with an OwnNetwork "
        "(docs/howto/backbone.md), or look at a trained model with gnn_repair.expose"
        if is_model
        else "give a Backbone, an OwnNetwork, or what builds a network from the numbers of "
        "features and classes"
    )
    raise InputError(f"backbone {name!r} is {kind}, which is no Backbone; {remedy}")


@functools.lru_cache(maxsize=1)
def _load(root: str | Path | None, draw: Any, name: str) -> Data:
    """A dataset by name; the last one is cached, because cases of a dataset follow each other."""
    return load_dataset(name, root, draw=draw)


# A single run with its models, to look at its nodes -----------------------------------------------
#
# A store keeps the models of some runs; of the others it has only numbers. Splits trained together
# share one dropout stream, so such a run is trained again in the same stack with the same seeds. On
# the same device that gives the same model; where it does not, ``provenance`` says so.


@dataclass(frozen=True, eq=False, kw_only=True)
class Rerun(CaseModels):
    """One split of a case, with its models."""

    split: int
    stored_record: RunRecord | None = None
    """The record it repeats, if there is one."""
    stored_models: tuple[str, ...] = ()
    """Models that were read from the store: ``frozen`` and methods."""

    @property
    def member(self) -> int:
        """The split's position among those trained together."""
        return self.case.splits.index(self.split)

    @property
    def record(self) -> RunRecord:
        """What the study would store of it."""
        return make_records(self)[self.member]

    def mask(self, part: str) -> Tensor:
        """[N]: the split's ``train``, ``val`` or ``test`` nodes."""
        return self.masks[part][:, self.member].cpu()

    def select_split(self, split: int) -> Rerun | None:
        """Another split of those trained together; None where it is not among them."""
        if split not in self.case.splits:
            return None
        return replace(self, split=split, stored_record=None, stored_models=())

    def provenance(self) -> str:
        """Which run this is, in a sentence for readers."""
        stored, loaded = self.stored_record, self.stored_models
        splits = stack_of(None, stored) if stored and loaded else self.case.splits
        consecutive = list(splits) == list(range(splits[0], splits[-1] + 1))
        numbers = f"{splits[0]} to {splits[-1]}" if consecutive else ", ".join(map(str, splits))
        stack = "trained alone" if len(splits) == 1 else f"trained with splits {numbers}"
        run = f"split {self.split}, {stack}"
        if stored is None:
            return f"{run}; made for this page"
        change = _describe_change(stored, self.record)
        if change:
            return f"{run}; made again for this page, where {change}: the nodes are of this model"
        if not loaded:
            return f"{run}; the stored run, made again with the same accuracies"
        anew = [METHODS[name].title.lower() for name in self.repairs if name not in loaded]
        more = f"; {', '.join(anew)} fitted for this page" if anew else ""
        return f"{run}; the stored models{more}"


def _describe_change(stored: RunRecord, record: RunRecord) -> str:
    """The first test accuracy that differs; empty where none does."""
    for name in (FROZEN, *(name for name in record.methods if name in stored.methods)):
        old, new = stored.number(name, "test"), record.number(name, "test")
        if abs(new - old) > 0:  # false where either is NaN
            title = "the frozen model" if name == FROZEN else METHODS[name].title.lower()
            share = f"{100 * new:.1f} % of the test nodes"
            return f"{title} is right about {share} (stored {100 * old:.1f} %)"
    return ""


def rerun(
    dataset: str,
    backbone: str,
    split: int = 0,
    *,
    source: ResultsSource | None = None,
    protocol: Protocol = PAPER,
    methods: Sequence[str] | None = None,
    device: str = "auto",
    root: str | Path | None = None,
    backbones: Mapping[str, Architecture] | None = None,
    datasets: Mapping[str, Data] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Rerun:
    """One run with its models: loaded from the store, else trained again in the same stack.

    Args:
        dataset: its name, like ``backbone``.
        source: where the run is stored; without it the split is trained alone.
        methods: repairs to show; unless named, those of the stored run or the paper's four.
        backbones: a mapping that has the backbone, if it is the user's own.
        datasets: a mapping that has the graph, if it is the user's own.
        tell: called with each stage.
    """
    (run,) = records.all_runs([dataset], [backbone], [split])
    stored = None if source is None else source.get(protocol.digest, run)
    kept = {} if stored is None or source is None else source.models(protocol.digest, run)
    files = {name: path for name, path in kept.items() if _is_intact(path)}
    files = files if FROZEN in files else {}
    if methods is None:
        paper = [name for name, method in METHODS.items() if method.from_paper]
        methods = paper if stored is None else [name for name in METHODS if name in stored.methods]
    names = records.check_methods(methods)
    splits = (split,) if stored is None or files else stack_of(source, stored)
    case = Case(dataset, backbone, splits, tuple(name for name in names if name != ORACLE))
    models = [backbone] if backbones is None else {backbone: backbones[backbone]}
    graphs = [dataset] if datasets is None else {dataset: datasets[dataset]}
    if files and device == "auto":
        device = "cpu"  # stored models need no training
    settings = check_settings(graphs, models, [case], protocol, device, root)
    last = ""

    def tell_stage(text: str) -> None:
        """Tell each stage once, not every epoch."""
        nonlocal last
        stage = text.partition(", epoch")[0]
        if stage != last:
            last = stage
            tell(stage)

    result = train_case(settings, case, tell_stage, files)
    return Rerun(**vars(result), split=split, stored_record=stored, stored_models=tuple(files))


def _is_intact(path: Path) -> bool:
    """Whether a kept model can be read; a damaged one is said and made again, as a missing one."""
    try:
        load_tensors(path, None)
    except FileFormatError:
        records.leave_out(path, "it is damaged or cannot be read")
        return False
    return True


def stack_of(source: ResultsSource | None, record: RunRecord) -> tuple[int, ...]:
    """The splits that were trained with a stored run.

    Earlier records have only their number; if the case has that many stored splits, it is these.
    """
    if record.split in record.stack:
        return tuple(sorted(record.stack))
    if source is None or record.members == 1:
        return (record.split,)
    case, runs = (record.dataset, record.backbone), source.runs(record.protocol)
    splits = [run.split for run in runs if (run.dataset, run.backbone) == case]
    return tuple(sorted(splits)) if len(splits) == record.members else (record.split,)
