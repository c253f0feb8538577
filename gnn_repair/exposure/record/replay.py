"""Running the user's own model again: to keep values, and to certify with reweighted messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure.heads.building import Frame
from gnn_repair.exposure.heads.head import ExtractedHead
from gnn_repair.exposure.heads.tracer import Tracer
from gnn_repair.exposure.pieces import EXACT, centre, slices
from gnn_repair.exposure.record.analysis import Analysis, FinalSite
from gnn_repair.exposure.record.build import (
    Block,
    Mixture,
    SiteChannels,
    frame_of_site,
    places_of_group,
    site_values,
)
from gnn_repair.exposure.record.recorder import (
    KEPT_ALWAYS,
    UNCOUNTED,
    Record,
    RecordedStep,
    Ref,
    fill_values,
    run_decomposed,
    tensors_in,
    value_numbers,
)
from gnn_repair.exposure.record.reductions import is_in_place, plain_name
from gnn_repair.exposure.record.spelled import unfused
from gnn_repair.exposure.state import (
    alike,
    forget_propagations,
    has_learned,
    is_finite,
    learned_by,
    resting,
)
from gnn_repair.exposure.value import Exposure


class DivergedError(GnnRepairError):
    """A run does other operations than the recorded one, or gives other logits."""

    def __init__(self, gap: float = float("inf")) -> None:
        super().__init__("the model does something else in another run")
        self.gap = gap


OVERWRITES = {"fill", "zero", "copy", "normal", "uniform"}
"""Operations that, in place, do not read what they write over: it may be any numbers."""


class _Counted(TorchDispatchMode):
    """Counts operations as the recorder did; what they are given from outside must be the same."""

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
        kwargs = dict(kwargs or {})
        parts = run_decomposed(self, func, args, kwargs)
        if parts is not NotImplemented:
            return parts
        if plain_name(func) == UNCOUNTED:
            return func(*args, **kwargs)
        number, self.count = self.count, self.count + 1
        if number >= len(self.record.steps) or self.record.steps[number].name != plain_name(func):
            raise DivergedError
        step = self.record.steps[number]
        unread = step.name in OVERWRITES and is_in_place(func)
        same = self._is_same(step.args[unread:], tuple(args)[unread:])
        if not same or not self._is_same(step.kwargs, kwargs):
            raise DivergedError
        return self.handle(number, func, args, kwargs)

    def _is_same(self, shown: Any, given: Any) -> bool:
        """Whether arguments are the recorded ones, as far as no operation made them."""
        if isinstance(shown, Ref):
            value = self.record.values[shown.number]
            # From outside the same tensors come, but for how threads round.
            return value.step >= 0 or alike(value.tensor, given, tolerance=1e-3)
        if isinstance(shown, tuple):
            return len(shown) == len(given) and all(map(self._is_same, shown, given))
        if isinstance(shown, dict):
            return all(self._is_same(item, given.get(name)) for name, item in shown.items())
        return not isinstance(shown, int | float | str) or shown == given or shown != shown

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class CapturePlan:
    """What a second run keeps and follows."""

    recipients: int
    values: set[int]
    """Values to keep."""
    frames: dict[int, Frame]
    """By value of a site: how it shows recipients."""
    offsets: dict[int, int]
    """By value of a site: its first channel of the aggregate."""
    read_by: dict[int, int]
    """By operation: the value of a site that is part of the aggregate only as this one reads it."""
    width: int
    """Channels of the aggregate."""
    held: frozenset[int]
    """Operations whose results are constants."""
    added: dict[int, FinalSite]
    """By value: the sites that are added to what other sites move."""

    @classmethod
    def of(
        cls, analysis: Analysis, sites: Sequence[FinalSite], recipients: int, held: Collection[int]
    ) -> CapturePlan:
        """The plan for some sums, and operations that are held."""
        wanted: set[int] = {out for place in held for out in analysis.record.steps[place].outs}
        frames, offsets, width = dict[int, Frame](), dict[int, int](), 0
        moving = {out for p in analysis.descendants(sites) for out in analysis.record.steps[p].outs}
        moving |= {site.value for site in sites}
        added = {site.value: site for site in sites if site.base in moving}
        wanted |= {site.base for site in added.values() if site.base is not None}
        for site in sites:
            wanted |= site_values(site) | {site.value}
            wanted |= set(value_numbers(analysis.record.steps[site.step].layer_input))
            frame = frame_of_site(analysis.value(site.value).shape, site, recipients)
            frames[site.value], offsets[site.value] = frame, width
            width += frame.width
        read_by = {place: site.value for site in sites for place in site.readers}
        return cls(recipients, wanted, frames, offsets, read_by, width, frozenset(held), added)


class Capture(_Counted):
    """Keeps values by number; values of ``followed`` become the aggregate that is traced."""

    def __init__(
        self, record: Record, plan: CapturePlan, device: torch.device, where: Callable[[str], str]
    ) -> None:
        super().__init__(record)
        self.plan, self.where, self.added = plan, where, dict(plan.added)
        self.tracer = Tracer.of_width(plan.width, plan.recipients, device, self.now)
        self.followed = set(plan.frames) - set(plan.read_by.values())
        self.beside: dict[int, Tensor] = {}
        """What enters behind the sums and does not depend on them, by value."""
        known = {number: record.values[number].tensor for number in plan.values}
        self.tensors = {number: kept for number, kept in known.items() if kept is not None}

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        step = self.record.steps[number]
        own, before = self._own(number, step, args), self._before(step, args, kwargs)
        out = func(*args, **kwargs)
        if own is not None:
            self.tracer.forget(own)
        results = [args[0]] if is_in_place(func) else tensors_in(out)
        # Of an operation in place the target comes last, after what shares its memory.
        numbers = step.outs[len(step.outs) - len(results) :]
        for place, result in zip(numbers, results, strict=True):
            if place in self.plan.values:
                # A copy, since what follows may write into it.
                self.tensors[place] = result.detach().clone()
            if place in self.followed:
                self.adopt(result, place, before)
            elif number in self.plan.held:
                self.tracer.forget(result)
        return out

    def adopt(self, tensor: Tensor, number: int, before: Tensor | None = None) -> None:
        """Follow a tensor as the value of a site; ``before``: what its sum is added to."""
        self.tracer.adopt(tensor, (self.plan.frames[number], self.plan.offsets[number]), before)

    def now(self) -> str:
        """The title of the module that runs now."""
        return self.where(self.record.steps[self.count - 1].module)

    def _before(self, step: RecordedStep, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
        """What a sum is added to, where other sums move it."""
        site = self.added.get(step.result) if step.outs else None
        if site is None or site.base is None:
            return None
        shape = self.record.values[site.value].shape
        with self.tracer:
            before = site.of_base(argument_of(step, site.base, args, kwargs), shape)
        if self.tracer.is_lost(before):  # then it is held
            del self.added[site.value]
            return None
        return before

    def _own(self, number: int, step: RecordedStep, args: Sequence[Any]) -> Tensor | None:
        """The argument that is followed as this operation alone reads it."""
        value = self.plan.read_by.get(number)
        if value is None or Ref(value) not in step.args:
            return None
        argument: Tensor = args[step.args.index(Ref(value))]
        self.adopt(argument, value)
        return argument


def argument_of(
    step: RecordedStep, number: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What an operation is given, in another run, in the place of a recorded value."""
    places = [*step.args, *step.kwargs.values()]
    return [*args, *kwargs.values()][places.index(Ref(number))]


