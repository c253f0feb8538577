"""Exposures of models whose last aggregation is followed by a nonlinear, node-wise tail.

    a_v(λ) = o_v + Σ_g Σ_{a ∈ A_{v,g}} λ_a h_{v,a},      z_v(λ) = T_v(a_v(λ))

The aggregate is itself a mixture, so it is held as an :class:`Exposure` whose channels are the D
entries of a_v instead of classes; the tail T is a :class:`TailGraph`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair.exposure.arguments import classes_for, member_for
from gnn_repair.exposure.names import NodeNames
from gnn_repair.exposure.tails.checks import check_tailed
from gnn_repair.exposure.tails.operations import TailGraph
from gnn_repair.exposure.value import Exposure, Group, HeldPart
from gnn_repair.notebook import shown

if TYPE_CHECKING:
    import pandas as pd

Replay = Callable[[Tensor], Tensor]
"""λ [T] → the logits [N, C] of the user's own model run with its messages reweighted."""

CHUNK = 1 << 24
"""Numbers of the aggregate that go through the tail at once: 128 MB, and a few times that for the
values in between."""


@dataclass(frozen=True, eq=False)
class TailedExposure:
    """z⁰ = T(o + Σ_g A_g H_g) of one model."""

    aggregate: Exposure
    """The mixture before the tail: ``contributions`` [1, R, D] are h in the aggregate's channels,
    ``fixed_logits`` [1, N, D] are o, ``frozen_logits`` [1, N, D] are a⁰. Affine steps that follow
    the last propagate are part of h and o already."""
    tail: TailGraph
    """T_v, with D inputs and C outputs."""
    frozen_logits: Tensor
    """[1, N, C] float64: z⁰, the model's own output."""
    residual: float | None = None
    """Largest |model − T(o + Σ λ h)| / max(1, |z⁰|) over certified random λ."""
    replay: Replay | None = None
    """Runs the user's own model with reweighted messages; None once read from a file."""

    def __post_init__(self) -> None:
        check_tailed(self)

    # Sizes -----------------------------------------------------------------------------------

    @property
    def num_members(self) -> int:
        """S, always one."""
        return 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.aggregate.num_nodes

    @property
    def num_recipients(self) -> int:
        """n."""
        return self.aggregate.num_recipients

    @property
    def num_groups(self) -> int:
        """G."""
        return self.aggregate.num_groups

    @property
    def num_terms(self) -> int:
        """T."""
        return self.aggregate.num_terms

    @property
    def num_classes(self) -> int:
        """C."""
        return self.frozen_logits.shape[2]

    # What the mixture holds --------------------------------------------------------------------

    @property
    def groups(self) -> tuple[Group, ...]:
        """The G groups, in the order of their segments."""
        return self.aggregate.groups

    @property
    def recipients(self) -> Tensor:
        """[n] int64: the graph node behind each recipient."""
        return self.aggregate.recipients

    @property
    def segments(self) -> Tensor:
        """[n·G + 1] int64: where the terms of each recipient and group start."""
        return self.aggregate.segments

    @property
    def rows(self) -> Tensor:
        """[T] int32: the table row a term points at."""
        return self.aggregate.rows

    @property
    def coefficients(self) -> Tensor:
        """[1, T]: α ≥ 0, in the model's precision."""
        return self.aggregate.coefficients

    @property
    def state(self) -> Tensor:
        """[1, N, d]: h_v, what a node brings to the final aggregation."""
        return self.aggregate.state

    @property
    def messages(self) -> Tensor:
        """[1, M, d]: what stands behind a term."""
        return self.aggregate.messages

    @property
    def message_rows(self) -> Tensor:
        """[R] int32: the message behind a table row."""
        return self.aggregate.message_rows

    @property
    def sources(self) -> Tensor:
        """[R] int32: the node that sent it."""
        return self.aggregate.sources

    @property
    def graph_starts(self) -> Tensor | None:
        """[N + 1] where recipients are graphs: where each one's nodes start; else None."""
        return self.aggregate.graph_starts

    @property
    def num_sources(self) -> int:
        """How many nodes can send."""
        return self.aggregate.num_sources

    @property
    def root(self) -> bool:
        """Whether h_v itself enters the fixed part through a root transform."""
        return self.aggregate.root

    @property
    def origin(self) -> str:
        """The model this came from."""
        return self.aggregate.origin

    @property
    def embedding(self) -> Tensor | None:
        """[1, N, k]: what the last linear layer reads; None where the model does not show it."""
        return self.aggregate.embedding

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """What tells the model from others; empty: not known."""
        return self.aggregate.fingerprint

    @property
    def n_id(self) -> Tensor | None:
        """[N] int64: of a sampled subgraph, each node's number in the graph."""
        return self.aggregate.n_id

    def local(self, values: Tensor) -> Tensor:
        """Values of the graph's nodes as values of this exposure's; see :meth:`Exposure.local`."""
        return self.aggregate.local(values)

    @property
    def called(self) -> str:
        """How the model was run."""
        return self.aggregate.called

    @property
    def outputs(self) -> str:
        """What the C outputs are: ``classes``, ``labels`` or ``values``."""
        return self.aggregate.outputs

    @property
    def names(self) -> NodeNames:
        """What recipients and senders are called where they are of several kinds."""
        return self.aggregate.names

    @property
    def term_names(self) -> NodeNames:
        """``names`` with those of the groups, where there are several kinds of node."""
        return self.aggregate.term_names

    @property
    def scope(self) -> str:
        """What is reweighted where that is not all, such as ``last hop only``; else empty."""
        return self.aggregate.scope

    @property
    def held(self) -> tuple[HeldPart, ...]:
        """What else lets other nodes' numbers into the logits: it stays as it is."""
        return self.aggregate.held

    @property
    def mass(self) -> Tensor:
        """m_{v,g} = Σ α, [1, n, G] float64; zero where a group is absent."""
        return self.aggregate.mass

    def masses(self, coefficients: Tensor) -> Tensor:
        """Σ_{a ∈ A_{v,g}} λ_a for any coefficients [1, T]; returns [1, n, G] float64."""
        return self.aggregate.masses(coefficients)

    # What follows from the pieces ---------------------------------------------------------------

    def logits(self, coefficients: Tensor | None = None) -> Tensor:
        """z(λ) = T(a(λ)) at the recipients, [1, n, C] float64; λ = α unless given.

        Args:
            coefficients: λ, [1, T] or [T].
        """
        aggregate = self.aggregate.logits(coefficients)[0]
        step = max(1, CHUNK // max(1, self.tail.width))
        parts = zip(aggregate.split(step), self.recipients.split(step), strict=True)
        return torch.cat([self.tail(rows, nodes) for rows, nodes in parts]).unsqueeze(0)

    def margins(self, target: Tensor, coefficients: Tensor | None = None) -> Tensor:
        """min_r z_c(λ) − z_r(λ): the worst-rival margin of class c = ``target``, [1, n] float64.

        Args:
            target: [N] the class of every node of the graph; where it is −1 (not known) the
                margin is NaN.
            coefficients: λ, [1, T]; α unless given.
        """
        classes = classes_for(self, target)[self.recipients]
        logits = self.logits(coefficients)
        index = classes.clamp(min=0).view(1, -1, 1)
        own = logits.gather(2, index)
        margins = (own - logits.scatter(2, index, -torch.inf).amax(2, keepdim=True)).squeeze(-1)
        return margins.masked_fill(classes < 0, torch.nan)

    # Other views of the same value ------------------------------------------------------------

    def restrict(self, nodes: Tensor) -> TailedExposure:
        """The exposure of some recipients only: a boolean mask [N] or node numbers, any order.

        Its ``replay`` takes the coefficients of these recipients' terms; the others keep α.
        """
        aggregate = self.aggregate.restrict(nodes)
        terms = _terms_of(self.aggregate, aggregate.recipients)
        replay, everywhere = self.replay, self.coefficients[0]

        def replay_some(coefficients: Tensor) -> Tensor:
            assert replay is not None
            whole = everywhere.to(torch.float64, copy=True)
            whole[terms] = coefficients.to(whole)
            return replay(whole)

        return replace(self, aggregate=aggregate, replay=replay_some if replay else None)

    def member(self, index: int) -> TailedExposure:
        """The exposure of one member: there is only member 0."""
        member_for(self, index)
        return self

    def to(self, device: str | torch.device) -> TailedExposure:
        """The same exposure with its tensors on another device."""
        return replace(
            self,
            aggregate=self.aggregate.to(device),
            tail=self.tail.to(device),
            frozen_logits=self.frozen_logits.to(device),
        )

    def bind(self, model: Any, data: Any, **settings: Any) -> TailedExposure:
        """Attach the model again to an exposure read from a file, so that it can be replayed.

        Args:
            model: the model that was exposed.
            data: the graph it was exposed on.
            settings: what else was given to ``expose``.
        """
        from gnn_repair.exposure.tails.binding import bound

        return bound(self, model, data, settings)

    # Files ------------------------------------------------------------------------------------

    def to_frame(self, nodes: Any = None, member: int = 0) -> pd.DataFrame:
        """One row a term of these nodes (all unless given): group, source, α, contribution."""
        from gnn_repair.exposure.frames import term_frame

        return term_frame(self, nodes, member)

    def _repr_html_(self) -> str:
        return shown(self)

    def save(self, path: str | Path) -> None:
        """Write the exposure as one safetensors file (the model itself stays outside)."""
        from gnn_repair.exposure.tails.saving import save_tailed

        save_tailed(self, path)

    @classmethod
    def load(cls, path: str | Path) -> TailedExposure:
        """Read what :meth:`save` wrote; everything is validated anew."""
        from gnn_repair.exposure.tails.saving import load_tailed

        return load_tailed(path)

    def __str__(self) -> str:
        from gnn_repair.exposure.tails.description import describe

        return describe(self)

    def __repr__(self) -> str:
        return str(self).partition("\n")[0]


def _terms_of(exposure: Exposure, nodes: Tensor) -> Tensor:
    """The numbers of the terms of these recipients, one recipient after the other."""
    place = torch.full((exposure.num_nodes,), -1, device=nodes.device)
    place[exposure.recipients] = torch.arange(exposure.num_recipients, device=nodes.device)
    ends = exposure.segments[:: exposure.num_groups]
    starts, lengths = ends[place[nodes]], ends.diff()[place[nodes]]
    before = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shift = torch.repeat_interleave(starts - before[:-1], lengths)
    return torch.arange(int(before[-1]), device=nodes.device) + shift
