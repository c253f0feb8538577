"""The state a model is exposed in: at rest, given back as it was, told from other models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.rev_gnn import InvertibleModule

from gnn_repair.devices import full_precision
from gnn_repair.errors import ExposureRefused, InputError


def refuse_compiled(model: nn.Module) -> None:
    """A compiled model runs fused code in which no message can be watched."""
    for name, module in model.named_modules():
        title = f"`{name}`" if name else "the model"
        if hasattr(module, "_orig_mod"):
            raise ExposureRefused(
                f"{title} is compiled by torch.compile and its messages cannot be watched; "
                "pass the module it was made from (model._orig_mod)"
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise ExposureRefused(
                f"{title} was compiled in place by .compile() and its messages cannot be watched; "
                "pass a model that was not compiled"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ExposureRefused(
                f"{title} is a TorchScript module and its messages cannot be watched; "
                "pass the Python module it was made from"
            )


def lazy_parameters(model: nn.Module) -> list[str]:
    """The names of parameters that get their values in the first run that needs them."""
    return [name for name, p in model.named_parameters() if nn.parameter.is_lazy(p)]


def refuse_untrained(model: nn.Module, lazy: list[str]) -> None:
    """Raise where a run has just given a parameter that was ``lazy`` its first, random values."""
    filled = sorted(set(lazy) - set(lazy_parameters(model)))
    if filled:
        raise InputError(
            f"the model's weight `{filled[0]}` had no values before this run, so it was never "
            "trained; run and train the model first"
        )


_LOCKS: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()
_LOCKS_LOCK = Lock()


def _lock_of(model: nn.Module) -> RLock:
    """One lock a model: threads that expose it take turns, for each changes it while it runs."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(model, RLock())


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """While open the model is in evaluation mode and its parameters want no gradients.

    It computes in its own precision, whatever autocast says outside. Afterwards every module is as
    it was, caches included, also when something was raised. Other threads wait meanwhile.
    """
    places = {parameter.device for parameter in model.parameters()}
    with _lock_of(model), full_precision(*places), _at_rest(model):
        yield


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    training = [module.training for module in modules]
    # A lazy parameter that no run has needed has neither values nor gradients.
    real = [p for p in model.parameters() if not nn.parameter.is_lazy(p)]
    wanted = [parameter.requires_grad for parameter in real]
    reversible = [m for m in modules if isinstance(m, InvertibleModule)]
    disabled = [module.disable for module in reversible]
    try:
        with caches_preserved(model):
            model.eval()
            for parameter in real:
                parameter.requires_grad_(False)
            for module in reversible:
                # They free the memory of their input, which is still read here (or is data's own).
                module.disable = True
            yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.training = mode
        for parameter, want in zip(real, wanted, strict=True):
            parameter.requires_grad_(want)
        for module, was in zip(reversible, disabled, strict=True):
            module.disable = was


@contextmanager
def caches_preserved(model: nn.Module) -> Iterator[None]:
    """Afterwards the convolutions' caches are what they were before."""
    modules = list(model.modules())
    kept = [(m, k, v) for m in modules for k, v in vars(m).items() if _is_transient(m, k)]
    try:
        yield
    finally:
        for module, name, value in kept:
            vars(module)[name] = value


def _is_transient(module: nn.Module, name: str) -> bool:
    changing = name.startswith("_cached") or name in ("cached", "_alpha", "_decomposed_layers")
    return isinstance(module, MessagePassing) and changing


PROPAGATED = ("_cached_x", "_cached_h")
"""Where convolutions keep a whole propagation, so that their next run would send no message."""


def holds_propagations(model: nn.Module) -> bool:
    """Whether a convolution has kept its propagation from an earlier run."""
    convolutions = [m for m in model.modules() if isinstance(m, MessagePassing)]
    return any(
        getattr(conv, name, None) is not None for conv in convolutions for name in PROPAGATED
    )


def forget_propagations(model: nn.Module) -> None:
    """Make every convolution propagate in every run (undone by :func:`resting`)."""
    for module in model.modules():
        if not isinstance(module, MessagePassing):
            continue
        module._decomposed_layers = 1
        for name in PROPAGATED:
            if hasattr(module, name):
                setattr(module, name, None)
                module.cached = False


def describe_nondeterminism(
    model: nn.Module, run: Callable[[], Tensor], logits: Tensor, gap: float
) -> str:
    """What to say of a model whose first ``logits`` were others in another run, by ``gap``."""
    seen = [run() for _ in range(2)]
    if all(torch.equal(one, logits) for one in seen):
        return (
            f"the same sums in another order change the model's logits by {gap:.1e} (relative): "
            f"{logits.dtype} is too coarse for what it computes; pass model.double() and double "
            "data, or scale its features"
        )
    with torch.random.fork_rng():
        drawn = [(torch.manual_seed(0), run())[1] for _ in range(2)]
    if torch.equal(*seen) or not torch.equal(*drawn):
        return (
            "the model gives other logits in another run though nothing is drawn: it keeps "
            "something between runs; have its forward compute that anew, or pass a forward= that "
            "resets it"
        )
    words = "the model's logits change from run to run in evaluation mode; make its dropout and "
    words += "sampling depend on self.training"
    if any(isinstance(module, GraphModule) for module in model.modules()):
        words += " (to_hetero and other tracing write training=True into F.dropout for good: use "
        words += "nn.Dropout in the model that is traced)"
    return words


