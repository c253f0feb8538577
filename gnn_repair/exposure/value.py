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

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, astuple, dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import gnn_repair
from gnn_repair.checks import as_member
from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.heads.head import ANSWERS, followed_by, kind_of, read_head, write_head
from gnn_repair.exposure.heads.operations import HeadGraph, Operation
from gnn_repair.exposure.pieces import (
    EXACT,
    NOUNS,
    ONE_KIND,
    OPTIONAL,
    PIECES,
    RECONSTRUCTION,
    NodeNames,
    check_exposure,
    check_with_head,
    classes_for,
    coefficients_for,
    cut_terms,
    mixture_of,
    nodes_for,
    recipient_column,
    reconstruction,
    slices,
    through_head,
)
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
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
BY_MEMBER = tuple(name for name, (axes, _) in PIECES.items() if axes[0] in "S?")
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
            weights = coefficients[:, terms].double().t().contiguous()
            sums.append(
                torch.segment_reduce(weights, "sum", lengths=lengths[some], axis=0, initial=0.0)
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
        exposure = self._altered(
            head=head,
            frozen_aggregate=self.aggregate.frozen_logits,
            frozen_logits=frozen_logits,
            residual=residual,
            replay=replay,
        )
        exposure.__dict__.pop("aggregate", None)
        with torch.no_grad():
            check_with_head(exposure)
        return exposure

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
        if coefficients is None:
            weights = self.coefficients
        else:
            weights = coefficients_for(self, coefficients)
        return mixture_of(self.terms_by_recipient, weights, self.contributions)

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
        best_rival = logits.scatter(2, index, -torch.inf).amax(2, keepdim=True)
        margins = (logits.gather(2, index) - best_rival).squeeze(-1)
        return margins.masked_fill(classes < 0, torch.nan)

    # Other views of the same value ------------------------------------------------------------

    def restrict(self, nodes: Tensor | Sequence[int]) -> Exposure:
        """The exposure of some recipients only: a boolean mask [N] or node numbers, any order.

        Of no nodes it is an exposure without recipients, of which nothing can be asked.
        Its ``replay`` takes the coefficients of these recipients' terms; the others keep α.
        """
        chosen = nodes_for(self, nodes)
        position_of = torch.full((self.num_nodes,), -1, device=chosen.device)
        position_of[self.recipients] = torch.arange(self.num_recipients, device=chosen.device)
        positions = position_of[chosen]
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
        number = as_member(index, self.num_members)
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
        parts = list(parts) if isinstance(parts, Iterable) else [parts]
        if not parts:
            raise InputError("nothing cannot be joined; give at least one exposure")
        for number, part in enumerate(parts):
            if not isinstance(part, Exposure):
                kind = type(part).__name__
                raise InputError(f"part {number}, of type {kind}, cannot be joined; give exposures")
        if any(part.head is not None for part in parts):
            raise InputError(
                "exposures of models with a nonlinear head cannot be joined; ask each, and join "
                "the answers' frames"
            )
        if not all(sends_to_itself(part) for part in parts):
            raise InputError(
                "exposures of graphs, or of several kinds of node, cannot be joined yet"
            )
        for number, part in enumerate(parts[1:], 1):
            for name in SAME:
                if getattr(part, name) != getattr(parts[0], name):
                    raise InputError(
                        f"part {number} has another {name} than part 0; join exposures of one model"
                    )
            if _sizes(part) != _sizes(parts[0]):
                raise InputError(
                    f"part {number} differs from part 0 in members, classes, width or in having "
                    "node numbers (n_id); join exposures of one model on parts of one graph"
                )
        return _one_after_another(parts)

    def local(self, values: Tensor) -> Tensor:
        """Values of the graph's nodes (labels, a mask) as values of this exposure's nodes.

        Of a mask what is true of recipients; without ``n_id`` the values themselves.
        """
        if not isinstance(values, Tensor) or values.dim() == 0:
            raise InputError(f"values is {values!r:.60}; give a tensor with a row for each node")
        if self.n_id is None:
            if values.shape[0] != self.num_nodes:
                raise InputError(
                    f"values has {values.shape[0]} rows for {self.num_nodes} "
                    f"{self.names.recipient}s; give a row for each"
                )
            return values
        largest = int(self.n_id.max()) if self.num_nodes else -1
        if largest >= values.shape[0]:
            raise InputError(
                f"values has {values.shape[0]} rows but node {largest} is in the exposure; give a "
                "row for each node of the graph that was sampled from"
            )
        by_node = values[self.n_id.to(values.device)]
        if by_node.dtype != torch.bool:
            return by_node
        of_recipients = torch.zeros_like(by_node)
        places = self.recipients.to(by_node.device)
        of_recipients[places] = by_node[places]
        return of_recipients

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
        same_size = fresh.num_nodes == self.num_nodes
        here = fresh.restrict(self.recipients.to(fresh.recipients.device)) if same_size else None
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
        """One row per term of these nodes (all unless given): group, source, α, contribution.

        The contribution ℓ has one column per class; before a nonlinear head single messages
        contribute no logits, so those columns are left out. Where graphs are classified the
        recipient is called ``graph``, ``source`` is a node's number in the whole list and ``node``
        its number in that graph; −1 where ``source_type`` says that a cluster or an edge is
        pooled. Where senders are of several kinds, ``source_type`` says which and ``source`` is
        the number within that kind.
        """
        import pandas as pd  # which loads slowly

        part = (self if nodes is None else self.restrict(nodes)).member(member)
        slot = torch.repeat_interleave(part.segments.diff()).cpu()
        recipients = part.recipients.cpu()[slot // part.num_groups]
        row = part.rows.long()
        senders = part.sources[row].cpu()
        kind, number = part.names.split(senders.numpy())
        pooled = part.graph_starts is not None
        columns: dict[str, Any] = {
            "graph" if pooled else "node": part._named(recipients),
            "group": [part.groups[g].name for g in (slot % part.num_groups).tolist()],
        }
        if len(part.names.senders) > pooled:
            columns["source_type"] = kind
        columns["source"] = number if part.n_id is None else part._named(senders)
        if part.graph_starts is not None:
            first = part.graph_starts.cpu()[recipients]
            columns["node"] = np.where(kind == "node", columns["source"] - first.numpy(), -1)
        columns["coefficient"] = part.coefficients[0].cpu().numpy()
        frame = pd.DataFrame(columns)
        if part.head is not None:
            return frame
        logits = pd.DataFrame(part.contributions[0, row].cpu().numpy()).add_prefix("logit ")
        return pd.concat([frame, logits], axis=1)

    def _named(self, nodes: Tensor) -> Any:
        """The graph's numbers of nodes; −1, nobody, stays."""
        if self.n_id is None:
            return nodes.numpy()
        names = self.n_id.cpu()[nodes.clamp(min=0).long()]
        return torch.where(nodes < 0, nodes, names).numpy()

    def _repr_html_(self) -> str:
        return html_view(self)

    # Files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the exposure as one safetensors file (the model itself stays outside)."""
        tensors = self._tensors()
        header = {name: getattr(self, name) for name in HEADER}
        header["groups"] = [list(astuple(group)) for group in self.groups]
        header["fingerprint"] = list(self.fingerprint)
        header["names"] = self.names.header() if self.names.typed else None
        header["held"] = [[part.title, list(part.operations), part.beside] for part in self.held]
        header["head"] = None if self.head is None else write_head(self.head, tensors)
        one, other = self.messages, self.state
        if one.data_ptr() == other.data_ptr() and one.shape == other.shape:
            del tensors["messages"]  # a second name of one matrix
        said = {n: v for n, v in header.items() if n not in ABSENT or v != ABSENT[n]}
        save_tensors(path, KIND, said, tensors)

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
        members = f"{self.num_members} members, " if self.num_members > 1 else ""
        return (
            f"<Exposure of {self.origin or 'a model'}: {members}{_recipients(self)}, "
            f"{counted_outputs(self)}, {self.num_groups} group{'s' * (self.num_groups > 1)}, "
            f"{self.num_terms:,} messages{_follows(self)}>"
        )


def derived_exposure(**pieces: Any) -> Exposure:
    """An exposure whose fixed logits were just made by taking the mixture off the frozen ones."""
    exposure = object.__new__(Exposure)
    optional = [field for field in fields(Exposure) if field.default is not MISSING]
    exposure.__dict__.update({field.name: field.default for field in optional} | pieces)
    with torch.no_grad():
        check_exposure(exposure, derived=True)
    if exposure.coefficients.requires_grad:
        exposure.__dict__.pop("mass", None)
    return exposure


# In words -----------------------------------------------------------------------------------------


def describe(exposure: Exposure) -> str:
    """What was exposed, by which rule, and how exactly: the text of ``print(exposure)``."""
    members = exposure.num_members
    head = exposure.head
    lines = [
        f"Exposure of {exposure.origin or 'a model'}"
        + (f", {members} members" * (members > 1))
        + _follows(exposure),
        f"  {_recipients(exposure)}, {counted_outputs(exposure)}, "
        f"{exposure.num_terms:,} messages ({_spread(exposure)})",
    ]
    if exposure.called:
        lines.append(f"  called as {exposure.called}")
    numbered = list(enumerate(exposure.groups))
    for rule, groups in groupby(numbered, lambda item: (item[1].rule, item[1].coefficients_from)):
        lines.append(f"  {rule[0]}; coefficients from {rule[1]}")
        lines += [f"    group {group.name}: {_size(exposure, g)}" for g, group in groups]
    if exposure.graph_starts is not None and exposure.num_groups > 1:
        some = len(alike_groups(exposure)[0]) < exposure.num_groups
        note = "every group has weights of its own, also where a node is in several"
        lines.append(f"    {note}" + "; tied() gives it one for all that weigh alike" * some)
    root = "; the node's own state is context for repairs" if exposure.root else ""
    fixed = "fixed logits" if head is None else f"aggregate of {head.width} channels; fixed"
    lines.append(f"  {fixed}: {exposure.fixed}{root}")
    for beside, words in ((True, "held as it is"), (False, "before the messages, held as it is")):
        parts = ", ".join(str(part) for part in exposure.held if part.beside == beside)
        lines += [f"  {words}: {parts}"] if parts else []
    if head is not None:
        lines.append(f"  {ANSWERS[kind_of(head)]}")
    exact = f"  reconstruction {reconstruction(exposure):.1e}"
    if exposure.residual is not None:
        exact += f"; residual {exposure.residual:.1e} on the model run with reweighted messages"
    elif head is None:
        exact += "; exact by algebra"
    if head is not None and exposure.replay is None:
        exact += "; not bound to its model (use bind)"
    lines.append(exact)
    return "\n".join(lines)


def _follows(exposure: Exposure) -> str:
    return "" if exposure.head is None else f", followed by: {followed_by(exposure.head)}"


def counted_outputs(exposure: Exposure) -> str:
    """``18 classes``, ``121 labels``, ``1 value``."""
    number = exposure.num_classes
    return f"{number} {NOUNS[exposure.outputs] if number == 1 else exposure.outputs}"


def _recipients(exposure: Exposure) -> str:
    """``3 nodes``, and of how many where some were left out."""
    count, nodes = exposure.num_recipients, exposure.num_nodes
    if exposure.graph_starts is not None:
        some = f" of {nodes:,}" * (count < nodes)
        noun = "graph" if nodes == 1 else "graphs"
        return f"{count:,}{some} {noun} with {int(exposure.graph_starts[-1]):,} nodes"
    noun = "node" if nodes == 1 else "nodes"
    kind = f" ({exposure.names.recipient})" if exposure.names.by_type else ""
    some = "" if count == nodes else f" of {nodes:,}"
    sampled = " of a sampled subgraph" * (exposure.n_id is not None)
    return f"{count:,}{some} {noun}{kind}{sampled}"


def _size(exposure: Exposure, group: int) -> str:
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)[:, group]
    absent = int((lengths == 0).sum())
    mass = exposure.mass[:, lengths > 0, group]
    text = f"{int(lengths.sum()):,} messages"
    if mass.numel():
        low, high = f"{float(mass.min()):.4g}", f"{float(mass.max()):.4g}"
        text += f", mass {low}" if low == high else f", mass {low} to {high}"
    noun = recipient_column(exposure.names)
    return text + (f", absent at {absent:,} {noun}{'s' * (absent > 1)}" if absent else "")


def _spread(exposure: Exposure) -> str:
    counts = exposure.segments[:: exposure.num_groups].diff()
    if counts.numel() == 0:
        return "none"
    low, high, mean = int(counts.min()), int(counts.max()), float(counts.double().mean())
    noun = recipient_column(exposure.names)
    if low == high:
        return f"{low:,} per {noun}"
    return f"{low:,} to {high:,} per {noun}, {mean:.1f} on average"


# In files -----------------------------------------------------------------------------------------


KIND = "gnn-repair exposure"
WITH_HEAD = "gnn-repair tailed exposure"
"""What version 0.2 called the file of an exposure with a head."""
HEADER = {
    "groups": list, "root": bool, "origin": str, "fixed": str, "residual": float | None,
    "fingerprint": list, "called": str, "names": dict | None, "outputs": str, "held": list,
    "head": dict | None,
}  # fmt: skip
ABSENT: dict[str, Any] = {
    "fingerprint": [], "called": "", "names": None, "outputs": "classes", "held": [], "head": None,
}  # fmt: skip
"""What files may leave out, and what that means; of tensors also messages that are the state."""


def read_pieces(path: str | Path) -> dict[str, Any]:
    """What :meth:`Exposure.save` wrote, by the names of its fields; lists of texts as lists."""
    header, tensors = load_tensors(path, KIND, formerly=(WITH_HEAD,))
    with contents_of(path):
        if "aggregate" in header:
            header, tensors = _as_written_now(header, tensors)
        header = {**ABSENT, **header}
        head = None if header["head"] is None else read_head(header["head"], tensors)
        _check_header(header)
        _check_tensors(tensors)
    # Since an exposure may hold one matrix as both, it does so after reading, too.
    return {"messages": tensors["state"], **header, **tensors, "head": head}


def _as_written_now(header: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, Any]:
    """Header and tensors of an exposure with a head that version 0.2 wrote."""
    check_fields(header, {"aggregate": dict, "tail": dict, "residual": float | None}, "header")
    names = {"frozen_logits": "frozen_logits", "aggregate/frozen_logits": "frozen_aggregate"}
    moved = {
        names.get(name, name.removeprefix("aggregate/").replace("tail/", "head/", 1)): tensor
        for name, tensor in tensors.items()
    }
    return {**header["aggregate"], "head": header["tail"], "residual": header["residual"]}, moved


def _check_header(header: dict[str, Any]) -> None:
    check_fields(header, HEADER, "header")
    for group in header["groups"]:
        if not isinstance(group, list) or [type(text) for text in group] != [str] * 3:
            raise InputError("a group is not named by three texts")
    for part in header["held"]:
        fit = isinstance(part, list) and [type(item) for item in part] == [str, list, bool]
        if not fit or any(not isinstance(name, str) for name in part[1]):
            raise InputError(f"a held part is {str(part)[:60]!r}: not a title, names and a mark")
    if any(not isinstance(digest, str) for digest in header["fingerprint"]):
        raise InputError("its fingerprint is not a list of texts")
    if header["residual"] is not None and header["residual"] < 0:
        raise InputError(f"residual is {header['residual']}, which is negative")


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    """What the exposure itself does not check when it is built."""
    if unknown := sorted(tensors.keys() - PIECES.keys()):
        raise InputError(f"it holds {unknown[0][:80]!r}, which is no piece of an exposure")
    if missing := sorted(PIECES.keys() - {*OPTIONAL, "messages"} - tensors.keys()):
        raise InputError(f"it lacks {missing[0]}, which every exposure has")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name} holds NaN or infinite values")


