"""The value everything after exposure works on.

A frozen model's logits at recipient v are a fixed part plus a nonnegative mixture of messages,

    z⁰_v = β_v + Σ_g Σ_{a ∈ A_{v,g}} α_{v,a} ℓ_{v,a},      ℓ_{v,a} = W_g h_{v,a},

and :class:`Exposure` holds exactly these pieces. A *term* (v, g, a) points at a row of a small
table of contributions, so nothing of size terms × classes is ever stored.

Where a nonlinear head T follows the last aggregation, the mixture stands before it,

    a_v(λ) = o_v + Σ_g Σ_{a ∈ A_{v,g}} λ_a h_{v,a},      z_v(λ) = T_v(a_v(λ)),

and the same pieces hold h and o in the D channels of the aggregate instead of C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import gnn_repair
from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import HeadGraph
from gnn_repair.exposure.parts import concatenate_exposures, local_values
from gnn_repair.exposure.pieces import (
    EXACT,
    ONE_KIND,
    NodeNames,
    check_exposure,
    check_with_head,
    classes_for,
    coefficients_for,
    cut_terms,
    member_for,
    mixture_of,
    nodes_for,
    slices,
    through_head,
)
from gnn_repair.exposure.tying import TIED, tie_groups
from gnn_repair.exposure.views import describe, one_line, read_pieces, term_frame, write_exposure
from gnn_repair.files import contents_of
from gnn_repair.kernels import Pattern
from gnn_repair.notebook import html_view
from gnn_repair.published import REACHABLE

if TYPE_CHECKING:
    import pandas as pd

LAST_HOP = "last hop only"
"""Said in a group's rule, and by every answer, where earlier hops of a filter stay inside h."""
SAMPLED = "sampled subgraph"
"""Said by every answer about one: of the whole graph it may be untrue."""
SMALL = 1000
"""Of logits below so many times what counts as a win, a notable part of the wins does not count."""
BY_MEMBER = (
    "coefficients",
    "contributions",
    "fixed_logits",
    "frozen_logits",
    "frozen_aggregate",
    "state",
    "messages",
    "embedding",
)
"""Fields with a leading member axis."""
Replay = Callable[[Tensor], Tensor]
"""λ [T] → the logits [N, C] of the user's own model run with its messages reweighted."""


@dataclass(frozen=True)
class Group:
    """One group of terms that shares a mass: what it is called and where it came from."""

    name: str
    """Such as ``Â``, ``Â²`` or ``head 3``."""
    rule: str
    """How messages were split into coefficient and state, such as ``GCNConv: α = Â``."""
    coefficients_from: str
    """Where α was read, such as ``normalised adjacency`` or ``attention``."""


@dataclass(frozen=True)
class HeldPart:
    """A place of the model that lets other nodes' numbers in and is not reweighted."""

    title: str
    """Where, such as ```norm` (GraphNorm)``."""
    operations: tuple[str, ...]
    """PyTorch's names of what mixes nodes there, such as ``scatter_add``."""
    beside: bool
    """Whether it reaches the logits beside the final messages only; otherwise through them, as
    earlier layers do, and by a skip connection maybe beside them as well."""

    def __str__(self) -> str:
        return f"{self.title} ({', '.join(self.operations)})"


