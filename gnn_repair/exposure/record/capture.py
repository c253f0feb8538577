"""Running a model again: keeping values, following sums to the output, replacing sums."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_repair.errors import GnnRepairError
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, Parts
from gnn_repair.exposure.record.build import frame_of_site, wanted_values
from gnn_repair.exposure.record.recorder import (
    SILENT,
    Record,
    RecordedStep,
    Ref,
    is_in_place,
    plain_name,
    refs,
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


@dataclass(frozen=True, eq=False)
class CapturePlan:
    """What a second run keeps and follows."""

    recipients: int
    wanted: set[int]
    """Values to keep."""
    followed: dict[int, tuple[Frame, frozenset[int]]]
    """By value of a site: how it shows recipients, and who alone reads it as such."""
    offsets: dict[int, int]
    """By value of a site: its first channel of the aggregate."""
    width: int
    """Channels of the aggregate."""
    held: frozenset[int]
    """Operations whose results are constants."""

    @classmethod
    def of(
        cls, analysis: Analysis, sites: Sequence[FinalSite], parts: Sequence[Parts | None],
        recipients: int, held: Collection[int],
    ) -> CapturePlan:  # fmt: skip
        """The plan for some sums, and operations that are held."""
        wanted: set[int] = {out for place in held for out in analysis.record.steps[place].outs}
        followed, offsets, width = {}, dict[int, int](), 0
        for site, part in zip(sites, parts, strict=True):
            wanted |= wanted_values(analysis, site, part) | {site.value}
            wanted |= set(refs(analysis.record.steps[site.step].given))
            frame = frame_of_site(analysis.value(site.value).shape, site, recipients)
            followed[site.value], offsets[site.value] = (frame, site.readers), width
            width += frame.width
        return cls(recipients, wanted, followed, offsets, width, frozenset(held))


class Capture(_Counted):
    """Keeps values by number; values of ``followed`` become the aggregate that is traced."""

    def __init__(self, record: Record, plan: CapturePlan, tracer: Tracer) -> None:
        super().__init__(record)
        self.wanted, self.tracer, self.held = plan.wanted, tracer, plan.held
        self.followed: dict[int, Any] = {}
        self.read_by: dict[int, tuple[int, Any]] = {}
        """By operation: the value that is part of the aggregate as this operation reads it."""
        for number, (frame, readers) in plan.followed.items():
            place = (frame, plan.offsets[number])
            self.followed |= {} if readers else {number: place}
            self.read_by |= dict.fromkeys(readers, (number, place))
        known = {number: record.values[number].kept for number in plan.wanted}
        self.kept = {number: kept for number, kept in known.items() if kept is not None}

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        step = self.record.steps[number]
        own = self._own(number, step, args)
        out = func(*args, **kwargs)
        if own is not None:
            self.tracer.forget(own)
        results = [args[0]] if is_in_place(func) else tensors_in(out)
        # Of an operation in place the target comes last, after what shares its memory.
        numbers = step.outs[len(step.outs) - len(results) :]
        for place, result in zip(numbers, results, strict=True):
            if place in self.wanted:
                # A copy, since what follows may write into it.
                self.kept[place] = result.detach().clone()
            if place in self.followed:
                self.tracer.adopt(result, self.followed[place])
            elif number in self.held:
                self.tracer.forget(result)
        return out

    def _own(self, number: int, step: RecordedStep, args: Sequence[Any]) -> Tensor | None:
        """The argument that is followed as this operation alone reads it."""
        if number not in self.read_by:
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
    plan: CapturePlan,
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

    tracer = Tracer.of_width(plan.width, plan.recipients, device, now)
    capture = Capture(record, plan, tracer)
    counted.append(capture)
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
