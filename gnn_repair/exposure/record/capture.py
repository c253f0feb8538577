"""Running a model again: keeping values, following sums to the output, replacing sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_repair.errors import GnnRepairError
from gnn_repair.exposure.record.recorder import (
    SILENT,
    Record,
    RecordedStep,
    Ref,
    is_in_place,
    plain_name,
    tensors_in,
    unfused,
    values_of,
)
from gnn_repair.exposure.tails.building import Frame
from gnn_repair.exposure.tails.tracer import Tracer


class DivergedError(GnnRepairError):
    """A run does other operations than the recorded one, or gives other logits."""

    def __init__(self, gap: float = float("inf")) -> None:
        super().__init__("the model does something else in another run")
        self.gap = gap


class _Counted(TorchDispatchMode):
    """Counts operations as the recorder did."""

    def __init__(self, record: Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record, self.count = record, 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if plain_name(func) == SILENT:
            return func(*args, **(kwargs or {}))
        number, self.count = self.count, self.count + 1
        if number >= len(self.record.steps) or self.record.steps[number].name != plain_name(func):
            raise DivergedError
        return self.handle(number, func, args, dict(kwargs or {}))

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class Capture(_Counted):
    """Keeps values by number; values of ``followed`` become the aggregate that is traced."""

    def __init__(
        self, record: Record, wanted: set[int], tracer: Tracer | None, followed: Mapping[int, Any],
        held: set[int],
    ) -> None:  # fmt: skip
        super().__init__(record)
        self.wanted, self.tracer, self.followed = wanted, tracer, followed
        self.held = held
        self.read_by: dict[int, tuple[int, Any]] = {}
        """By operation: the value that is part of the aggregate as this operation reads it."""
        self.kept: dict[int, Tensor] = {}
        for number in wanted:
            value = record.values[number]
            if value.kept is not None:
                self.kept[number] = value.kept

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        step = self.record.steps[number]
        own = self._own(number, step, args)
        out = func(*args, **kwargs)
        if own is not None and self.tracer is not None:
            self.tracer.forget(own)
        results = [args[0]] if is_in_place(func) else tensors_in(out)
        # Of an operation in place the target comes last, after what shares its memory.
        numbers = step.outs[len(step.outs) - len(results) :]
        for place, result in zip(numbers, results, strict=True):
            if place in self.wanted:
                # A copy, since what follows may write into it.
                self.kept[place] = result.detach().clone()
            if place in self.followed and self.tracer is not None:
                self.tracer.adopt(result, self.followed[place])
            elif number in self.held and self.tracer is not None:
                self.tracer.forget(result)
        return out

    def _own(self, number: int, step: RecordedStep, args: Sequence[Any]) -> Tensor | None:
        """The argument that is followed as this operation alone reads it."""
        if number not in self.read_by or self.tracer is None:
            return None
        value, place = self.read_by[number]
        for shown, argument in zip(step.args, args, strict=False):
            if isinstance(shown, Ref) and shown.number == value:
                self.tracer.adopt(argument, place)
                return argument
        return None


class Replace(_Counted):
    """Gives some operations other arguments, or other results."""

    def __init__(self, record: Record, instead: Mapping[int, Callable[..., Any]]) -> None:
        super().__init__(record)
        self.instead = instead

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if number in self.instead:
            return self.instead[number](func, args, kwargs)
        return func(*args, **kwargs)


def captured(
    run: Callable[[], Tensor],
    record: Record,
    wanted: set[int],
    width: int,
    recipients: int,
    followed: Mapping[int, tuple[Frame, frozenset[int]]],
    offsets: Mapping[int, int],
    held: set[int],
    device: torch.device,
    where: Callable[[str], str],
) -> tuple[dict[int, Tensor], Tracer, Tensor]:
    """Run once more.

    Returns:
        The kept values, the trace of what follows the sums, and the output.
    """
    counted: list[_Counted] = []

    def now() -> str:
        return where(record.steps[counted[0].count - 1].module)

    tracer = Tracer.of_width(width, recipients, device, now)
    places = {n: (frame, offsets[n]) for n, (frame, readers) in followed.items() if not readers}
    capture = Capture(record, wanted, tracer, places, held)
    counted.append(capture)
    for number, (frame, readers) in followed.items():
        capture.read_by |= dict.fromkeys(readers, (number, (frame, offsets[number])))
    with unfused(), tracer, capture:
        output = run()
    return capture.kept, tracer, output


def replaced(
    run: Callable[[], Tensor], record: Record, instead: Mapping[int, Callable[..., Any]]
) -> Tensor:
    """The output when some operations do something else."""
    with unfused(), Replace(record, instead):
        return run()


def redone(record: Record) -> dict[int, Tensor]:
    """All values of the run, by doing its operations again where autograd sees them."""
    values = {n: v.kept for n, v in enumerate(record.values) if v.step < 0 and v.kept is not None}

    for step in record.steps:
        args = values_of(step.args, values)
        out = step.func(*args, **values_of(step.kwargs, values))
        results = [args[0]] if is_in_place(step.func) else tensors_in(out)
        first = len(step.outs) - len(results)
        for number in step.outs[:first]:  # other tensors that show what was written
            before = record.values[number].before
            assert before is not None
            values[number] = values[before]
        values |= dict(zip(step.outs[first:], results, strict=True))
    return values
