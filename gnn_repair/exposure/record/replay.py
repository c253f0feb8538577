"""Running the user's own model with its final messages reweighted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import InputError
from gnn_repair.exposure.mixtures import Mixture
from gnn_repair.exposure.model_state import forget_propagations, resting
from gnn_repair.exposure.record.analysis import Site
from gnn_repair.exposure.record.build import Block
from gnn_repair.exposure.record.capture import replaced
from gnn_repair.exposure.record.recorder import Record, Ref

LARGEST_MESSAGES = 1 << 26
"""Numbers in the messages of a sum beyond which its result is replaced instead: 256 MB in float32."""


@dataclass(frozen=True, eq=False)
class Replay:
    """λ [T] → the logits [N, C] of the model itself, in the state it was exposed in."""

    model: nn.Module
    forward: Callable[[], Tensor]
    record: Record
    parts: tuple[tuple[Site, Block, tuple[tuple[Mixture, slice], ...]], ...]
    """Every block with its groups, and where their terms lie among all."""
    values: dict[int, Tensor]
    """What sites hold, by value."""
    order: Tensor | None
    """The place of each term of the mixtures among the exposure's."""
    count: int
    dtype: torch.dtype
    versions: tuple[int, ...]

    @staticmethod
    def of(
        model: nn.Module, forward: Callable[[], Tensor], record: Record,
        blocks: Sequence[tuple[Site, Sequence[Block]]], mixtures: Sequence[Mixture],
        kept: dict[int, Tensor], order: Tensor | None, logits: Tensor,
    ) -> Replay:  # fmt: skip
        """The replay of what was built."""
        parts, start, waiting = [], 0, list(mixtures)
        for site, several in blocks:
            for block in several:
                mine = []
                while waiting and waiting[0].place_of is block:
                    mixture = waiting.pop(0)
                    mine.append((mixture, slice(start, start + mixture.rows.numel())))
                    start += mixture.rows.numel()
                parts.append((site, block, tuple(mine)))
        values = {site.value: kept[site.value] for site, _ in blocks}
        return Replay(
            model, forward, record, tuple(parts), values, order, start, logits.dtype, versions_of(model)
        )

    @torch.no_grad()
    def __call__(self, coefficients: Tensor) -> Tensor:
        """The logits under λ [T], float64."""
        if versions_of(self.model) != self.versions:
            raise InputError(
                f"{type(self.model).__name__} has changed since it was exposed; expose it again"
            )
        with resting(self.model):
            forget_propagations(self.model)
            return self.run(coefficients)

    def run(self, coefficients: Tensor) -> Tensor:
        """The same while the model is at rest already."""
        if not isinstance(coefficients, Tensor) or coefficients.numel() != self.count:
            raise InputError(f"replay needs one coefficient for each of {self.count} terms, [T]")
        placed = coefficients.reshape(-1).to(next(iter(self.values.values())).device, self.dtype)
        if self.order is not None:
            given, placed = placed, torch.empty_like(placed)
            placed[self.order] = given
        instead: dict[int, Callable[..., Any]] = {}
        sites = {site.value: site for site, _, _ in self.parts}
        for number, site in sites.items():
            mine = [(b, groups) for s, b, groups in self.parts if s.value == number]
            self._substitute(instead, site, mine, placed)
        return replaced(self.forward, self.record, instead).double()

    def _substitute(
        self, instead: dict[int, Callable[..., Any]], site: Site, mine: Sequence[Any], placed: Tensor
    ) -> None:
        reduction = site.reduction
        if site.powers is not None or reduction.turned:
            return self._by_value(instead, site, mine, placed)
        if reduction.matrix is not None:
            instead[site.step] = self._argument(site, reduction.matrix, lambda old: _matrix(old, mine, placed))
            return None
        shape = self.record.values[reduction.message].shape
        if torch.Size(shape).numel() > LARGEST_MESSAGES:
            return self._by_value(instead, site, mine, placed)
        instead[site.step] = self._argument(
            site, reduction.message, lambda old: _messages(old, reduction, mine, placed)
        )
        return None

    def _argument(self, site: Site, number: int, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        """Run the operation with another tensor in the place of one of its arguments."""
        shown = self.record.steps[site.step].args
        (place,) = [i for i, a in enumerate(shown) if isinstance(a, Ref) and a.number == number][:1]

        def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            given = list(args)
            given[place] = change(given[place])
            return func(*given, **kwargs)

        return run

    def _by_value(
        self, instead: dict[int, Callable[..., Any]], site: Site, mine: Sequence[Any], placed: Tensor
    ) -> None:
        value = self.values[site.value]
        step = self.record.values[site.value].step

        def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            out = func(*args, **kwargs)
            moved = value.movedim(site.axis, 0) if site.axis is not None else value.unsqueeze(0)
            flat = moved.reshape(len(moved), -1).clone()
            for block, groups in mine:
                for mixture, terms in groups:
                    change = placed[terms] - mixture.coefficients
                    flat[:, block.channels] += mixture.value(change)
            made = flat.reshape(moved.shape)
            made = made.movedim(0, site.axis) if site.axis is not None else made.squeeze(0)
            target = out if isinstance(out, Tensor) else args[0]
            return target.copy_(made.reshape(target.shape))

        instead[step] = run


def _messages(old: Tensor, reduction: Any, mine: Sequence[Any], placed: Tensor) -> Tensor:
    """Messages of the old ones' layout, ± λ h in place of ± α h."""
    rest = [a for a in range(old.dim()) if a not in reduction.axes]
    moved = old.permute(*reduction.axes, *rest)
    entries = moved.shape[: len(reduction.axes)].numel()
    flat = old.new_zeros(entries, moved.numel() // max(1, entries))
    for block, groups in mine:
        for mixture, terms in groups:
            scale = placed[terms] * mixture.sign
            scale = scale if block.scale is None else scale / block.scale[mixture.entries]
            states = scale.unsqueeze(1) * mixture.states[mixture.rows.long()]
            flat[mixture.entries.unsqueeze(1), block.channels] += states
    back = torch.argsort(torch.tensor([*reduction.axes, *rest]))
    return flat.reshape(moved.shape).permute(*back.tolist())


def _matrix(old: Tensor, mine: Sequence[Any], placed: Tensor) -> Tensor:
    """A matrix of the old one's layout, ± λ in place of its entries."""
    if old.layout != torch.strided:
        (_, groups), = mine
        coo = old if old.layout == torch.sparse_coo else old.to_sparse_coo()
        values = torch.zeros_like(coo._values())
        for mixture, terms in groups:
            scale = placed[terms] * mixture.sign
            block = mine[0][0]
            values[mixture.entries] = (scale if block.scale is None else scale / block.scale[mixture.entries]).to(values)
        made = torch.sparse_coo_tensor(coo._indices(), values, coo.shape, is_coalesced=coo.is_coalesced())
        if old.layout == torch.sparse_coo:
            return made
        return made.to_sparse_csr() if old.layout == torch.sparse_csr else made.to_sparse_csc()
    out = torch.zeros_like(old)
    for number, (block, groups) in enumerate(mine):
        part = out if out.dim() == 2 else out[number]
        for mixture, terms in groups:
            scale = placed[terms] * mixture.sign
            scale = scale if block.scale is None else scale / block.scale[mixture.entries]
            part.index_put_((block.recipients[mixture.entries], block.rows[mixture.entries]), scale, accumulate=True)
    return out


def versions_of(model: nn.Module) -> tuple[int, ...]:
    """Numbers that change whenever a parameter or buffer is written."""
    tensors = [*model.parameters(), *model.buffers()]
    return tuple(number for t in tensors for number in (id(t), t._version))
