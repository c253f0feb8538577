"""Running the user's own model with its final messages reweighted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import GnnRepairError, InputError
from gnn_repair.exposure.assembly import Mixture
from gnn_repair.exposure.model_state import forget_propagations, resting
from gnn_repair.exposure.record.analysis import FinalSite
from gnn_repair.exposure.record.build import Block, SiteChannels
from gnn_repair.exposure.record.capture import Replace, replaced
from gnn_repair.exposure.record.recorder import (
    Record,
    RecordedStep,
    Ref,
    is_in_place,
    tensors_in,
    unfused,
)

Substitutes = Mapping[int, Callable[..., Any]]
"""By operation of the record: what is done in its place."""
LARGEST_MESSAGES = 1 << 26
"""Numbers in the messages of a sum beyond which its result is replaced: 256 MB in float32."""


@dataclass(frozen=True, eq=False)
class ReplayPart:
    """Some channels of a site, and the groups whose terms make them."""

    piece: SiteChannels
    block: Block
    groups: tuple[tuple[Mixture, slice], ...]

    def states(self, mixture: Mixture) -> Tensor:
        """The states of these channels, one row a term."""
        return mixture.states[:, self.piece.columns][mixture.rows.long()]

    def scale(self, mixture: Mixture, placed: Tensor, terms: slice) -> Tensor:
        """± λ before what every message is multiplied by later on."""
        scale = placed[terms] * mixture.sign
        later = self.block.scale
        return scale if later is None else scale / later[mixture.entries].to(scale)

    def entries(self, mixture: Mixture) -> Tensor:
        """The entries of the sum behind a group's terms."""
        own = self.block.entries
        return mixture.entries if own is None else own[mixture.entries]


