"""Running a model on data: how it is called, what it says, whether that is what its user sees."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Dataset
from torch_geometric.data.data import BaseData

from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure.argument_choice import choose_arguments
from gnn_repair.exposure.exactness import EXACT
from gnn_repair.exposure.model_arguments import field, parameters_of

Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Invocation:
    """One way of running a model."""

    run: Callable[[], Any]
    text: str
    """Such as ``forward(x, edge_index)``."""

    def __call__(self) -> Any:
        """Run the model; whatever it raises is told with the call that raised it."""
        try:
            return self.run()
        except (GnnRepairError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:300] or _raising_line(error)
            raise InputError(
                f"the model, called as {self.text}, raised {type(error).__name__}: {said}; "
                "pass forward=lambda model, data: ... to call it as you do"
            ) from error


def one_graph(data: Any, model: nn.Module, forward: Forward | None) -> Any:
    """The graph itself: out of a dataset of one, or None for models that hold their own."""
    if data is None and forward is None and parameters_of(model):
        raise InputError(
            "data is missing; call expose(model, data) with the graph the model runs on"
        )
    if isinstance(data, Dataset):
        if len(data) != 1:
            raise InputError(
                f"data is a dataset of {len(data)} graphs; pass the one the model runs on, "
                "such as dataset[0]"
            )
        return data[0]
    unreadable = isinstance(data, Tensor | str | bytes | int | float | tuple | list | type)
    if forward is None and unreadable and parameters_of(model):
        raise InputError(
            f"data is a {type(data).__name__}; pass a PyG Data (or any object with x and "
            "edge_index), or forward=lambda model, data: ..."
        )
    return data


def invocation(model: nn.Module, data: Any, forward: Forward | None) -> Invocation:
    """How the model is run on the data."""
    if forward is not None:
        return Invocation(lambda: forward(model, own_copy(data)), "given by forward=")
    if not parameters_of(model):
        return Invocation(model, "forward()")
    plan, text = choose_arguments(model, data)
    arguments = {name: given.value for name, given in plan.items()}
    names = _unpacked(model, next(iter(arguments))) if len(arguments) == 1 else ()
    fields = ("edge_index", "x") if _is_graph(names) else ("x", "edge_index")
    pair = tuple(field(data, name) for name in fields)
    if names and all(isinstance(one, Tensor) for one in pair):
        return Invocation(lambda: model(pair), f"forward(({', '.join(fields)}))")
    return Invocation(lambda: model(**{n: own_copy(v) for n, v in arguments.items()}), text)


def own_copy(value: Any) -> Any:
    """A graph whose fields a forward may set unnoticed; its tensors are shared."""
    return copy.copy(value) if isinstance(value, BaseData) else value


def _unpacked(model: nn.Module, parameter: str) -> tuple[str, ...]:
    """The two names that forward unpacks its only argument into, as in ``x, edges = data``."""
    try:
        source = inspect.getsource(type(model).forward)
    except (OSError, TypeError):
        return ()  # written where no source is kept
    line = rf"^\s*\(?(\w+)\s*,\s*(\w+)\)?\s*=\s*{re.escape(parameter)}\s*(?:#.*)?$"
    found = re.search(line, source, re.MULTILINE)
    return found.groups() if found else ()


def _is_graph(names: tuple[str, ...]) -> bool:
    return any(word in name for name in names[:1] for word in ("edge", "adj", "graph"))


EXPECTED_SLACK = 100.0
"""The user's logits may come from another device or batch, and so round this much more."""


def check_expected(
    expected: Any, logits: Tensor, binary: bool, called: str, noun: str = "node"
) -> None:
    """Compare with what the user says the model gives: logits [N, C] or predictions [N]."""
    theirs = _as_tensor(expected).detach().to(logits.device)
    if logits.shape[1] == 1 and theirs.numel() == logits.shape[0]:  # one value or label a row
        theirs = theirs.reshape(-1, 1)
    elif binary and theirs.is_floating_point() and theirs.numel() == logits.shape[0]:
        theirs = torch.stack([torch.zeros_like(theirs.view(-1)), theirs.view(-1)], dim=1)
    if theirs.is_floating_point() and theirs.shape == logits.shape:
        precision = max(EXACT[logits.dtype], 4 * torch.finfo(theirs.dtype).eps)
        gap = (theirs.double() - logits.double()).abs().amax(1)
        size = torch.maximum(theirs.double().abs(), logits.double().abs()).amax(1)
        # Where a row is next to nothing beside the others, roundings are those of the others.
        wrong = ~(gap <= EXPECTED_SLACK * precision * size.clamp(min=float(size.mean())))
        what = "gives other logits than expected="
    elif not theirs.is_floating_point() and theirs.shape == logits.shape[:1]:
        wrong = theirs.long() != logits.argmax(1)
        what = "predicts otherwise than expected="
    else:
        raise InputError(
            f"expected has shape {list(theirs.shape)} and holds {theirs.dtype}; pass logits "
            f"{list(logits.shape)} or predicted classes [{logits.shape[0]}]"
        )
    if count := int(wrong.sum()):
        first = int(wrong.nonzero()[0])
        raise InputError(
            f"the model called as {called} {what} at {count} of {logits.shape[0]} {noun}s "
            f"(the first is {noun} {first}); pass forward=lambda model, data: ... to call it "
            "as you do"
        )


def _as_tensor(value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"expected is a {type(value).__name__}; pass the model's logits or predictions"
        ) from None


def _raising_line(error: BaseException) -> str:
    """The line of code that raised, for errors that say nothing themselves, as assertions do."""
    return traceback.extract_tb(error.__traceback__)[-1].line or ""
