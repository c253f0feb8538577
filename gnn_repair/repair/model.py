"""A model together with its repair, to be used in the model's place."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data.data import BaseData

from gnn_repair.backbones.frozen import STATISTICS, under
from gnn_repair.errors import GnnRepairError, InputError, kind_of
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.calling import (
    TWO_CLASSES,
    Forward,
    arguments_as_typed_data,
    is_typed,
    read_output,
    shallow_copy,
)
from gnn_repair.exposure.from_model import ExposurePlan
from gnn_repair.exposure.heads.logit_form import BEFORE_SOFTMAX, as_model_gives
from gnn_repair.exposure.pieces import recipient_column
from gnn_repair.exposure.state import dense_parts, fingerprint_of_model
from gnn_repair.exposure.value import MARK
from gnn_repair.files import contents_of, load_tensors, save_tensors
from gnn_repair.repair.base import FittedRepair, fitted_of

KIND = "gnn-repair repaired model"
HOPS = ("paths", "last")
LAZY = "lazy"
NORMALISED = 1e-5
"""How far from 1 the probabilities of a row may sum up where a model gives their logarithms: a
hundred roundings of float32."""


def repaired(
    model: nn.Module,
    fitted: FittedRepair[Any],
    *,
    forward: Forward | None = None,
    node_type: str | None = None,
) -> RepairedModel:
    """The model with its repair, as a module that is called as the model is.

    Args:
        model: the trained model that the repair was fitted on, left as it is.
        fitted: its repair, of one member.
        forward: what ``expose`` was given under this name, if anything; the module is then called
            with the graph, and gives the logits that ``forward(model, data)`` stands for. A repair
            that was fitted in this process brings it along.
        node_type: in graphs of several node types the one that is classified; the one that the
            repair was fitted on unless given.
    """
    return RepairedModel(model, fitted, node_type, forward)


class RepairedModel(nn.Module):
    """A frozen model and its repair: ``forward`` takes what the model takes.

    It gives what the model gives (logits, or a dict or tuple that holds them) with repaired logits
    in the model's precision, on the model's device, for any graph. The
    first call finds out how the model is exposed; later ones run it once. The model stays frozen:
    it always runs in evaluation mode, and its weights get no gradient. What it is given does, where
    it asks for one: features, edge weights.
    """

    def __init__(
        self,
        model: nn.Module,
        fitted: FittedRepair[Any],
        node_type: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {kind_of(model)}; pass the module that was exposed")
        if not isinstance(fitted, FittedRepair):
            raise InputError(f"fitted is {kind_of(fitted)}; pass what a repair's fit gave")
        if fitted.num_members != 1:
            raise InputError(
                f"the repair has {fitted.num_members} members; choose one with fitted.member(i)"
            )
        self.model = model
        self._fitted = fitted
        self._hops, self._node_type = _hops(model, fitted), node_type or fitted.node_type or None
        self._plan: ExposurePlan | None = None
        self._call = forward
        for name, tensor in fitted.tensors().items():
            self.register_buffer(_buffer(name), tensor.clone())

    @property
    def fitted(self) -> FittedRepair[Any]:
        """The repair, with the numbers that this module holds now."""
        tensors = {name: getattr(self, _buffer(name)) for name in self._fitted.tensors()}
        changed: dict[str, Any] = {name: tensors[name] for name in STATISTICS}
        for part in ("parameters", "constants"):
            changed[part] = under(tensors, f"{part}/")
        return replace(self._fitted, **changed)

    def get_extra_state(self) -> Tensor:
        """Which model the repair belongs to: weights that are loaded bring their own.

        JSON as bytes, since tools that handle a state take every value of it for a tensor.
        """
        bound = self._fitted.fingerprint
        text = json.dumps({"fingerprint": None if bound is None else list(bound)})
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """The other way round; version 0.2 kept the dict itself."""
        note = _read(state) if isinstance(state, Tensor) else state
        bound = note.get("fingerprint", "") if isinstance(note, dict) else ""
        texts = isinstance(bound, list) and all(isinstance(value, str) for value in bound)
        if bound is not None and not texts:
            raise InputError(
                f"the state's note of which model the repair belongs to is {state!r:.60}; load "
                "what state_dict() of a repaired model gave"
            )
        self._fitted = replace(self._fitted, fingerprint=None if bound is None else tuple(bound))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As for every module, and from the keys of version 0.2, which were numbers."""
        for number, name in enumerate(self._fitted.tensors()):
            if (old := f"{prefix}repair_{number}") in state:
                state[prefix + _buffer(name)] = state.pop(old)
        super()._load_from_state_dict(state, prefix, *rest)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model's own forward gives for this, with repaired logits.

        [N, C], or one number per node; log-probabilities, or probabilities of labels, where it
        gives those. Where it gives a dict or a tuple, the logits in it are replaced.
        """
        tensors = _tensors([*args, *kwargs.values()])
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        exposure, output = self._exposed(args, kwargs, wanted)
        logits = in_own_form(self.fitted.member_logits(exposure)[0], exposure)
        if logits.dim() == 1 and isinstance(output, Tensor) and output.dim() == 2:
            logits = logits.unsqueeze(1)
        return in_place(output, logits.to(exposure.state.dtype), exposure)

    def changes(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        """Nodes whose class the repair changes: node, before, after (of labels: which label).

        Where graphs are classified the first column is ``graph``.
        """
        exposure, _ = self._exposed(args, kwargs)
        frozen = exposure.frozen_logits[0, exposure.recipients]
        of_labels = self._fitted.outputs == "labels"
        both = frozen, self.fitted.member_logits(exposure)[0]
        before, after = (logits > 0 if of_labels else logits.argmax(1) for logits in both)
        changed = (before != after).nonzero(as_tuple=True)
        columns = {recipient_column(exposure.names): exposure.recipients[changed[0]]}
        if of_labels:
            columns["label"] = changed[1]
        columns |= {"before": before[changed], "after": after[changed]}
        return pd.DataFrame({name: value.cpu() for name, value in columns.items()})

    def _exposed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool = False
    ) -> tuple[Exposure, Any]:
        """The model's exposure on what it is called with, and what it gave."""
        if self._plan is None or self._plan.model is not self.model:
            outputs: Any = self._fitted.outputs
            classes = self._fitted.num_classes
            self._plan = ExposurePlan(self.model, self._hops, self._node_type, outputs, classes)
        call = self._call or (self._fitted.forward if _is_graph(args, kwargs) else None)
        if call is None and self._fitted.own_call and _is_graph(args, kwargs):
            raise InputError(
                "the repair was fitted on an exposure made with forward=, which no file holds; "
                "pass forward= here, too"
            )
        data = args[0] if call and args else as_data(self.model, args, kwargs)
        results: list[Any] = []

        def run(model: nn.Module, _: Any) -> Any:
            # Copies, since models of several node types write into the dicts that they get.
            copies = {name: shallow_copy(value) for name, value in kwargs.items()}
            try:
                way: Any = call or type(model).__call__
                results.append(way(model, *map(shallow_copy, args), **copies))
                return results[-1]
            except (GnnRepairError, torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:
                message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                raise InputError(
                    f"{type(model).__name__}, called as here, raised {message}; pass what the "
                    "model itself takes"
                ) from error

        if gradients and not self._fitted.one_by_one:
            raise InputError(
                f"no gradient can be followed through {self._fitted.repair.title}, which is no "
                "differentiable function of the model's numbers; call it under torch.no_grad()"
            )
        # The first run is the model's own; later ones may have other messages put in.
        return self._plan(data, run, gradients=gradients), results[0]

    # Copies and files --------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Without the plan, which belongs to this process's copy of the model."""
        return self.__dict__ | {"_plan": None}

    def save(self, path: str | Path) -> None:
        """Write the model's weights and its repair as one safetensors file."""
        tensors: dict[str, Tensor] = {}
        fitted = self.fitted
        for name, value in self.model.state_dict().items():
            if not isinstance(value, Tensor):
                raise InputError(
                    f"{type(self.model).__name__} keeps `{name}`, {kind_of(value)}, in its "
                    "state, and a safetensors file holds tensors; torch.save its state_dict()"
                )
            parts = dense_parts(value)
            names = [name] if len(parts) == 1 else [f"{name}/{i}" for i in range(len(parts))]
            tensors |= {f"model/{n}": part for n, part in zip(names, parts, strict=True)}
        tensors |= {f"repair/{name}": value for name, value in fitted.tensors().items()}
        save_tensors(path, KIND, fitted.header(), tensors)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        node_type: str | None = None,
        forward: Forward | None = None,
    ) -> Self:
        """Read what :meth:`save` wrote into a model of the same class; nothing is unpickled."""
        header, tensors = load_tensors(path, KIND)
        with contents_of(path):
            fitted = fitted_of(header, under(tensors, "repair/"))
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {kind_of(model)}; pass a module, such as MyModel()")
        weights = _with_sparse(path, under(tensors, "model/"), model)
        _check_weights(path, weights, model)
        model.load_state_dict(weights)
        return cls(model, fitted, node_type, forward)

    def extra_repr(self) -> str:
        """Which repair it is."""
        return self._fitted.repair.title


