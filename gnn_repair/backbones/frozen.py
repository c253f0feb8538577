"""A trained backbone, frozen: the value that exposure reads, and its file."""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.backbones.base import Backbone, Readout
from gnn_repair.backbones.graph import Features, Graph, State
from gnn_repair.budget import check_whole
from gnn_repair.checks import as_member, as_splits, num_classes
from gnn_repair.errors import FileFormatError, InputError, SplitError
from gnn_repair.files import (
    REAL,
    check_fields,
    check_tensor,
    contents_of,
    load_tensors,
    save_tensors,
)
from gnn_repair.published import count_of
from gnn_repair.training import Budget, FrozenDict, stack_parameters, unstack_parameters

# What must hold of a trained model's file, whatever the model: shared with fitted repairs ---------

HEADER = {
    "backbone": str, "shape": dict, "budget": dict, "seed": int, "data": str, "splits": list,
}  # fmt: skip
PREFIX = "parameters/"
STATISTICS = {
    "best_epoch": (1, (torch.int64,)),
    "epochs_run": (1, (torch.int64,)),
    "diverged": (1, (torch.bool,)),
}
"""Axes and types of what training says about itself."""
RESULTS = {"logits": (3, REAL), **STATISTICS}


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    chosen = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors[name] for name in chosen}


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The same, floats among them finite."""
    values = under(tensors, prefix)
    for name, value in values.items():
        check_tensor(name[:80], value, value.dim(), (*REAL, torch.int64))
    return values


def check_names(tensors: Mapping[str, Tensor], named: Mapping[str, Any], *prefixes: str) -> None:
    """Raise where a named tensor is missing, or one has neither a known name nor prefix."""
    if missing := sorted(named.keys() - tensors.keys()):
        raise InputError(f"it is incomplete: it lacks {missing[0]}")
    others = sorted(name for name in tensors.keys() - named.keys() if not name.startswith(prefixes))
    if others:
        raise InputError(f"it holds {others[0][:80]!r}, which nothing here reads")


def parameters_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A frozen model's parameters by their own names."""
    check_names(tensors, RESULTS, PREFIX)
    return below(tensors, PREFIX)


def check_splits(splits: list[Any], available: int) -> tuple[int, ...]:
    """The split behind each member, all of them among the data's."""
    if not splits or not all(type(k) is int and 0 <= k < available for k in splits):
        raise InputError(f"its splits are not numbers in 0..{available - 1}")
    return tuple(splits)


def check_statistics(tensors: Mapping[str, Tensor], members: int, epochs: int) -> None:
    """0 ≤ best_epoch ≤ epochs_run ≤ the budget's, for every member."""
    for name, (dims, dtypes) in STATISTICS.items():
        check_tensor(name, tensors[name], dims, dtypes)
        count = len(tensors[name])
        if count != members:
            raise InputError(f"{name} has {count} members instead of {members}")
    best, run = tensors["best_epoch"], tensors["epochs_run"]
    if not bool(((best >= 0) & (best <= run) & (run <= epochs)).all()):
        raise InputError(f"best_epoch and epochs_run must lie in 0..{epochs}, in this order")


# The value ----------------------------------------------------------------------------------------

KIND = "gnn-repair backbone"
BEFORE_CHOICES = {"self_loops": "listed", "zero_stream_biases": False}
"""What files hold that were written before these could be chosen."""