@dataclass(frozen=True, eq=False)
class Replay:
    """λ [T] → the logits [N, C] of the model itself, in the state it was exposed in."""

    model: nn.Module
    forward: Callable[[], Tensor]
    record: Record
    parts: tuple[ReplayPart, ...]
    """Every site's channels with their groups, and where these groups' terms lie among all."""
    values: dict[int, Tensor]
    """What sites hold, by value."""
    held: dict[int, tuple[Tensor, ...]]
    """By operation: what it gives, whatever the messages."""
    order: Tensor | None
    """The place of each term of the mixtures among the exposure's."""
    count: int
    dtype: torch.dtype
    versions: tuple[int, ...]

    @staticmethod
    def of(
        model: nn.Module, forward: Callable[[], Tensor], record: Record,
        made: Iterable[tuple[Block, Sequence[Mixture]]],
        kept: dict[int, Tensor], order: Tensor | None, logits: Tensor, held: Sequence[int],
    ) -> Replay:  # fmt: skip
        """The replay of what was built."""
        parts, start = list[ReplayPart](), 0
        for block, mixtures in made:
            mine = []
            for mixture in mixtures:
                mine.append((mixture, slice(start, start + mixture.rows.numel())))
                start += mixture.rows.numel()
            parts += [ReplayPart(piece, block, tuple(mine)) for piece in block.pieces]
        values = {part.piece.site.value: kept[part.piece.site.value] for part in parts}
        still = {place: tuple(kept[out] for out in record.steps[place].outs) for place in held}
        return Replay(
            model, forward, record, tuple(parts), values, still, order, start, logits.dtype,
            versions_of(model),
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self, coefficients: Tensor, also: Substitutes | None = None) -> Tensor:
        """The logits under λ [T], float64; ``also``: what else is done otherwise."""
        if versions_of(self.model) != self.versions:
            raise InputError(
                f"{type(self.model).__name__} has changed since it was exposed; expose it again"
            )
        with resting(self.model):
            forget_propagations(self.model)
            return self.run(coefficients, also)

    def run(self, coefficients: Tensor, also: Substitutes | None = None) -> Tensor:
        """The same while the model is at rest already."""
        instead = self._instead(coefficients) | dict(also or {})
        return replaced(self.forward, self.record, instead).double()

    def _instead(self, coefficients: Tensor) -> dict[int, Callable[..., Any]]:
        """By operation: what is done in its place."""
        if not isinstance(coefficients, Tensor) or coefficients.numel() != self.count:
            raise InputError(f"replay needs one coefficient for each of {self.count} terms, [T]")
        placed = coefficients.reshape(-1).to(next(iter(self.values.values())).device, self.dtype)
        if self.order is not None:
            given, placed = placed, torch.empty_like(placed)
            placed[self.order] = given
        instead = {place: giving(kept) for place, kept in self.held.items()}
        for site in {part.piece.site for part in self.parts}:
            mine = [part for part in self.parts if part.piece.site is site]
            self._substitute(instead, site, mine, placed)
        return instead

    def _substitute(
        self,
        instead: dict[int, Callable[..., Any]],
        site: FinalSite,
        mine: Sequence[ReplayPart],
        placed: Tensor,
    ) -> None:
        reduction = site.reduction
        if site.readers:
            return None  # one term a recipient, so that nothing can change
        inside = reduction.matrix is not None and not self._is_argument(site, reduction.matrix)
        whole = site.powers is not None or reduction.turned or reduction.batched or site.members
        if inside or whole:
            return self._by_value(instead, site, mine, placed)
        if reduction.matrix is not None:
            instead[site.step] = self._argument(
                site, reduction.matrix, lambda old: _matrix(old, mine, placed)
            )
            return None
        shape = self.record.values[reduction.message].shape
        if torch.Size(shape).numel() > LARGEST_MESSAGES:
            return self._by_value(instead, site, mine, placed)
        instead[site.step] = self._argument(
            site, reduction.message, lambda old: _messages(old, reduction, mine, placed)
        )
        return None

    def _is_argument(self, site: FinalSite, number: int) -> bool:
        return Ref(number) in self.record.steps[site.step].args

    def first_broken(self, coefficients: Tensor) -> RecordedStep | None:
        """The first operation that makes NaN or infinite numbers of finite ones, if one does."""
        found: list[RecordedStep] = []

        class Watch(Replace):
            def handle(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
                out = super().handle(number, func, args, kwargs)
                given, made = tensors_in([*args, *kwargs.values()]), tensors_in(out)
                if not found and all(map(_is_finite, given)) and not all(map(_is_finite, made)):
                    found.append(self.record.steps[number])
                return out

        with suppress(GnnRepairError), unfused(), Watch(self.record, self._instead(coefficients)):
            self.forward()
        return found[0] if found else None

    def _argument(
        self, site: FinalSite, number: int, change: Callable[[Tensor], Tensor]
    ) -> Callable[..., Any]:
        """Run the operation with another tensor in the place of one of its arguments."""
        shown = self.record.steps[site.step].args
        (place,) = [i for i, a in enumerate(shown) if isinstance(a, Ref) and a.number == number][:1]

        def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            given = list(args)
            given[place] = change(given[place])
            return func(*given, **kwargs)

        return run

    def _by_value(
        self,
        instead: dict[int, Callable[..., Any]],
        site: FinalSite,
        mine: Sequence[ReplayPart],
        placed: Tensor,
    ) -> None:
        value = self.values[site.value]
        step = self.record.values[site.value].step

        def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            out = func(*args, **kwargs)
            moved = value.movedim(site.axis, 0) if site.axis is not None else value.unsqueeze(0)
            flat = moved.reshape(len(moved), -1).clone()
            rows = (
                torch.arange(len(flat), device=flat.device)
                if site.rows is None
                else (site.rows >= 0).nonzero().view(-1)
            )
            own = rows if site.rows is None else site.rows[rows]
            whole = site.powers is not None or site.reduction.base is None
            for part in mine:
                places = rows.unsqueeze(1), part.piece.channels
                flat[places] = 0.0 if whole else flat[places]
            for part in mine:
                for mixture, terms in part.groups:
                    given = placed[terms] if whole else placed[terms] - mixture.coefficients
                    made = mixture.value(given)[own][:, part.piece.columns]
                    flat[rows.unsqueeze(1), part.piece.channels] += made
            made = flat.reshape(moved.shape)
            made = made.movedim(0, site.axis) if site.axis is not None else made.squeeze(0)
            target = out if isinstance(out, Tensor) else args[0]
            return target.copy_(made.reshape(target.shape))

        instead[step] = run


def giving(kept: Sequence[Tensor]) -> Callable[..., Any]:
    """An operation whose results are overwritten by what they are held at."""

    def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        results = [args[0]] if is_in_place(func) else tensors_in(out)
        for result, value in zip(results, kept[len(kept) - len(results) :], strict=True):
            result.copy_(value)
        return out

    return run


def _is_finite(tensor: Tensor) -> bool:
    dense = tensor if tensor.layout == torch.strided else tensor.to_sparse_coo()._values()
    return not dense.is_floating_point() or bool(torch.isfinite(dense).all())


def _messages(old: Tensor, reduction: Any, mine: Sequence[ReplayPart], placed: Tensor) -> Tensor:
    """Messages of the old ones' layout, ± λ h in place of ± α h."""
    rest = [a for a in range(old.dim()) if a not in reduction.axes]
    moved = old.permute(*reduction.axes, *rest)
    entries = moved.shape[: len(reduction.axes)].numel()
    flat = moved.reshape(entries, moved.shape[len(reduction.axes) :].numel()).clone()
    for part in mine:
        for mixture, terms in part.groups:
            states = part.scale(mixture, placed, terms).unsqueeze(1) * part.states(mixture)
            first, width = int(part.piece.channels[0]), part.piece.channels.numel()
            if int(part.piece.channels[-1]) == first + width - 1:  # side by side: no index of them
                flat[:, first : first + width].index_copy_(0, part.entries(mixture), states)
            else:
                flat[part.entries(mixture).unsqueeze(1), part.piece.channels] = states
    back = torch.argsort(torch.tensor([*reduction.axes, *rest]))
    return flat.reshape(moved.shape).permute(*back.tolist())


def _matrix(old: Tensor, mine: Sequence[ReplayPart], placed: Tensor) -> Tensor:
    """A matrix of the old one's layout, ± λ in place of its entries."""
    if old.layout != torch.strided:
        coo = old if old.layout == torch.sparse_coo else old.to_sparse_coo()
        values = torch.zeros_like(coo._values())
        for mixture, terms in mine[0].groups:
            values[mixture.entries] = mine[0].scale(mixture, placed, terms).to(values)
        made = torch.sparse_coo_tensor(
            coo._indices(), values, coo.shape, is_coalesced=coo.is_coalesced()
        )
        if old.layout == torch.sparse_coo:
            return made
        return made.to_sparse_csr() if old.layout == torch.sparse_csr else made.to_sparse_csc()
    out = torch.zeros_like(old)
    for number, part in enumerate(mine):
        one = out.dim() == 2
        several = [out] if one else [out[number]] if len(mine) > 1 else list(out)
        for mixture, terms in part.groups:
            at = part.block.recipients[mixture.entries], part.block.rows[mixture.entries]
            for matrix in several:
                matrix.index_put_(at, part.scale(mixture, placed, terms), accumulate=True)
    return out


def versions_of(model: nn.Module) -> tuple[int, ...]:
    """Numbers that change whenever a parameter or buffer is written."""
    tensors = [*model.parameters(), *model.buffers()]
    return tuple(number for t in tensors for number in (id(t), t._version))