def _is_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module is called with one graph, as ``forward(model, data)`` is."""
    return len(args) == 1 and not kwargs and not isinstance(args[0], Tensor)


def _buffer(name: str) -> str:
    """What a tensor of the repair is called in the module, whose buffers have no dots."""
    return f"repair/{name}".replace(".", "/")


def _read(note: Tensor) -> Any:
    try:
        return json.loads(bytes(note.tolist()))
    except (ValueError, TypeError):
        return None


def _with_sparse(path: str | Path, held: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A file's weights, those put together that are sparse in the model."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.layout == torch.strided:
            continue
        parts = [held.pop(part) for i in range(3) if (part := f"{name}/{i}") in held]
        build: Any = torch.sparse_coo_tensor
        if value.layout != torch.sparse_coo:
            build = partial(torch.sparse_compressed_tensor, layout=value.layout)
        try:
            held[name] = build(*parts, value.shape, check_invariants=True)
        except (RuntimeError, TypeError) as error:
            raise InputError(
                f"{path} holds another model's weights: `{name}` is no {value.layout} of shape "
                f"{list(value.shape)} there; pass a model like the one that was saved"
            ) from error
    return held


def _check_weights(path: str | Path, weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raise where a file's weights are not this model's, before the first of them is loaded."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for name in [*state, *weights]:
        here, there = _size(state.get(name)), _size(weights.get(name))
        # A lazy weight takes whatever size it is given.
        if here != there and not (here == LAZY and name in weights):
            raise InputError(
                f"{path} holds another model's weights: `{name}` is {there} there and {here} in "
                f"{type(model).__name__}; pass a model like the one that was saved"
            )


def _size(value: Tensor | None) -> str:
    if value is None or nn.parameter.is_lazy(value):
        return "missing" if value is None else LAZY
    return str(list(value.shape))


def _hops(model: nn.Module, fitted: FittedRepair[Any]) -> str:
    """The way of exposure that the repair was fitted with."""
    if not fitted.fingerprint:
        return HOPS[0]
    if fitted.fingerprint[0].endswith(MARK):
        raise InputError(
            "the repair was fitted on a tied exposure, and a repaired model weighs every group by "
            "itself; apply it to exposure.tied(), or fit it on the exposure as it is"
        )
    digests = tuple(digest.removesuffix(BEFORE_SOFTMAX) for digest in fitted.fingerprint)
    for hops in HOPS:
        if fingerprint_of_model(model, hops, fitted.num_classes) == digests:
            return hops
    raise InputError(
        f"the repair was fitted on a model of another class than {type(model).__name__}, with "
        "other weights, or on the same ones exposed as a Frozen; pass the model that was exposed, "
        "or fitted.unbound() if you know that it fits"
    )


# What it is called with, and the form of what it gives --------------------------------------------


def as_data(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the model is called with, under the names of its parameters."""
    try:
        named = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        name = type(model).__name__
        raise InputError(f"{name} cannot be called like that: {error}") from error
    whole = next((v for v in named.values() if hasattr(v, "edge_index") or is_typed(v)), None)
    if whole is not None:
        return whole
    if (typed := arguments_as_typed_data(named)) is not None:
        return typed
    tensors = {k: v for k, v in named.items() if isinstance(v, Tensor) and v.dim()}
    floats = (v for v in tensors.values() if v.is_floating_point() and v.layout == torch.strided)
    features = next(floats, None)
    return SimpleNamespace(**named, **({} if "x" in named or features is None else {"x": features}))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what a model may be given: a graph, dicts by node type, lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, BaseData):
        yield from _tensors([dict(store) for store in value.stores])
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "edge_index") and hasattr(value, "__dict__"):
        yield from _tensors(vars(value))