@dataclass(frozen=True, eq=False)
class CapturedRun:
    """What the second run showed."""

    analysis: Analysis
    sites: Sequence[FinalSite]
    tensors: dict[int, Tensor]
    offsets: dict[int, int]
    """By value of a site: its first channel of the aggregate."""
    extracted: ExtractedHead
    shifted: bool = False
    """Whether a log_softmax at the end was left out: a shift common to a node's classes."""
    beside: Mapping[int, Tensor] = field(default_factory=dict)
    """What enters behind the sums and does not depend on them, by value."""
    added: Collection[int] = ()
    """The values of sites that are added to what other sites move."""

    @property
    def channels(self) -> Tensor:
        """[n, D] what the rest of the model reads, of what the sites hold."""
        flat = []
        for site in self.sites:
            value = site.flat(self.tensors[site.value])
            if site.value in self.added and site.base is not None:
                shape = self.tensors[site.value].shape
                value = value - site.flat(site.of_base(self.tensors[site.base], shape))
            for after in site.after:  # 0 / 0 of a recipient without messages, repaired afterwards
                empty = self.tensors[after.value].reshape(-1)[after.place] == 0
                empty = empty.reshape(len(value), -1).any(1, keepdim=True) & (after.inverse is True)
                value = value.masked_fill(empty & ~value.isfinite(), 0)
            if site.rows is not None:
                value = value[torch.argsort(site.rows)[-int((site.rows >= 0).sum()) :]]
            flat.append(value)
        return self.extracted.aggregate(torch.cat(flat, dim=1))


