"""One case from data to records: train its splits as one, expose, ask the oracle, repair.

What can be known before the first case is checked then; and one run again, to look at its nodes.
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
    BACKBONES,
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
from gnn_repair.errors import InputError, SplitError
from gnn_repair.exposure import Exposure, expose
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
class CaseModels:
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
    """One record per split; splits are trained as one, of a user's network one after the other."""
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
) -> CaseModels:
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
    return chosen(Shape(**{own.name: getattr(settings, own.name) for own in fields(Shape)}))


def _frozen(
    settings: Settings, case: Case, data: Data, device: torch.device, tell: Tell, file: Path | None
) -> Frozen | FrozenNetwork:
    """The trained model, from its file where there is one."""
    if case.backbone not in settings.backbones:
        find_backbone(case.backbone)
        raise InputError(f"backbone {case.backbone!r} was not given to this study")
    sizes, chosen = settings.protocol.backbones, settings.backbones[case.backbone]
    model = chosen if isinstance(chosen, OwnNetwork) else build_backbone(chosen, sizes)
    budget = sizes.budget(model.budget)
    options: dict[str, Any] = {"device": device, "seed": sizes.seed, "budget": budget}
    if isinstance(model, OwnNetwork):
        if file is not None:
            return load_network(file, model, data)
        (split,) = case.splits
        on_progress = _teller(tell, f"training split {split}")
        return train_own(model, data, split, on_progress=on_progress, **options)
    if file is not None:
        return Frozen.load(file, data, model, budget, sizes.seed)
    return train_backbone(
        model, data, case.splits, on_progress=_teller(tell, "training"), **options
    )


def _teller(tell: Tell, what: str) -> Callable[[Progress], None]:
    return lambda progress: tell(f"{what}, epoch {progress.epoch}")


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


def _with_use(worked: CaseModels, tell: Tell) -> CaseModels:
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


def _files(worked: CaseModels, member: int) -> dict[str, bytes]:
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


def records_of(worked: CaseModels) -> list[RunRecord]:
    """What is stored of a case, one record per split."""
    case, settings, data, frozen = worked.case, worked.settings, worked.data, worked.frozen
    keys = records.stage_keys(settings.protocol, case.dataset, case.backbone)
    stages = [FROZEN, *(name for name in case.methods if name in keys)]
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
    trained: Any, predicted: Tensor, worked: CaseModels, more: list[Numbers], sizes: Numbers
) -> list[Numbers]:
    """Shares of correct predictions [S, N] by part, None where it is empty; how they were found."""
    rows = []
    for member, right in enumerate(predicted.cpu() == worked.data.y.cpu()):
        chosen = {part: mask[:, member].cpu() for part, mask in worked.masks.items()}
        row: Numbers = {
            part: int(right[mask].sum()) / int(mask.sum()) if bool(mask.any()) else None
            for part, mask in chosen.items()
        }
        row |= more[member]
        row |= {name: getattr(trained, name)[member].item() for name in STATISTICS}
        rows.append(row | sizes)
    return rows


def environment(device: torch.device) -> dict[str, str]:
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
        **source(),
        "python": platform.python_version(),
        **versions,
        "system": f"{platform.system()} {platform.machine()}",
        "device": name,
    }


@functools.cache
def source() -> dict[str, str]:
    """The git revision of the package's own checkout, and whether its files are that revision's."""
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


# What can be known before the first case is refused then, instead of failing every case -----------


