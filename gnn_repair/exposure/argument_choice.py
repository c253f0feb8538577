"""Choosing among the arguments that data could fill, by running the model where names leave doubt.

A doubt that makes no difference to the logits is none. One that does is a question to the user,
never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import InputError
from gnn_repair.exposure.model_arguments import (
    ADJACENCIES,
    GRAPHS,
    LABELS,
    TYPES,
    VECTORS,
    WEIGHTS,
    ArgumentFinder,
    CallPlan,
    Given,
    field,
    field_names,
    in_words,
)
from gnn_repair.exposure.model_state import preserved

ASK = "pass forward=lambda model, data: ... to say how the model is called"
SAME = 1e-5
"""Logits closer than this beside the largest differ by rounding: the runs are the same model's."""

RunOutputs = list[Tensor] | None
"""The floating tensors that a run gave; None: it raised."""


def choose_arguments(model: nn.Module, data: Any) -> tuple[CallPlan, str]:
    """What to call the model's forward with, and that call in words."""
    choice = _Choice(model, data)
    choice.settle()
    return choice.plan, in_words(choice.plan) + choice.remark()


class _Choice:
    def __init__(self, model: nn.Module, data: Any) -> None:
        self.model, self.data = model, data
        self.finder = ArgumentFinder(model, data)
        self.plan = self.finder.plan()

    def settle(self) -> None:
        open_ones = [p for p in self.finder.parameters if p.name not in self.plan]
        for parameter in sorted(open_ones, key=lambda p: not p.required):
            found = self.finder.candidates(parameter.name, self.plan)
            if parameter.required:
                self._fill_required(parameter.name, found)
            elif found:
                self._fill_optional(parameter.name, found)
        self._ask_about_graphs()
        self._ask_about_labels()
        order = {name: place for place, name in enumerate(self.finder.names)}
        self.plan = dict(sorted(self.plan.items(), key=lambda item: order[item[0]]))

    def remark(self) -> str:
        """Which arguments for edges stayed at their defaults though data has values for edges."""
        if not self._edge_values():
            return ""
        kinds = (*WEIGHTS, *TYPES, *VECTORS)
        left = [n for n in self.finder.names if n in kinds and n not in self.plan]
        return f"; {', '.join(left)} left at default" if left else ""

    def _edge_values(self) -> bool:
        return any(self.finder.candidates(kind, self.plan) for kind in ("edge_weight", "edge_attr"))

    # One parameter ------------------------------------------------------------------------------

    def _fill_required(self, name: str, found: Sequence[Given]) -> None:
        if not found:
            kept = ", ".join(field_names(self.data)) or "nothing"
            raise InputError(
                f"the model's forward needs `{name}`, which data does not have (it has {kept}); "
                "add it to data or pass forward=lambda model, data: ..."
            )
        if len(found) > 1:
            raise InputError(f"the model's forward needs `{name}`, {_could(found)}; {ASK}")
        self.plan[name] = found[0]

    def _fill_optional(self, name: str, found: Sequence[Given]) -> None:
        if len(found) == 1 and not self._passed_elsewhere(found[0]):
            if self._outcome({**self.plan, name: found[0]}) is not None:
                self.plan[name] = found[0]
            return
        base = self._outcome(self.plan)
        tried = [(given, self._outcome({**self.plan, name: given})) for given in found]
        telling = [(given, out) for given, out in tried if _rivals(out, base)]
        if not telling or (len(found) == 1 and self._matters(found[0])):
            return
        if any(_rivals(out, telling[0][1]) for _, out in telling):
            options = [given for given, _ in telling]
            raise InputError(f"the model's forward takes `{name}`, {_could(options)}; {ASK}")
        self.plan[name] = telling[0][0]

    def _passed_elsewhere(self, given: Given) -> bool:
        return any(_root(other) == _root(given) for other in self.plan.values())

    def _matters(self, given: Given) -> bool:
        """Whether the logits change when this is passed where its own name asks for it."""
        without = {n: other for n, other in self.plan.items() if _root(other) != _root(given)}
        return _rivals(self._outcome(without), self._outcome(self.plan))

    # Several of a kind --------------------------------------------------------------------------

    def _ask_about_graphs(self) -> None:
        graphs = [name for name in ADJACENCIES if field(self.data, name) is not None]
        for name, given in list(self.plan.items()):
            if name not in GRAPHS or given.source == f"data.{name}" or len(graphs) < 2:
                continue
            options = [Given(field(self.data, other), f"data.{other}") for other in graphs]
            runs = [(option, self._outcome({**self.plan, name: option})) for option in options]
            runs = [(option, out) for option, out in runs if out is not None]
            if any(_rivals(out, runs[0][1]) for _, out in runs):
                could = _could([option for option, _ in runs])
                raise InputError(f"the model's forward takes `{name}`, {could}; {ASK}")
            self.plan[name] = runs[0][0] if runs else given

    def _ask_about_labels(self) -> None:
        for name in (n for n in self.finder.names if n in LABELS and n not in self.plan):
            value = field(self.data, name)
            if value is None:
                continue
            shown = self._outcome({**self.plan, name: Given(value, f"data.{name}")})
            if _rivals(shown, self._outcome(self.plan)):
                raise InputError(
                    f"the model's forward takes `{name}`, which data has and which changes the "
                    f"logits; {ASK}"
                )

    def _outcome(self, plan: CallPlan) -> RunOutputs:
        try:
            with preserved(self.model):
                out = self.model(**{name: given.value for name, given in plan.items()})
        except Exception:
            return None  # not how anybody runs this model
        return _floating(out)


def _root(given: Given) -> str:
    """``data.edge_attr`` of ``data.edge_attr.squeeze(1)``."""
    return ".".join(given.source.split(".")[:2])


def _could(options: Sequence[Given]) -> str:
    *most, last = [option.source for option in options]
    text = f"{', '.join(most)} or {last}" if most else last
    return f"which {text} could fill"


def _floating(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _floating(item)]
    return []


def _rivals(left: RunOutputs, right: RunOutputs) -> bool:
    """Whether two runs gave outputs of the same shapes that differ in value."""
    if left is None or right is None or [t.shape for t in left] != [t.shape for t in right]:
        return False
    return any(not _close(one, other) for one, other in zip(left, right, strict=True))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.numel() == 0:
        return True
    size = float(torch.maximum(one.abs().max(), other.abs().max()))
    return bool(torch.allclose(one, other, rtol=SAME, atol=SAME * size, equal_nan=True))