# One weight per sender in several groups ----------------------------------------------------------


TIED = "one weight per sender in all of these groups"
"""Said in the rule of a group that stands for several."""
MARK = " tied"
"""At the end of a tied exposure's fingerprints: its repairs fit no other exposure of the model."""


def alike_groups(exposure: Exposure) -> tuple[list[list[int]], list[Tensor]]:
    """Groups by number, those together that can share their weights; and every group's terms.

    The terms come by recipient and within one by sender, so that those of alike groups match.
    """
    count = exposure.num_groups
    lengths = exposure.segments.diff()
    slot = torch.repeat_interleave(lengths)
    senders = exposure.sources[exposure.rows.long()].long()
    order = torch.argsort(slot * (exposure.num_sources + 1) + senders + 1, stable=True)
    terms = [order[slot % count == group] for group in range(count)]
    # Clusters and edges have numbers by which those of another pool may be called, too.
    pooled = exposure.graph_starts is not None and exposure.names.typed
    num_nodes = exposure.names.senders[0][1] if pooled else exposure.num_sources
    close = EXACT.get(exposure.coefficients.dtype, RECONSTRUCTION)
    classes, first = list[list[int]](), dict[int, tuple[Tensor, Tensor]]()
    for group, of_group in enumerate(terms):
        mass = torch.repeat_interleave(exposure.mass[:, :, group], lengths[group::count], 1)
        key = torch.stack([slot[of_group] // count, senders[of_group]])
        shares = exposure.coefficients[:, of_group].double() / mass
        named = bool(((senders[of_group] >= 0) & (senders[of_group] < num_nodes)).all())
        for members in classes:
            other, weights = first.get(members[0], (key[:0], shares))
            if named and torch.equal(key, other) and torch.allclose(shares, weights, close, 0.0):
                members.append(group)
                break
        else:
            classes.append([group])
            first |= {group: (key, shares)} if named else {}
    return classes, terms


def tie_groups(exposure: Exposure) -> Exposure:
    """The exposure in which groups that weigh the same senders alike are one."""
    classes, terms = alike_groups(exposure)
    if exposure.num_groups == 1:
        return exposure
    if len(classes) == exposure.num_groups:
        raise InputError(
            "no two groups of this exposure can share their weights: that needs the same nodes as "
            "senders at every recipient, with coefficients that differ by one factor at most"
        )
    mixture, rows = exposure.aggregate, exposure.rows.long()
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)
    counts = lengths[:, [members[0] for members in classes]].reshape(-1)
    slot = torch.repeat_interleave(counts)
    first, shared = torch.empty_like(slot), torch.empty_like(rows)
    factors = torch.empty_like(exposure.coefficients, dtype=torch.float64)
    for number, members in enumerate(classes):
        places = (slot % len(classes) == number).nonzero().view(-1)
        first[places] = terms[members[0]]
        for group in members:
            ratio = exposure.mass[:, :, group] / exposure.mass[:, :, members[0]]
            factors[:, terms[group]] = ratio[:, slot[places] // len(classes)]
            shared[terms[group]] = places  # the term that it is now
    numbers = torch.arange(len(slot), dtype=torch.int32, device=slot.device)
    alpha = exposure.coefficients[:, first]
    table = mixture.contributions.new_zeros(exposure.num_members, len(slot), mixture.num_classes)
    table.index_add_(1, shared, factors.unsqueeze(2) * mixture.contributions[:, rows])
    read = torch.stack([shared, exposure.message_rows[rows].long()]).unique(dim=1)
    messages = exposure.messages.new_zeros(
        len(exposure.messages), len(slot), exposure.state.shape[2]
    ).index_add_(1, read[0], exposure.messages[:, read[1]])
    segments, fixed = exposure.segments.new_zeros(len(counts) + 1), mixture.fixed_logits.clone()
    segments[1:] = counts.cumsum(0)
    pattern = Pattern(segments[:: len(classes)], numbers, len(slot))
    fixed[:, exposure.recipients] += mixture.mixture() - mixture_of(pattern, alpha, table)
    tied = replace(
        mixture,
        groups=tuple(_joined([exposure.groups[g] for g in members]) for members in classes),
        segments=segments,
        rows=numbers,
        coefficients=alpha,
        contributions=table,
        fixed_logits=fixed,
        messages=messages,
        message_rows=numbers,
        sources=exposure.sources[rows[first]],
        fingerprint=tuple(digest + MARK for digest in exposure.fingerprint),
    )
    replay = exposure.replay
    if exposure.head is None:
        return tied
    run = None if replay is None else lambda lam: replay(lam.reshape(-1)[shared] * factors[0])
    return tied.with_head(exposure.head, exposure.frozen_logits, exposure.residual, run)


def _joined(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    name = " + ".join(group.name for group in groups)
    return replace(groups[0], name=name, rule=f"{groups[0].rule}; {TIED}")


# A part of one ------------------------------------------------------------------------------------


class Focus(NamedTuple):
    """A part of an exposure, and where its nodes and terms stand in the whole."""

    exposure: Exposure
    """Nodes and table rows numbered anew; recipients in the order that they were asked for."""
    nodes: Tensor
    """[k] int64: the whole exposure's node behind each of its own."""
    terms: Tensor
    """[t] int64: likewise for its terms."""


def focus(exposure: Exposure, positions: Tensor) -> Focus:
    """The part about the recipients at ``positions`` [n] int64, each once."""
    segments, terms = cut_terms(exposure.segments, exposure.num_groups, positions)
    rows, row_of = _kept(exposure.rows[terms], exposure.contributions.shape[1])
    messages, message_of = _kept(exposure.message_rows[rows], exposure.messages.shape[1])
    senders, chosen = exposure.sources[rows], exposure.recipients[positions]
    nodes = torch.arange(exposure.num_nodes, device=chosen.device)
    node_of, sources = nodes.int(), senders
    if sends_to_itself(exposure):
        nodes, node_of = _kept(torch.cat([senders[senders >= 0].long(), chosen]), len(nodes))
        sources = torch.where(senders < 0, senders, node_of[senders.long().clamp(min=0)])
    by_node = ("fixed_logits", "frozen_logits", "state")
    part = replace(
        exposure,
        recipients=node_of[chosen].long(),
        segments=segments,
        rows=row_of[exposure.rows[terms]],
        coefficients=exposure.coefficients[:, terms],
        contributions=exposure.contributions[:, rows],
        messages=exposure.messages[:, messages],
        message_rows=message_of[exposure.message_rows[rows]],
        sources=sources,
        embedding=None if exposure.embedding is None else exposure.embedding[:, nodes],
        n_id=None if exposure.n_id is None else exposure.n_id[nodes],
        **{name: getattr(exposure, name)[:, nodes] for name in by_node},
    )
    return Focus(part, nodes, terms)


def sends_to_itself(exposure: Exposure) -> bool:
    """Whether sources are numbers of the exposure's own nodes.

    Where graphs are classified, or senders are of other kinds, nodes are not numbered anew.
    """
    return exposure.graph_starts is None and not exposure.names.typed


def _kept(index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The numbers below ``size`` that occur in ``index``, ascending; and the new number of each."""
    used = torch.zeros(size, dtype=torch.bool, device=index.device)
    used[index.long()] = True
    return used.nonzero().view(-1), (used.cumsum(0, dtype=torch.int32) - 1)


# Several as one -----------------------------------------------------------------------------------


SAME = ("groups", "root", "fixed", "origin", "fingerprint", "outputs")
"""What parts of one exposure have in common."""
ONE_BATCH = "pass these graphs as one batch, with torch_geometric.data.Batch.from_data_list"
OTHER_HEAD = f"the model's head differs from batch to batch; {ONE_BATCH}"


def _sizes(part: Exposure) -> tuple[Any, ...]:
    return part.num_members, part.num_classes, part.state.shape[2], part.n_id is None


def join_batches(parts: Sequence[Exposure]) -> Exposure:
    """One exposure over the graphs of all batches, numbered one batch after the other."""
    heads = [part.head for part in parts if part.head is not None]
    if len(parts) == 1:
        return parts[0]
    if len(heads) not in (0, len(parts)):
        raise ExposureRefused(f"the model ends differently from batch to batch; {ONE_BATCH}")
    if any(part.groups != parts[0].groups for part in parts):
        raise ExposureRefused(
            f"the pools of one batch make other groups than those of another; {ONE_BATCH}"
        )
    mixture = _one_after_another([part.aggregate for part in parts])
    if not heads:
        return mixture
    replays, lengths = [part.replay for part in parts], [part.num_terms for part in parts]

    def replay(coefficients: Tensor) -> Tensor:
        pieces = zip(replays, coefficients.reshape(-1).split(lengths), strict=True)
        return torch.cat([run(piece) for run, piece in pieces if run is not None])

    return mixture.with_head(
        _joined_head(heads, [part.num_nodes for part in parts]),
        torch.cat([part.frozen_logits for part in parts], dim=1),
        _largest(parts),
        None if None in replays else replay,
    )


def _one_after_another(parts: Sequence[Exposure]) -> Exposure:
    """The nodes, terms and tables of all parts, numbered one part after the other."""
    first = parts[0]
    sources, names = _joined_senders(parts)
    starts = [part.graph_starts for part in parts if part.graph_starts is not None]
    tables: dict[str, Any] = {name: _side_by_side(parts, name) for name in BY_MEMBER}
    return replace(
        first,
        recipients=_shifted(parts, "recipients", lambda part: part.num_nodes),
        segments=_chained([part.segments for part in parts]),
        rows=_shifted(parts, "rows", lambda part: part.contributions.shape[1]),
        message_rows=_shifted(parts, "message_rows", lambda part: part.messages.shape[1]),
        sources=sources,
        graph_starts=_chained(starts) if starts else None,
        n_id=None if first.n_id is None else torch.cat([part.n_id for part in parts]),  # type: ignore[misc]
        names=names if starts else first.names,
        residual=_largest(parts),
        **tables,
    )


def _joined_senders(parts: Sequence[Exposure]) -> tuple[Tensor, NodeNames]:
    """Senders numbered one kind after another, within a kind part by part; and the kinds' names."""
    counts = [dict(part.names.senders) or {"node": part.num_nodes} for part in parts]
    total = sum(map(Counter, counts), Counter[str]())
    starts = dict(zip(total, accumulate(total.values(), initial=0), strict=False))
    moved = []
    for part, of_part in zip(parts, counts, strict=True):
        kinds, numbers = part.names.split(part.sources.cpu().numpy())
        shift = np.array([starts.get(kind, 0) for kind in kinds], dtype=np.int64)
        moved.append(torch.from_numpy(np.where(numbers < 0, -1, numbers + shift)))
        for kind, count in of_part.items():
            starts[kind] += count
    sources = torch.cat(moved).to(parts[0].sources)
    return sources, replace(parts[0].names, senders=tuple(total.items()))


def _side_by_side(parts: Sequence[Exposure], name: str) -> Tensor | None:
    """Values one after the other along their second axis, for all members where any has its own."""
    values = [getattr(part, name) for part in parts]
    if any(value is None for value in values):
        return None
    members = max(value.shape[0] for value in values)
    return torch.cat([value.expand(members, *value.shape[1:]) for value in values], dim=1)


def _largest(parts: Sequence[Exposure]) -> float | None:
    return max((part.residual for part in parts if part.residual is not None), default=None)


def _chained(ends: Sequence[Tensor]) -> Tensor:
    """Where things start, one part after the other."""
    starts = accumulate((int(end[-1]) for end in ends), initial=0)
    moved = [end[1:] + start for end, start in zip(ends, starts, strict=False)]
    return torch.cat([ends[0][:1], *moved])


def _shifted(parts: Sequence[Exposure], name: str, size: Callable[[Exposure], int]) -> Tensor:
    """Numbers of rows after those of the parts before; −1, nobody, stays."""
    starts = accumulate((size(part) for part in parts), initial=0)
    pairs = [(getattr(part, name), start) for part, start in zip(parts, starts, strict=False)]
    return torch.cat([torch.where(rows < 0, rows, rows + start) for rows, start in pairs])


def _joined_head(heads: list[HeadGraph], counts: list[int]) -> HeadGraph:
    """The head of all batches' graphs; constants that differ become a row per graph."""
    shapes = {tuple((type(op), op.inputs) for op in head.operations) for head in heads}
    if len(shapes) > 1:
        raise ExposureRefused(OTHER_HEAD)
    steps = zip(*[head.operations for head in heads], strict=True)
    operations = tuple(_joined_operation(list(step), counts) for step in steps)
    return HeadGraph(heads[0].width, operations)


def _joined_operation(step: list[Operation], counts: list[int]) -> Operation:
    changed: dict[str, Any] = {}
    for field in fields(step[0]):
        values = [getattr(operation, field.name) for operation in step]
        # Rows of one batch's graphs are not those of another's, even where the numbers are.
        by_row = any(field.name in operation.by_node() for operation in step)
        by_row = by_row or (field.name == "fixed" and bool(values[0]))
        if not by_row and all(_alike(value, values[0]) for value in values):
            continue
        wide = [v for v in values if isinstance(v, Tensor) and v.dim() <= 2]
        if len(wide) < len(values):
            raise ExposureRefused(OTHER_HEAD)
        rows = [v.expand(n, wide[0].shape[-1]) for v, n in zip(wide, counts, strict=True)]
        changed[field.name] = torch.cat(rows)
    return replace(step[0], **changed)


def _alike(left: Any, right: Any) -> bool:
    """Whether settings are the same; tensors inside them are compared by their numbers."""
    if isinstance(right, Tensor):
        return isinstance(left, Tensor) and torch.equal(left, right)
    if isinstance(right, tuple | list):
        same = isinstance(left, tuple | list) and len(left) == len(right)
        return same and all(map(_alike, left, right))
    return bool(left == right)