@dataclass(frozen=True, eq=False)
class KeptTable:
    """An attribute of a module."""

    name: str
    holder: dict[str, Any]
    key: str

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors in it."""
        return [leaf for leaf in tree_leaves(self.holder[self.key]) if isinstance(leaf, Tensor)]

    @property
    def empty(self) -> Any:
        """What stands there before a first run."""
        value = self.holder[self.key]
        return type(value)() if isinstance(value, dict | list | set) else None


def kept_tables(model: nn.Module, used: set[int]) -> list[KeptTable]:
    """The attributes that hold tensors which a run has read, weights and buffers excepted."""
    unknown = used - {id(t) for t in (*model.parameters(), *model.buffers())}
    return [table for table in attributes(model) if any(id(t) in unknown for t in table.tensors)]


def attributes(model: nn.Module) -> Iterator[KeptTable]:
    """What its modules hold beside weights, buffers and modules."""
    for name, module in model.named_modules():
        for key in vars(module):
            if not key.startswith(("_parameters", "_buffers", "_modules")):
                yield KeptTable(f"{name}.{key}".lstrip("."), vars(module), key)


@contextmanager
def caches_emptied(tables: Sequence[KeptTable]) -> Iterator[None]:
    """While open, the attributes are as before a first run."""
    kept = [table.holder[table.key] for table in tables]
    for table in tables:
        table.holder[table.key] = table.empty
    try:
        yield
    finally:
        for table, value in zip(tables, kept, strict=True):
            table.holder[table.key] = value


DIGITS = 16
"""Of the digest: 64 bits, far beyond what could coincide by accident."""


def digest_of_weights(kind: str, classes: int, weights: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of how a model is exposed, its classes and its weights by name.

    Floating-point weights count by value, so a model and its copy in higher precision or on
    another device are the same.
    """
    digest = hashlib.sha256(f"{kind}, {classes} classes".encode())
    for name, value in sorted(weights, key=lambda pair: pair[0]):
        if value.layout != torch.strided:
            digest.update(f"{name} {value.layout} {tuple(value.shape)}".encode())
        for part in dense_parts(value.detach()):
            plain = torch.view_as_real(part) if part.is_complex() else part
            plain = plain.cpu().double() if plain.is_floating_point() else plain.cpu()
            digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
            digest.update(plain.contiguous().numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that hold a tensor's numbers; of a sparse one its places and values."""
    if tensor.layout == torch.strided:
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def alike(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    """Whether two tensors hold the same numbers in the same form."""
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return False
    forms = [(one.device, one.dtype, one.layout, one.shape) for one in (left, right)]
    if left is right or forms[0] != forms[1]:
        return left is right
    pairs = zip(dense_parts(left), dense_parts(right), strict=True)
    if not tolerance:
        return all(torch.equal(a, b) or _equal_but_for_nan(a, b) for a, b in pairs)
    return all(torch.allclose(a, b, rtol=tolerance, equal_nan=True) for a, b in pairs)


def _equal_but_for_nan(left: Tensor, right: Tensor) -> bool:
    return left.is_floating_point() and torch.allclose(left, right, 0.0, 0.0, equal_nan=True)


def learned_by(model: nn.Module) -> list[Tensor]:
    """A copy of a model's parameters and buffers."""
    return [tensor.detach().clone() for tensor in _weights(model)]


def has_learned(model: nn.Module, known: Sequence[Tensor]) -> bool:
    """Whether a model still is the one of which :func:`learned_by` gave ``known``.

    By value: nothing counts what is written through ``weight.data``, and weights are small beside a
    graph.
    """
    now = _weights(model)
    return len(now) == len(known) and all(map(alike, now, known))


def _weights(model: nn.Module) -> list[Tensor]:
    held = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in held if not nn.parameter.is_lazy(tensor)]


def is_finite(tensor: Tensor) -> bool:
    """Whether none of its numbers is NaN or infinite."""
    values = dense_parts(tensor)[-1]
    return not values.is_floating_point() or bool(torch.isfinite(values).all())


def fingerprint_of_model(model: nn.Module, hops: str, classes: int) -> tuple[str, ...]:
    """The fingerprint of a user's model: its class, the way of exposure, parameters and buffers.

    What a forward function reads from elsewhere cannot be known here.
    """
    held = [
        (name, value)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and not nn.parameter.is_lazy(value)
    ]
    return (digest_of_weights(f"{type(model).__name__} by {hops}", classes, held),)