@dataclass(frozen=True, eq=False)
class Exposure:
    """z⁰ = β + Σ_g A_g L_g, for S members (models that share the graph) at once; with a nonlinear
    ``head`` z⁰ = T(o + Σ_g A_g H_g) of one model.

    Sizes: S members, N nodes of the graph, n recipients (n = N unless restricted), G groups,
    T terms, R table rows, M messages, C classes, D channels of the mixture (C without a head), d
    state width. A leading axis "S or 1" has size 1 when all members share the value.
    """

    groups: tuple[Group, ...]
    """The G groups, in the order of their segments."""
    recipients: Tensor
    """[n] int64: the node (or the graph, see ``graph_starts``) behind each recipient."""
    segments: Tensor
    """[n·G + 1] int64: the terms of recipient i and group g are
    ``segments[i·G+g] : segments[i·G+g+1]``; an empty segment means that it lacks that group."""
    rows: Tensor
    """[T] int32: the table row a term points at."""
    coefficients: Tensor
    """[S or 1, T]: α ≥ 0, in the model's precision."""
    contributions: Tensor
    """[S, R, D] float64: ℓ, one row per message and group (before a head: h)."""
    fixed_logits: Tensor
    """[S, N, D] float64: β = z⁰ − Σ α ℓ (before a head: o = a⁰ − Σ α h)."""
    frozen_logits: Tensor
    """[S, N, C] float64: z⁰, the model's own output."""
    state: Tensor
    """[S or 1, N, d]: h_v, what a node brings to the final aggregation."""
    messages: Tensor
    """[S or 1, M, d]: h_a, what stands behind a contribution."""
    message_rows: Tensor
    """[R] int32: the message behind a table row."""
    sources: Tensor
    """[R] int32: the node that sent it (its frozen logits describe the message); −1: nobody, for a
    term without a message, as relaxed masses have one. Where there are several kinds of node they
    are numbered one kind after another (``names``)."""
    root: bool = False
    """Whether h_v itself enters β through a root transform (shown to repairs as context)."""
    origin: str = ""
    """The model this came from."""
    fixed: str = "biases"
    """What sits in β, in words."""
    embedding: Tensor | None = None
    """[S, N, k]: r, what the affine classifier reads; None where the model does not show it."""
    residual: float | None = None
    """Largest difference between the model run with other admissible λ and what the exposure says,
    relative to what moved; None: exact by algebra."""
    fingerprint: tuple[str, ...] = ()
    """[S]: a digest of each member's weights, the same on every graph; empty: not known."""
    called: str = ""
    """How the model was run, such as ``forward(x, edge_index, edge_weight=data.edge_attr)``."""
    n_id: Tensor | None = None
    """[N] int64: of a sampled subgraph, each node's number in the graph; witnesses and frames name
    nodes by it. A node that was sampled several times stands there several times."""
    outputs: str = "classes"
    """What the C columns are: rival ``classes``, ``labels`` (each there where its own logit is
    positive) or plain ``values``."""
    graph_starts: Tensor | None = None
    """[N + 1] int64, where recipients are graphs and sources their nodes: the nodes of graph i are
    ``graph_starts[i] : graph_starts[i + 1]``. None: recipients and sources are nodes alike."""
    names: NodeNames = ONE_KIND
    """What recipients and senders are called where they are of several kinds."""
    held: tuple[HeldPart, ...] = ()
    """Everything else that lets other nodes' numbers into the logits: it stays as it is."""
    head: HeadGraph | None = None
    """T_v, the nonlinear rest of the model with D inputs and C outputs; None: the logits are the
    mixture itself."""
    frozen_aggregate: Tensor | None = None
    """[1, N, D] float64 with a head: a⁰, what the head reads in the frozen model."""
    replay: Replay | None = None
    """With a head: runs the user's own model with reweighted messages; None once read from a
    file."""
    forward: Callable[..., Any] | None = None
    """What ``expose`` was given under this name; None once read from a file."""

    def __post_init__(self) -> None:
        with torch.no_grad():
            check_exposure(self)
        if self.coefficients.requires_grad:
            self.__dict__.pop("mass", None)  # worked out by the check, without gradients

    # Sizes -----------------------------------------------------------------------------------

    @property
    def num_members(self) -> int:
        """S."""
        return self.contributions.shape[0]

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.fixed_logits.shape[1]

    @property
    def num_sources(self) -> int:
        """How many can send: N, or all of ``names.senders`` where these are of other kinds."""
        return self.names.count(self.num_nodes)

    @property
    def num_recipients(self) -> int:
        """n."""
        return self.recipients.numel()

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.groups)

    @property
    def num_terms(self) -> int:
        """T."""
        return self.rows.numel()

    @property
    def num_classes(self) -> int:
        """C."""
        return self.frozen_logits.shape[2]

    @property
    def scope(self) -> str:
        """What is reweighted where that is not all, such as ``last hop only``, and how large logits
        are where wins may be too small to count; else empty."""
        parts = [LAST_HOP] * any(LAST_HOP in group.rule for group in self.groups)
        beside = [str(part) for part in self.held if part.beside]
        parts += [f"model with {' and '.join(beside)} held"] if beside else []
        z = self.frozen_logits
        spread = z.amax(2) - z.amin(2) if self.outputs == "classes" else z.abs()
        scale = float(spread.max()) if spread.numel() and self.outputs != "values" else 0.0
        small = 0 < scale < SMALL * REACHABLE
        parts += [f"logits of scale {scale:.1g}, where a win takes {REACHABLE:g}"] * small
        return ", ".join([*parts, *[SAMPLED] * (self.n_id is not None)])

    @property
    def term_names(self) -> NodeNames:
        """``names`` with those of the groups, where there are several kinds of node."""
        return self.names.with_groups(tuple(group.name for group in self.groups))

    # What follows from the pieces -------------------------------------------------------------

    @cached_property
    def terms_by_recipient(self) -> Pattern:
        """Terms as a sparse pattern, recipients × table rows."""
        return Pattern(self.segments[:: self.num_groups], self.rows, self.contributions.shape[1])

    @cached_property
    def mass(self) -> Tensor:
        """m_{v,g} = Σ α, [S or 1, n, G] float64; zero where a group is absent."""
        return self._masses(self.coefficients)

    def masses(self, coefficients: Tensor) -> Tensor:
        """Σ_{a ∈ A_{v,g}} λ_a for any coefficients [S or 1, T]; returns [S or 1, n, G] float64."""
        return self._masses(coefficients_for(self, coefficients))

    def _masses(self, coefficients: Tensor) -> Tensor:
        lengths = self.segments.diff()
        if lengths.numel() == 0:  # no recipients at all
            return self.segments.new_zeros((len(coefficients), 0, self.num_groups)).double()
        sums = []
        for some in slices(lengths.numel(), 1 + self.num_terms // lengths.numel()):
            terms = slice(int(self.segments[some.start]), int(self.segments[some.stop]))
            shown = coefficients[:, terms].double().t().contiguous()
            sums.append(
                torch.segment_reduce(shown, "sum", lengths=lengths[some], axis=0, initial=0.0)
            )
        return torch.cat(sums).t().reshape(-1, self.num_recipients, self.num_groups)

    @cached_property
    def aggregate(self) -> Exposure:
        """What the head reads, as an exposure whose D channels stand in place of classes; without a
        head this exposure itself."""
        if self.head is None:
            return self
        return self._altered(
            head=None,
            frozen_logits=self.frozen_aggregate,
            frozen_aggregate=None,
            residual=None,
            replay=None,
        )

    def _altered(self, **changes: Any) -> Exposure:
        """The same with other fields, whose pieces were checked with this exposure."""
        other = object.__new__(Exposure)
        other.__dict__.update(self.__dict__)
        other.__dict__.update(changes)
        return other

    def with_head(
        self,
        head: HeadGraph,
        frozen_logits: Tensor,
        residual: float | None = None,
        replay: Replay | None = None,
    ) -> Exposure:
        """The exposure of the model in which ``head`` follows this mixture.

        Args:
            head: T, with as many inputs as this exposure has channels.
            frozen_logits: [1, N, C] float64: z⁰, the model's own output.
            residual: see :attr:`residual`.
            replay: see :attr:`replay`.
        """
        made = self._altered(
            head=head,
            frozen_aggregate=self.aggregate.frozen_logits,
            frozen_logits=frozen_logits,
            residual=residual,
            replay=replay,
        )
        made.__dict__.pop("aggregate", None)
        with torch.no_grad():
            check_with_head(made)
        return made

    def logits(self, coefficients: Tensor | None = None) -> Tensor:
        """z(λ) at the recipients, [S, n, C] float64; λ = α unless given.

        Args:
            coefficients: λ, [S or 1, T], or [T] for all members alike.
        """
        if self.head is not None:
            aggregate = self.aggregate.logits(coefficients)[0]
            return through_head(self.head, aggregate, self.recipients).unsqueeze(0)
        mixed = self.mixture(coefficients)
        if mixed.requires_grad:
            return self.fixed_logits[:, self.recipients] + mixed
        for some in slices(self.num_recipients, self.num_members * self.num_classes):
            mixed[:, some] += self.fixed_logits[:, self.recipients[some]]
        return mixed

    def mixture(self, coefficients: Tensor | None = None) -> Tensor:
        """Σ λ ℓ at the recipients, [S, n, D] float64; λ = α unless given."""
        given = coefficients is not None
        coefficients = coefficients_for(self, coefficients) if given else self.coefficients
        return mixture_of(self.terms_by_recipient, coefficients, self.contributions)

    def margins(self, target: Tensor, coefficients: Tensor | None = None) -> Tensor:
        """min_r z_c(λ) − z_r(λ): the worst-rival margin of class c = ``target``, [S, n] float64.

        Args:
            target: [N] the class of every node of the graph; where it is −1 (not known) the
                margin is NaN.
            coefficients: λ, [S or 1, T]; α unless given.
        """
        classes = classes_for(self, target, "target")[self.recipients]
        logits = self.logits(coefficients)
        index = classes.clamp(min=0).expand(logits.shape[:2]).unsqueeze(-1)
        own = logits.gather(2, index)
        margins = (own - logits.scatter(2, index, -torch.inf).amax(2, keepdim=True)).squeeze(-1)
        return margins.masked_fill(classes < 0, torch.nan)

    # Other views of the same value ------------------------------------------------------------

    def restrict(self, nodes: Tensor | Sequence[int]) -> Exposure:
        """The exposure of some recipients only: a boolean mask [N] or node numbers, any order.

        Its ``replay`` takes the coefficients of these recipients' terms; the others keep α.
        """
        chosen = nodes_for(self, nodes)
        place = torch.full((self.num_nodes,), -1, device=chosen.device)
        place[self.recipients] = torch.arange(self.num_recipients, device=chosen.device)
        positions = place[chosen]
        if bool((positions < 0).any()):
            lost = self.names.node(int(chosen[positions < 0][0]))
            raise InputError(f"{lost} is not among the recipients")
        segments, terms = cut_terms(self.segments.view(-1), self.num_groups, positions)
        replay, everywhere = self.replay, self.coefficients[0]

        def replay_some(coefficients: Tensor) -> Tensor:
            assert replay is not None
            whole = everywhere.to(torch.float64, copy=True)
            whole[terms] = coefficients.to(whole)
            return replay(whole)

        return replace(
            self,
            recipients=chosen,
            segments=segments,
            rows=self.rows[terms],
            coefficients=self.coefficients[:, terms],
            replay=replay_some if replay else None,
        )

    def member(self, index: int) -> Exposure:
        """The exposure of one member alone (S = 1); −1 is the last one."""
        number = member_for(self, index)
        if self.num_members == 1:
            return self
        pick = slice(number, number + 1)
        cut = {name: getattr(self, name) for name in BY_MEMBER}
        cut = {
            name: value[pick] if value.shape[0] == self.num_members else value
            for name, value in cut.items()
            if value is not None
        }
        return replace(self, fingerprint=self.fingerprint[pick], **cut)

    def tied(self) -> Exposure:
        """The exposure in which a sender has one weight in all groups that weigh alike.

        Groups are joined that have the same senders, with coefficients that differ by one factor
        per recipient at most: such as pools of the same nodes after every layer. The joined group
        has the mass of the first, and a message contributes what it does in all of them.
        """
        return tie_groups(self)

    @staticmethod
    def concatenate(parts: Sequence[Exposure]) -> Exposure:
        """Exposures of one model on several (sampled) graphs as one, recipients part by part.

        Nothing is merged: a node that several parts hold stands there once for each, with the
        state that it had there, and ``n_id`` says who it is.
        """
        return concatenate_exposures(Exposure, parts)

    def local(self, values: Tensor) -> Tensor:
        """Values of the graph's nodes (labels, a mask) as values of this exposure's nodes.

        Of a mask what is true of recipients; without ``n_id`` the values themselves.
        """
        return local_values(self, values)

    def to(self, device: str | torch.device) -> Exposure:
        """The same exposure with its tensors on another device."""
        moved = {name: tensor.to(device) for name, tensor in self._tensors().items()}
        head = None if self.head is None else self.head.to(device)
        return replace(self, head=head, **moved)  # type: ignore[arg-type]

    def bind(self, model: Any, data: Any, **settings: Any) -> Exposure:
        """Attach the model again to an exposure read from a file, once it is known to be the same.

        Behind a nonlinear head it can then be replayed; repairs know its ``forward=`` again.

        Args:
            model: the model that was exposed.
            data: the graph it was exposed on.
            settings: what else was given to ``expose``.
        """
        fresh = gnn_repair.expose(model, data, **{"outputs": self.outputs, **settings})
        if any(TIED in group.rule for group in self.groups):
            fresh = fresh.tied()
        known = fresh.num_nodes == self.num_nodes
        here = fresh.restrict(self.recipients.to(fresh.recipients.device)) if known else None
        device = self.recipients.device
        if here is None or not (
            torch.equal(here.segments.to(device), self.segments)
            and torch.equal(here.rows.to(device), self.rows)
        ):
            raise InputError(
                "the model sends other messages than the exposure holds; bind the model and the "
                "data that were exposed"
            )
        frozen = fresh.frozen_logits.to(device)
        limit = settings.get("tolerance") or EXACT[fresh.coefficients.dtype]
        scale = frozen.abs().amax(2, keepdim=True).clamp(min=1)
        same = frozen.shape == self.frozen_logits.shape
        same &= (fresh.head is None) == (self.head is None)
        if not same or not float(((frozen - self.frozen_logits).abs() / scale).max()) <= limit:
            raise InputError(
                "the model's logits are not those of the exposure; bind the model that was "
                "exposed, with the parameters it had"
            )
        return replace(self, replay=here.replay, forward=fresh.forward)

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to_frame(self, nodes: Any = None, member: int = 0) -> pd.DataFrame:
        """One row per term of these nodes (all unless given): group, source, α, contribution."""
        return term_frame(self, nodes, member)

    def _repr_html_(self) -> str:
        return html_view(self)

    # Files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the exposure as one safetensors file (the model itself stays outside)."""
        write_exposure(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Exposure:
        """Read what :meth:`save` wrote; everything is validated anew."""
        pieces = read_pieces(path)
        with contents_of(path):
            pieces["groups"] = tuple(Group(*texts) for texts in pieces["groups"])
            pieces["fingerprint"] = tuple(pieces["fingerprint"])
            pieces["names"] = NodeNames.of_header(pieces["names"])
            pieces["held"] = tuple(HeldPart(t, tuple(n), b) for t, n, b in pieces["held"])
            return cls(**pieces)

    def __str__(self) -> str:
        return describe(self)

    def __repr__(self) -> str:
        return one_line(self)


def derived_exposure(**pieces: Any) -> Exposure:
    """An exposure whose fixed logits were just made by taking the mixture off the frozen ones."""
    made = object.__new__(Exposure)
    defaults = {one.name: one.default for one in fields(Exposure) if one.default is not MISSING}
    made.__dict__.update(defaults | pieces)
    with torch.no_grad():
        check_exposure(made, derived=True)
    if made.coefficients.requires_grad:
        made.__dict__.pop("mass", None)
    return made