@dataclass(frozen=True, eq=False)
class Frozen:
    """S trained members of one backbone on one dataset, one per split. Nothing in it changes."""

    backbone: Backbone
    data: Data
    splits: tuple[int, ...]
    """The split behind each member."""
    seed: int
    budget: Budget
    parameters: Mapping[str, Tensor]
    """[S, …] by the PyG network's names; matrices input × output."""
    logits: Tensor
    """z⁰, [S, N, C]."""
    best_epoch: Tensor
    """[S]: the epoch whose state was kept."""
    epochs_run: Tensor
    """[S]."""
    diverged: Tensor
    """[S] bool: training ended because the loss was not finite."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenDict(self.parameters))

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what was derived from them is derived again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        members, nodes, classes = self.logits.shape
        size = sum(value[0].numel() for value in self.parameters.values())
        lines = [
            f"Frozen {self.backbone.title} on {self.data.get('name') or 'a graph'}: "
            f"{count_of(members, 'member')} "
            f"(splits {number_list(self.splits)}), {count_of(nodes, 'node')}, {classes} classes, "
            f"{count_of(size, 'parameter')} each",
            f"  epochs kept: {number_list(self.best_epoch.tolist())}",
        ]
        wild = self.diverged.nonzero().view(-1).tolist()
        return "\n".join(
            lines + [f"  diverged: splits {number_list(self.splits[s] for s in wild)}"] * bool(wild)
        )

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""
        return self.logits.device

    @property
    def num_members(self) -> int:
        """S."""
        return len(self.splits)

    @cached_property
    def graph(self) -> Graph:
        """The operators the backbone works with."""
        return Graph(self.data, self.device)

    @cached_property
    @torch.no_grad()
    def node_state(self) -> State:
        """h in the backbones' own layout, [N, S, d], or the shared features."""
        trunk = self.backbone.trunk(self.parameters, self.graph)
        return self.backbone.state(self.parameters, self.graph, trunk, 0.0)

    @property
    def state(self) -> Tensor:
        """h, the input of the final aggregation: [S, N, d], or [1, N, F] where members share it."""
        state = self.node_state
        return state.dense.unsqueeze(0) if isinstance(state, Features) else state.transpose(0, 1)

    @cached_property
    @torch.no_grad()
    def readout(self) -> Readout:
        """The affine end of the network, with the frozen coefficients."""
        return self.backbone.readout(self.parameters, self.graph, self.node_state, 0.0)

    @cached_property
    @torch.no_grad()
    def embedding(self) -> Tensor:
        """r, what the classifier reads: [S, N, k]."""
        return self.readout.embedding(self.node_state).transpose(0, 1)

    def member(self, index: int) -> Frozen:
        """One member alone, counted from the end where negative."""
        index = as_member(index, self.num_members)
        pick = slice(index, index + 1)
        return replace(
            self,
            splits=self.splits[pick],
            parameters={name: value[pick] for name, value in self.parameters.items()},
            **{name: getattr(self, name)[pick] for name in RESULTS},
        )

    def network(self, member: int = 0) -> nn.Module:
        """One member as an ordinary PyG network in evaluation mode."""
        network = self.backbone.network(self.data.x.shape[1], self.logits.shape[2])
        network = network.to(self.device, self.logits.dtype)
        member = as_member(member, len(self.splits))
        network.load_state_dict(unstack_parameters(self.parameters, member))
        return network.eval()

    def accuracy(self, mask: Tensor) -> Tensor:
        """Share of correct predictions of every member, [S].

        Args:
            mask: [N, splits] such as ``data.test_mask``, [N, members], or one [N] for all members.
        """
        columns = as_splits(mask)
        every, nodes = as_splits(self.data.train_mask).shape[1], len(self.data.y)
        known = (1, len(self.splits), every)
        if mask.dtype != torch.bool or len(mask) != nodes or columns.shape[1] not in known:
            raise SplitError(
                f"the mask is {mask.dtype} of shape {list(mask.shape)}; give bool of shape "
                f"[{nodes}], [{nodes}, {every}] as data's masks have, or a column for each of the "
                f"{count_of(len(self.splits), 'member')}"
            )
        if columns.shape[1] == every > 1:
            columns = columns[:, list(self.splits)]
        if not bool(columns.any(0).all()):
            raise SplitError("the mask of a member is empty; give it at least one node")
        chosen = columns.to(self.device)
        right = self.logits.argmax(2).t() == self.data.y.to(self.device).unsqueeze(1)
        return (right & chosen).sum(0) / chosen.sum(0)

    def save(self, path: str | Path) -> None:
        """Write parameters and logits as one safetensors file."""
        tensors = {f"parameters/{name}": value for name, value in self.parameters.items()}
        tensors |= {name: getattr(self, name) for name in RESULTS}
        save_tensors(path, KIND, {**self._identity(), "splits": self.splits}, tensors)

    @staticmethod
    def load(path: str | Path, data: Data, like: Backbone, budget: Budget, seed: int) -> Frozen:
        """Read what :meth:`save` wrote; a file of another dataset or protocol is rejected."""
        _check_given(data, like, budget, seed)
        header, tensors = load_tensors(path, KIND)
        with contents_of(path):
            check_fields(header, HEADER, "header")
            splits = check_splits(header.pop("splits"), as_splits(data.train_mask).shape[1])
            parameters = parameters_of(tensors)
            for name, (dims, dtypes) in RESULTS.items():
                check_tensor(name, tensors[name], dims, dtypes)
        results = {name: tensors[name] for name in RESULTS}
        frozen = Frozen(like, data, splits, seed, budget, parameters, **results)
        header["shape"] = {**BEFORE_CHOICES, **header["shape"]}
        for name, value in frozen._identity().items():
            if header[name] != value:
                stored = reprlib.repr(header[name])
                raise FileFormatError(
                    f"{path} was made with another {name}: {stored} instead of {value}"
                )
        with contents_of(path):
            check_statistics(results, len(splits), budget.epochs)
            _check_parameters(frozen)
        return frozen

    def _identity(self) -> dict[str, Any]:
        """What a file must agree with to be this model."""
        return {
            "backbone": type(self.backbone).__name__,
            "shape": asdict(self.backbone.shape),
            "budget": asdict(self.budget),
            "seed": self.seed,
            "data": fingerprint(self.data),
        }