def in_own_form(logits: Tensor, exposure: Exposure) -> Tensor:
    """Repaired logits [n, C] as the exposed model gives its own.

    Of one logit z a node the classes are (0, z), and z is what the repair moves them apart to. A
    sigmoid or softmax that was taken off is put on again, and log-probabilities are normalised.
    """
    if TWO_CLASSES in exposure.called:
        logits = logits[:, 1] - logits[:, 0]
    if exposure.outputs == "classes" and logits.dim() == 2:
        logits = logits.log_softmax(1) if _normalised(exposure.frozen_logits[0]) else logits
    return as_model_gives(logits, exposure.called)


def in_place(output: Any, logits: Tensor, exposure: Exposure) -> Any:
    """What the model gave, with these logits in place of its own."""
    if isinstance(output, Tensor):
        return logits
    kind, columns = exposure.names.recipient, exposure.num_classes
    if isinstance(output, Mapping) and kind in output:
        return {**output, kind: logits}
    parts = list(output) if isinstance(output, tuple | list) else []
    # Of several dicts by node type the one with a column per class, else the first.
    by_type = [i for i, one in enumerate(parts) if isinstance(one, Mapping) and kind in one]
    by_type.sort(key=lambda i: parts[i][kind].shape[1:] != (columns,))
    place: Any = by_type[0] if by_type else None
    if place is None:
        outputs: Any = exposure.outputs
        place = read_output(output, exposure.num_nodes, columns, outputs).place
    if hasattr(output, "_replace") and not by_type:
        return output._replace(**{place: logits})
    if parts:
        parts[place] = {**parts[place], kind: logits} if by_type else logits
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    if isinstance(output, Mapping):
        return {**output, place: logits}
    return replace(output, **{place: logits})


def _normalised(logits: Tensor) -> bool:
    """Whether rows are logarithms of probabilities."""
    return bool((logits.detach().logsumexp(1).abs() <= NORMALISED).all())
