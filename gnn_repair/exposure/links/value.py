"""Links as a mixture of one end's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.checks import as_nodes
from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.notebook import html_view

if TYPE_CHECKING:
    import pandas as pd

ENDS = ("source", "target")


@dataclass(frozen=True, eq=False)
class LinkExposure:
    """The logit of every link as z = β + Σ_g Σ_a λ_a ℓ_a over the messages of one of its ends.

    The other end's embedding is what it is in the frozen model. Then a dot product, any bilinear
    form and any linear map of both ends are affine in the mixture, and answers are exact; what
    else a decoder does is a head. When both ends are reweighted the logit is a product of two
    mixtures, which no linear program decides: that is not offered.
    """

    mixture: Exposure
    """Recipients are links: number ``offset + i`` is link i; sources are nodes of the graph."""
    links: Tensor
    """[2, L] int64: source and target of every link."""
    vary: str
    """The end whose messages are reweighted: ``source`` or ``target``."""

    def __post_init__(self) -> None:
        count = self.mixture.num_recipients
        if self.vary not in ENDS:
            raise InputError(f"vary is {self.vary!r}; choose 'source' or 'target'")
        if tuple(self.links.shape) != (2, count):
            raise InputError(f"links has shape {list(self.links.shape)} instead of [2, {count}]")

    @property
    def num_links(self) -> int:
        """L."""
        return self.links.shape[1]

    @property
    def offset(self) -> int:
        """The number of the first link among the mixture's recipients: how many nodes there are."""
        return self.mixture.num_nodes - self.num_links

    @property
    def exact(self) -> bool:
        """Whether the logit is affine in the mixture, so that answers are closed forms."""
        return self.mixture.head is None

    @property
    def outputs(self) -> str:
        """Always labels: a link is there where its logit is positive."""
        return "labels"

    @property
    def residual(self) -> float | None:
        """Largest difference from the model run with reweighted messages, relative."""
        return self.mixture.residual

    @property
    def frozen_logits(self) -> Tensor:
        """[L] float64: what the model says as it is."""
        return self.mixture.frozen_logits[0, self.mixture.recipients, 0]

    def logits(self, coefficients: Tensor | None = None) -> Tensor:
        """z(λ) of every link, [L] float64; λ = α unless given, [T]: each link has its own."""
        return self.mixture.logits(coefficients)[0, :, 0]

    def numbers(self, links: Any) -> Tensor:
        """Recipients of the mixture for link numbers or a mask [L]; all where None."""
        if links is None:
            return torch.arange(self.num_links) + self.offset
        return as_nodes(links, self.num_links, "links", "link").cpu() + self.offset

    def to_frame(self, links: Sequence[int] | Tensor | None = None) -> pd.DataFrame:
        """One row per term: the link, its ends, group, sender, α and the contribution."""
        frame = self.mixture.to_frame(self.numbers(links))
        number = frame.pop("node").to_numpy() - self.offset
        ends = self.links.cpu().numpy()
        frame.insert(0, "link", number)
        frame.insert(1, "from", ends[0, number])
        frame.insert(2, "to", ends[1, number])
        return frame

    def _repr_html_(self) -> str:
        return html_view(self)

    def __str__(self) -> str:
        lines = str(self.mixture).split("\n")
        exact = "affine in" if self.exact else "a nonlinear head of"
        lines[0] = lines[0].replace("Exposure of", "LinkExposure of", 1)
        counted = f"  {self.num_links:,} links, each {exact} its {self.vary}'s messages; "
        other = ENDS[1 - ENDS.index(self.vary)]
        words = counted + f"the {other} stays as it is"
        return "\n".join([lines[0], words, *lines[2:]])

    def __repr__(self) -> str:
        return (
            f"<LinkExposure of {self.mixture.origin or 'a model'}: {self.num_links:,} links, "
            f"{self.vary}s varied, {self.mixture.num_terms:,} messages>"
        )