def number_list(numbers: Iterable[int]) -> str:
    """Such as ``0, 3, 4``."""
    return ", ".join(str(number) for number in numbers)


def _check_given(data: Any, like: Any, budget: Any, seed: Any) -> None:
    """What a file is compared with is a graph with splits, a backbone and its training."""
    if not isinstance(data, Data):
        raise InputError(f"data is {type(data).__name__}; give the PyG Data it was trained on")
    for name in ("x", "edge_index", "y", "train_mask"):
        if not isinstance(data.get(name), Tensor):
            raise InputError(f"data has no tensor {name}; give the Data it was trained on")
    if not isinstance(like, Backbone):
        raise InputError(f"like is {like!r:.60}; give an instance such as BACKBONES['gcn']()")
    if not isinstance(budget, Budget):
        raise InputError(f"Frozen.load: budget is {budget!r:.60}; give a Budget")
    check_whole("Frozen.load", "seed", seed, 0)


def _check_parameters(frozen: Frozen) -> None:
    nodes, classes = frozen.data.x.shape[0], num_classes(frozen.data)
    expected: tuple[int, ...] = (frozen.num_members, nodes, classes)
    if frozen.logits.shape != expected:
        raise InputError(f"logits has shape {list(frozen.logits.shape)}, not {list(expected)}")
    # Only shapes are needed, so nothing is allocated.
    with torch.device("meta"):
        network = frozen.backbone.network(frozen.data.x.shape[1], classes)
    shapes = {k: tuple(v.shape) for k, v in stack_parameters(network, frozen.num_members).items()}
    if shapes.keys() != frozen.parameters.keys():
        odd = sorted(shapes.keys() ^ frozen.parameters.keys())[0]
        raise InputError(f"parameter {odd[:80]} is missing or unknown")
    for name, shape in shapes.items():
        parameter = frozen.parameters[name]
        if parameter.shape != shape or parameter.dtype != frozen.logits.dtype:
            raise InputError(
                f"parameter {name} is {parameter.dtype} of shape {list(parameter.shape)} instead "
                f"of {frozen.logits.dtype} of shape {list(shape)}"
            )
    if not agree(frozen.readout.logits(frozen.node_state).transpose(0, 1), frozen.logits):
        raise InputError("its parameters do not give its logits")


def agree(again: Tensor, kept: Tensor) -> bool:
    """Whether a model gives its file's logits."""
    # Another machine's float32 may differ by 1e-5 or so; other parameters differ by far more.
    return bool((((again - kept) / kept.abs().clamp(min=1)).abs() < 1e-3).all())


def fingerprint(data: Data) -> str:
    """A digest of the graph, its features and labels: the same data, the same string."""
    digest = hashlib.sha256()
    for tensor in (data.x, data.edge_index, data.y):
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