def checked_settings(
    datasets: Grid,
    backbones: Grid,
    cases: Sequence[Case],
    protocol: Protocol,
    device: str = "auto",
    root: str | Path | None = None,
    elsewhere: bool = False,
    kept_splits: frozenset[int] = frozenset(),
) -> Settings:
    """What all cases share, after everything known has been checked.

    Of the devices and files of another machine (``elsewhere``) nothing is known.
    """
    if not elsewhere:
        choose_device(device)
    elif device != "auto":
        parse_device(device)
    load: Any
    if isinstance(datasets, Mapping):
        splits = {name: _splits_of(name, data) for name, data in datasets.items()}
        load = dict(datasets).__getitem__
    else:
        named = [find_dataset(name) for name in datasets]
        if not elsewhere and any(spec.source is not None for spec in named):
            data_root(root)
        splits = dict.fromkeys(datasets, SPLITS)
        load = functools.partial(_load, root, protocol.data.draw)
    chosen = _architectures(backbones, protocol)
    for case in cases:
        last = splits[case.dataset] - 1
        for split in case.splits:
            if split > last:
                raise SplitError(
                    f"split {split} does not exist; {case.dataset} has splits 0 to {last}"
                )
        known = [name for name in case.methods if name in METHODS]
        again = [name for name in known if "frozen" in METHODS[name].needs]
        if again and isinstance(chosen.get(case.backbone), OwnNetwork):
            raise InputError(
                f"{again[0]} trains the backbone again, which a study does with a Backbone alone; "
                f"leave it out of the methods for {case.backbone!r}, which is an OwnNetwork"
            )
    return Settings(protocol, load, chosen, device, kept_splits)


def _splits_of(name: str, data: Any) -> int:
    """Check a graph of the user's own; how many splits it has."""
    try:
        check_data(data)
    except InputError as error:
        raise type(error)(f"dataset {name!r} cannot be used: {error}") from error
    return int(as_splits(data.train_mask).shape[1])


def _architectures(backbones: Grid, protocol: Protocol) -> Mapping[str, Architecture]:
    if isinstance(backbones, Mapping):
        chosen = {name: _architecture(name, given) for name, given in backbones.items()}
    else:
        for name in backbones:
            find_backbone(name)
        chosen = {name: BACKBONES[name] for name in backbones}
    for name, given in chosen.items():
        if isinstance(given, OwnNetwork):
            continue
        try:
            build_backbone(given, protocol.backbones)
        except TypeError as error:
            raise InputError(f"backbone {name!r} cannot be built: {error}") from error
    return chosen


def _architecture(name: str, given: Any) -> Architecture:
    if isinstance(given, Backbone | OwnNetwork) or (
        isinstance(given, type) and issubclass(given, Backbone)
    ):
        return given
    builds = issubclass(given, nn.Module) if isinstance(given, type) else callable(given)
    if builds and not isinstance(given, nn.Module):
        return OwnNetwork(given, title=getattr(given, "__name__", name))
    found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    remedy = (
        "a study trains its models itself; give its class, say how it is built with an OwnNetwork "
        "(docs/howto/backbone.md), or look at a trained model with gnn_repair.expose"
        if isinstance(given, nn.Module)
        else "give a Backbone, an OwnNetwork, or what builds a network from the numbers of "
        "features and classes"
    )
    raise InputError(f"backbone {name!r} is {found}, which is no Backbone; {remedy}")


@functools.lru_cache(maxsize=1)
def _load(root: str | Path | None, draw: Any, name: str) -> Data:
    """A dataset by name; the last one is kept, because cases of a dataset follow each other."""
    return load_dataset(name, root, draw=draw)


# One run again, with its models at hand, to look at its nodes -------------------------------------
#
# A store keeps the models of some runs beside their records. Of the others it holds numbers alone.
# Splits trained together share their dropout's stream, so such a run is made again as it was made:
# in the same stack, with the protocol's seeds. On the same device it is then the same model, and
# where it is not, it says so.