class Replace(_Counted):
    """Gives some operations other arguments, or other results; some are not done at all."""

    def __init__(
        self, record: Record, instead: Mapping[int, Substitute], idle: Collection[int] = ()
    ) -> None:
        super().__init__(record)
        self.instead, self.idle = instead, idle

    def handle(self, number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if number in self.instead:
            return self.instead[number].run(func, args, kwargs)
        if number in self.idle:
            return empty_result(self.record, number, func, args)
        return func(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class Substitute:
    """What is done in place of an operation."""

    run: Callable[..., Any]
    unread: frozenset[int] = frozenset()
    """The values whose numbers it does not read."""


def empty_result(record: Record, number: int, func: Any, args: Sequence[Any]) -> Tensor:
    """An operation's result without its numbers; the memory is not even touched."""
    if is_in_place(func):
        target: Tensor = args[0]
        return target
    value = record.values[record.steps[number].outs[0]]
    return torch.empty(value.shape, dtype=value.dtype, device=tensors_in(list(args))[0].device)


def shows_another(func: Any) -> bool:
    """Whether an operation's result shares the memory of an argument, as a view does."""
    return not func._schema.is_mutable and any(
        r.alias_info is not None for r in func._schema.returns
    )


def idle_steps(record: Record, instead: Mapping[int, Substitute]) -> set[int]:
    """The operations whose numbers reach neither the output nor anything that Python sees."""
    needed, idle = {record.output}, set[int]()
    for number in range(len(record.steps) - 1, -1, -1):
        step = record.steps[number]
        results = [record.values[out] for out in step.outs]
        numbers = bool(results) and all(value.live and value.floating for value in results)
        if numbers and not step.looks and needed.isdisjoint(step.outs):
            alone = len(results) == 1 and not step.func._schema.is_mutable
            alone = alone and not shows_another(step.func)
            if (alone or is_in_place(step.func)) and step.inputs:
                idle.add(number)
            continue
        unread = instead[number].unread if number in instead else ()
        needed.update(read for read in step.inputs if read not in unread)
    return idle


def capture_run(
    run: Callable[[], Tensor],
    record: Record,
    plan: CapturePlan,
    device: torch.device,
    where: Callable[[str], str],
    stored: Mapping[int, Tensor],
) -> tuple[Capture, Tensor]:
    """Follow the sums to the output, by what the recorded run has stored or in another run.

    Returns:
        The wanted values with the trace of what follows the sums, and the output.
    """
    capture = Capture(record, plan, device, where)
    rest = remaining_steps(capture, stored) if record.repeats else None
    if rest is not None:
        with capture.tracer:
            return capture, run_remaining(capture, rest, stored)
    with unfused(record.counts), capture.tracer, capture:
        return capture, run()


def remaining_steps(capture: Capture, stored: Mapping[int, Tensor]) -> list[int] | None:
    """The operations from the followed values to the output; None: not all they read is stored."""
    record = capture.record
    moving = set(capture.followed)
    for number, step in enumerate(record.steps):
        if number in capture.plan.read_by or not moving.isdisjoint(step.inputs):
            moving.update(step.outs)

    def is_there(number: int) -> bool:
        is_kept = number in stored or record.values[number].tensor is not None
        return number in capture.followed or (number not in moving and is_kept)

    largest = max([KEPT_ALWAYS, *(tensor.numel() for tensor in stored.values())])
    todo, rest = (
        [record.output, *capture.plan.values - set(stored) - set(capture.tensors)],
        set[int](),
    )
    while todo:
        number = todo.pop()
        place = record.values[number].step
        if is_there(number) or place in rest:
            continue
        step = record.steps[place]
        has_aliases = is_in_place(step.func) and len(step.outs) > 1
        if place < 0 or has_aliases or prod(record.values[number].shape) > largest:
            return None
        rest.add(place)
        todo += value_numbers((step.args, step.kwargs))
    return sorted(rest) if capture.followed <= set(stored) and not capture.added else None


def run_remaining(capture: Capture, rest: Sequence[int], stored: Mapping[int, Tensor]) -> Tensor:
    """Do some operations of a record again; the output."""
    record = capture.record
    values = {n: v.tensor for n, v in enumerate(record.values) if v.tensor is not None}
    values |= stored
    for number in capture.followed:
        values[number] = stored[number].clone()
        capture.adopt(values[number], number)
    followed = set(capture.followed)
    capture.tensors |= {n: stored[n] for n in capture.plan.values if n in stored}

    def run(place: int, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        step, capture.count = record.steps[place], place + 1
        constant = [_shown_by(record, n) for n in step.inputs if n not in followed and n in stored]
        capture.beside |= {n: stored[n] for n in constant if n in stored and record.values[n].live}
        if is_in_place(func) and step.args[0].number not in followed:
            args[0] = args[0].clone()
        followed.update(step.outs)
        return capture.handle(place, func, args, kwargs)

    run_again(record, rest, values, run)
    return values[record.output]


def _shown_by(record: Record, number: int) -> int:
    """The value that a view shows; otherwise the value itself."""
    while (place := record.values[number].step) >= 0:
        step = record.steps[place]
        if not shows_another(step.func):
            break
        number = step.args[0].number
    return number


def rerun_with(
    run: Callable[[], Tensor], record: Record, instead: Mapping[int, Substitute]
) -> Tensor:
    """The output when some operations do something else, and what nobody then reads is left out."""
    if record.repeats:
        try:
            with unfused(record.counts), Replace(record, instead, idle_steps(record, instead)):
                return run()
        except Exception:  # it minds numbers that no tensor needs: once more, with all of them
            pass
    with unfused(record.counts), Replace(record, instead):
        return run()


def recompute_values(record: Record) -> dict[int, Tensor]:
    """All values of the run, by doing its operations again where autograd sees them."""
    leaves = [(n, v.tensor) for n, v in enumerate(record.values) if v.step < 0]
    values = {number: tensor for number, tensor in leaves if tensor is not None}
    run_again(
        record, range(len(record.steps)), values, lambda _, func, args, words: func(*args, **words)
    )
    return values


def run_again(
    record: Record, places: Iterable[int], values: dict[int, Tensor], run: Callable[..., Any]
) -> None:
    """Do some operations again, by ``run(place, func, args, kwargs)``; ``values`` gets results."""
    for place in places:
        step = record.steps[place]
        args = list(fill_values(step.args, values))
        out = run(place, step.func, args, fill_values(step.kwargs, values))
        results = [args[0]] if is_in_place(step.func) else tensors_in(out)
        first = len(step.outs) - len(results)
        for number in step.outs[:first]:  # other tensors that show what was written
            before = record.values[number].before
            assert before is not None
            values[number] = values[before]
        values |= dict(zip(step.outs[first:], results, strict=True))


Substitutes = Mapping[int, Callable[..., Any]]
"""By operation of the record: what is done in its place."""


@dataclass(frozen=True, eq=False)
class ReplayPart:
    """Some channels of a site, and the groups whose terms make them, with their numbers."""

    piece: SiteChannels
    groups: tuple[tuple[Mixture, int], ...]


@dataclass(frozen=True, eq=False)
class Replay:
    """λ [T] → the logits [N, C] of the model itself, in the state it was exposed in."""

    model: nn.Module
    forward: Callable[[], Tensor]
    record: Record
    parts: tuple[ReplayPart, ...]
    """Every site's channels with their groups."""
    values: dict[int, Tensor]
    """What sites hold, by value."""
    held: dict[int, tuple[Tensor, ...]]
    """By operation: what it gives, whatever the messages."""
    segments: Tensor
    """[N·G + 1]: the exposure's."""
    dtype: torch.dtype
    weights: list[Tensor]
    """Of the model as it was exposed."""

    @staticmethod
    def of(
        model: nn.Module, forward: Callable[[], Tensor], found: CapturedRun,
        made: Iterable[tuple[Block, Sequence[Mixture]]], segments: Tensor, dtype: torch.dtype,
        held: Sequence[int],
    ) -> Replay:  # fmt: skip
        """The replay of what was built: blocks with their groups, and operations that are held."""
        record, kept = found.analysis.record, found.tensors
        parts, numbers = list[ReplayPart](), count()
        for block, mixtures in made:
            groups = tuple((mixture, next(numbers)) for mixture in mixtures)
            parts += [ReplayPart(piece, groups) for piece in block.pieces]
        values = {part.piece.site.value: kept[part.piece.site.value] for part in parts}
        still = {place: tuple(kept[out] for out in record.steps[place].outs) for place in held}
        for number, value in found.beside.items():
            place = record.values[number].step
            if len(record.steps[place].outs) == 1:
                still.setdefault(place, (value,))
        return Replay(
            model, forward, record, tuple(parts), values, still, segments, dtype,
            learned_by(model),
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self, coefficients: Tensor, also: Substitutes | None = None) -> Tensor:
        """The logits under λ [T], float64; ``also``: what else is done otherwise."""
        if not has_learned(self.model, self.weights):
            raise InputError(
                f"{type(self.model).__name__} has changed since it was exposed; expose it again"
            )
        with resting(self.model):
            forget_propagations(self.model)
            return self.run(coefficients, also)

    def run(self, coefficients: Tensor, also: Substitutes | None = None) -> Tensor:
        """The same while the model is at rest already."""
        instead = self._instead(coefficients)
        instead |= {place: Substitute(change) for place, change in (also or {}).items()}
        return rerun_with(self.forward, self.record, instead).double()

    def _instead(self, coefficients: Tensor) -> dict[int, Substitute]:
        """By operation: what is done in its place."""
        terms = int(self.segments[-1])
        if not isinstance(coefficients, Tensor) or coefficients.numel() != terms:
            raise InputError(f"replay needs one coefficient for each of {terms} terms, [T]")
        weights = coefficients.reshape(-1).to(self.segments.device, self.dtype)
        instead = {place: self._giving(place, kept) for place, kept in self.held.items()}
        for site in {part.piece.site for part in self.parts}:
            if not site.readers:  # otherwise one term per recipient, so that nothing can change
                parts = [part for part in self.parts if part.piece.site is site]
                instead[self.record.values[site.value].step] = self._summing(site, parts, weights)
        return instead

    def _giving(self, place: int, kept: Sequence[Tensor]) -> Substitute:
        """An operation whose results are what they are held at."""
        step = self.record.steps[place]
        if not len(kept) == len(step.outs) == 1:
            return Substitute(return_fixed(kept))

        def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
            return args[0].copy_(kept[0]) if is_in_place(func) else kept[0].clone()

        return Substitute(run, frozenset(step.inputs))

    def first_failure(self, coefficients: Tensor) -> RecordedStep | None:
        """The first operation that makes NaN or infinite numbers of finite ones, if one does."""
        failures: list[RecordedStep] = []

        class Watch(Replace):
            def handle(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
                out = super().handle(number, func, args, kwargs)
                given, made = tensors_in([*args, *kwargs.values()]), tensors_in(out)
                if not failures and all(map(is_finite, given)) and not all(map(is_finite, made)):
                    failures.append(self.record.steps[number])
                return out

        watch = Watch(self.record, self._instead(coefficients))
        with suppress(GnnRepairError), unfused(self.record.counts), watch:
            self.forward()
        return failures[0] if failures else None

    def _summing(self, site: FinalSite, mine: Sequence[ReplayPart], given: Tensor) -> Substitute:
        """The sum of reweighted messages: base + Σ ± λ h, laid out as the model lays it out."""
        value, place = self.values[site.value], self.record.values[site.value].step
        step = self.record.steps[place]
        reads = frozenset(step.inputs) - {site.base}
        groups = 1 + max(number for part in self.parts for _, number in part.groups)

        def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            several = len(func._schema.returns) > 1  # the sums, and what belongs to them
            out = func(*args, **kwargs) if several else None
            target = args[0] if is_in_place(func) else torch.empty_like(value)  # strides as well
            target = tensors_in(out)[0] if several else target
            flat = site.flat(value).clone()
            start = value.new_zeros(())
            if site.base is not None:  # which may move with other sums
                start = argument_of(step, site.base, args, kwargs)
            start = site.flat(site.of_base(start, value.shape))
            rows: Any = slice(None) if site.rows is None else (site.rows >= 0).nonzero().view(-1)
            own: Any = rows if site.rows is None else site.rows[rows]
            for part in mine:
                flat[part.piece.at(rows)] = start[part.piece.at(rows)]
            for part in mine:
                at, rest = part.piece.at(rows), part.piece.rest
                for mixture, number in part.groups:
                    terms = places_of_group(self.segments, number, groups)
                    flat[at] += mixture.value(given[terms])[own][:, part.piece.columns]
                if rest is not None:
                    flat[at] += rest[own]
            target.copy_(site.laid_out(flat, value.shape).reshape(target.shape))
            return target if out is None else out

        return Substitute(run, reads)


def return_fixed(kept: Sequence[Tensor]) -> Callable[..., Any]:
    """An operation whose results are overwritten by what they are held at."""

    def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        results = [args[0]] if is_in_place(func) else tensors_in(out)
        for result, value in zip(results, kept[len(kept) - len(results) :], strict=True):
            result.copy_(value)
        return out

    return run


# Comparing ---------------------------------------------------------------------------------------


FEW = 1 << 10
"""Groups of recipients up to which two draws are made: each holds about half of them at a corner
and the others inside."""
ROUNDINGS = 16
"""Roundings of the largest logit that a certificate allows beside what moved."""


def random_admissible(exposure: Exposure, seed: int, corners: float = 0.0) -> Tensor:
    """Random λ ≥ 0 [T] with every group's mass, in the model's precision.

    Args:
        exposure: whose groups.
        seed: of the draw.
        corners: the share of groups whose whole mass is given to one of their terms.
    """
    generator, lengths = torch.Generator().manual_seed(seed), exposure.segments.diff()
    alpha = exposure.coefficients
    draws = torch.rand(exposure.num_terms, generator=generator, dtype=alpha.dtype)
    # Powers spread the shares, so that single terms come to dominate some of the groups.
    # The smallest share is a thousandth of the largest: no term is left untried.
    draws = draws.pow_(3).add_(1e-3).to(alpha.device)
    draw, position = torch.rand(2, lengths.numel(), generator=generator).to(lengths.device)
    at_corner = (draw < corners) & (lengths > 0)
    offset = (position.double() * lengths).long().minimum(lengths - 1)
    mass = exposure.mass.view(-1)
    for some in slices(lengths.numel(), 1 + exposure.num_terms // max(1, lengths.numel())):
        first, last = (int(exposure.segments[position]) for position in (some.start, some.stop))
        shares, group = draws[first:last], torch.repeat_interleave(lengths[some])
        shares.masked_fill_(at_corner[some][group], 0)
        shares[(exposure.segments[:-1] + offset)[some][at_corner[some]] - first] = 1
        total = torch.zeros_like(mass[some]).index_add_(0, group, shares.double())
        shares.mul_((mass[some] / total)[group].to(alpha.dtype))
    return draws


def certify(
    exposure: Exposure,
    replay: Callable[[Tensor], Tensor],
    logits: Tensor,
    shifted: bool,
) -> float:
    """Largest difference of model and exposure over random λ and vertices, beside what moved."""
    mixture = exposure.aggregate
    gaps, frozen = list[float](), logits.double()
    frozen = centre(frozen) if shifted else frozen
    for seed in range(2 if mixture.segments.numel() <= FEW else 1):
        coefficients = random_admissible(mixture, seed, corners=0.5)
        seen = replay(coefficients).double()
        expected = exposure.logits(coefficients.unsqueeze(0))[0]
        if shifted:
            seen, expected = centre(seen), centre(expected)
        gaps.append(relative_gap(seen, expected, frozen, logits.dtype))
    return largest_gap(gaps)


def largest_gap(gaps: Sequence[float]) -> float:
    """The largest; NaN where any is, which max() would lose."""
    return float(torch.tensor(gaps, dtype=torch.float64).max())


def relative_gap(seen: Tensor, expected: Tensor, frozen: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of model and exposure, beside what moved since the frozen state."""
    kappa = ROUNDINGS * torch.finfo(dtype).eps / EXACT[dtype]
    moved = float((expected - frozen).abs().amax())
    size = max(moved, kappa * float(torch.maximum(expected.abs().amax(), frozen.abs().amax())))
    gap = float((seen - expected).abs().amax())
    return 0.0 if gap == 0 else gap / max(size, torch.finfo(torch.float64).tiny)


WORST_ROUNDING = 100.0
"""How many times EXACT rounding can be where a model amplifies it (1e-3 in float32, 1e-10 in
float64): it then has lost all but three of its seven digits, and beyond that neither its logits nor
an answer about them mean anything. No larger tolerance is offered or taken."""


def residual_limit(tolerance: float | None, dtype: torch.dtype) -> float:
    """The largest residual that is accepted of a model in this precision."""
    if tolerance is None:
        return EXACT[dtype]
    most = WORST_ROUNDING * EXACT[dtype]
    if not isinstance(tolerance, int | float) or not 0 <= tolerance <= most:
        raise InputError(
            f"tolerance is {tolerance!r:.20}; rounding of {dtype} explains at most {most:.0e}, and "
            "an exposure that is further off is not one of this model: choose between 0 and that"
        )
    return tolerance


def residual_advice(residual: float, dtype: torch.dtype) -> str:
    """What to do about a residual: rounding explains it, or nothing does."""
    enough = min(2 * residual, WORST_ROUNDING * EXACT[dtype])
    if not residual <= enough:
        return (
            "that is no rounding: what follows does something else with other messages, such as "
            "keeping values between runs or writing them by out=; take that out of the forward"
        )
    double = "pass model.double() and double data"
    if dtype == torch.float64:
        double = "scale its features, or take out what divides by small numbers"
    return f"that is how {dtype} rounds in this model: {double}, or tolerance={enough:.0e}"