@dataclass(frozen=True, eq=False, kw_only=True)
class Rerun(CaseModels):
    """A run with its models at hand: one split of a worked case."""

    split: int
    stored: RunRecord | None = None
    """The record it repeats, if there is one."""
    kept: tuple[str, ...] = ()
    """Models that were read from the store: ``frozen`` and methods."""

    @property
    def member(self) -> int:
        """The split's place among those trained together."""
        return self.case.splits.index(self.split)

    @property
    def record(self) -> RunRecord:
        """What the study would store of it."""
        return records_of(self)[self.member]

    def mask(self, part: str) -> Tensor:
        """[N]: the split's ``train``, ``val`` or ``test`` nodes."""
        return self.masks[part][:, self.member].cpu()

    def beside(self, split: int) -> Rerun | None:
        """Another split of those trained together; None where it is not among them."""
        if split not in self.case.splits:
            return None
        return replace(self, split=split, stored=None, kept=())

    def provenance(self) -> str:
        """Which run this is, in a sentence for readers."""
        splits = stack_of(None, self.stored) if self.stored and self.kept else self.case.splits
        whole = list(splits) == list(range(splits[0], splits[-1] + 1))
        listed = f"{splits[0]} to {splits[-1]}" if whole else ", ".join(map(str, splits))
        alone = "trained alone" if len(splits) == 1 else f"trained with splits {listed}"
        what = f"split {self.split}, {alone}"
        if self.stored is None:
            return f"{what}; made for this page"
        changed = _changed(self.stored, self.record)
        if self.kept and not changed:
            anew = [METHODS[name].title.lower() for name in self.repairs if name not in self.kept]
            more = f"; {', '.join(anew)} fitted for this page" if anew else ""
            return f"{what}; the stored models{more}"
        if not changed:
            return f"{what}; the stored run, made again with the same accuracies"
        return f"{what}; made again for this page, where {changed}: the nodes are of this model"


def _changed(stored: RunRecord, made: RunRecord) -> str:
    """How the first test accuracy that differs does; empty where none does."""
    pairs = [("the frozen model", stored.frozen, made.frozen)]
    pairs += [
        (METHODS[name].title.lower(), stored.methods[name], scores)
        for name, scores in made.methods.items()
        if name in stored.methods
    ]
    for name, before, now in pairs:
        old, new = before.get("test"), now.get("test")
        if old != new and old is not None and new is not None:
            share = f"{100 * new:.1f} % of the test nodes"
            return f"{name} is right about {share} (stored {100 * old:.1f} %)"
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
    """One run with its models: those the store kept, else made again with its stack.

    Args:
        dataset: its name, like ``backbone``.
        source: where the run is stored; without it the split is trained alone.
        methods: repairs to show; those of the stored run, or the paper's four, unless named.
        backbones: where the backbone is the user's own, a mapping that has it.
        datasets: where the graph is the user's own, likewise.
        tell: told what is being done.
    """
    (run,) = records.all_runs([dataset], [backbone], [split])
    stored = None if source is None else source.get(protocol.digest, run)
    files = {} if stored is None or source is None else source.models(protocol.digest, run)
    files = files if FROZEN in files else {}
    if methods is None:
        usual = [name for name, method in METHODS.items() if method.from_paper]
        methods = usual if stored is None else [name for name in METHODS if name in stored.methods]
    chosen = records.chosen_methods(methods)
    splits = (split,) if stored is None or files else stack_of(source, stored)
    case = Case(dataset, backbone, splits, tuple(name for name in chosen if name != ORACLE))
    models = [backbone] if backbones is None else {backbone: backbones[backbone]}
    graphs = [dataset] if datasets is None else {dataset: datasets[dataset]}
    # What was kept is read on the CPU, whatever trained it.
    place = "cpu" if files and device == "auto" else device
    settings = checked_settings(graphs, models, [case], protocol, place, root)
    last = ""

    def say(text: str) -> None:
        """Each stage once, not every epoch."""
        nonlocal last
        stage = text.partition(", epoch")[0]
        if stage != last:
            last = stage
            tell(stage)

    worked = work_case(settings, case, say, files)
    return Rerun(**vars(worked), split=split, stored=stored, kept=tuple(files))


def stack_of(source: ResultsSource | None, record: RunRecord) -> tuple[int, ...]:
    """The splits that were trained with a stored run.

    Earlier records say only how many; where that is all of the stored ones, these it must be.
    """
    if record.split in record.stack:
        return tuple(sorted(record.stack))
    if source is None or record.members == 1:
        return (record.split,)
    case = (record.dataset, record.backbone)
    runs = source.runs(record.protocol)
    others = [run.split for run in runs if (run.dataset, run.backbone) == case]
    return tuple(sorted(others)) if len(others) == record.members else (record.split,)
