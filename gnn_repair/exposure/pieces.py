"""What an exposure is made of: names of nodes, terms as they lie in memory, what must hold of them.

Of classes the largest logit wins, and only differences count. A label is there where its own logit
is positive; a value is what it is. Everything is checked before it reaches a kernel, which reads
memory by the sizes it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.checks import as_classes, as_nodes
from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.head import check_head
from gnn_repair.exposure.heads.operations import HeadGraph
from gnn_repair.kernels import Pattern, mix

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure

Outputs = Literal["classes", "labels", "values"]
OUTPUTS = ("classes", "labels", "values")
NOUNS = {"classes": "class", "labels": "label", "values": "value"}
RECONSTRUCTION = 1e-5
"""Largest |z(α) − z⁰| / max(1, |z⁰|) accepted at construction: coefficients may be float32, whose
sums are right to five digits."""
WHOLE, ROW = (torch.int64,), (torch.int32,)
REAL, DOUBLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64), (torch.float64,)
PIECES: dict[str, tuple[str, tuple[torch.dtype, ...]]] = {
    "recipients": ("n", WHOLE),
    "segments": ("s", WHOLE),
    "rows": ("T", ROW),
    "coefficients": ("?T", REAL),
    "contributions": ("SRD", DOUBLE),
    "fixed_logits": ("SND", DOUBLE),
    "frozen_logits": ("SNC", DOUBLE),
    "frozen_aggregate": ("SND", DOUBLE),
    "state": ("?Nd", REAL),
    "messages": ("?Md", REAL),
    "message_rows": ("R", ROW),
    "sources": ("R", ROW),
    "embedding": ("SNk", REAL),
    "n_id": ("N", WHOLE),
    "graph_starts": ("g", WHOLE),
}
"""Sizes and number types of every tensor, named as in :class:`Exposure`: ? is S or 1, s = n·G + 1,
g = N + 1, k is free."""
OPTIONAL = ("embedding", "n_id", "graph_starts", "frozen_aggregate")
"""Tensors that may be None."""


# Names ------------------------------------------------------------------------------------------
#
# Sources are numbered through all kinds of sender, one kind after another, so that one number names
# one sender everywhere. The recipients' own kind comes first where it sends at all: its numbers are
# then node numbers, as in a graph of one kind.


@dataclass(frozen=True)
class NodeNames:
    """Names of recipients, senders and groups; as they stand here: of a graph of one kind."""

    recipient: str = "node"
    """What a recipient is, such as ``paper``."""
    senders: tuple[tuple[str, int], ...] = ()
    """Every kind of sender and how many there are; empty: the recipients themselves."""
    groups: tuple[str, ...] = ()
    """What the groups are called, such as ``author writes paper``; empty: by number."""

    @property
    def typed(self) -> bool:
        """Whether there is more than one kind of node."""
        return bool(self.senders)

    @property
    def by_type(self) -> bool:
        """Whether these are a graph's node types, not clusters beside the nodes of one kind."""
        return self.typed and self.recipient != "graph" and "cluster" not in dict(self.senders)

    def count(self, nodes: int) -> int:
        """How many senders there are, of N recipients."""
        return sum(size for _, size in self.senders) if self.senders else nodes

    def own(self, nodes: int) -> int:
        """How many of the senders are the N recipients themselves; they come first."""
        if not self.senders:
            return nodes
        kind, size = self.senders[0]
        return size if kind == self.recipient else 0

    def node(self, number: Any) -> str:
        """Such as ``paper 12``."""
        return f"{self.recipient} {number}"

    def sender(self, source: Any) -> str:
        """Who sent a term's message, such as ``author 3``; −1 is nobody."""
        if source < 0:
            return "no message"
        kind, number = self.split(np.array([source]))
        return f"{kind[0]} {number[0]}"

    def group(self, number: Any) -> str:
        """Such as ``author writes paper``, or ``group 2``."""
        return self.groups[number] if self.groups else f"group {number}"

    def split(self, sources: NDArray[Any]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
        """The kind of each source and its number within that kind; nobody stays −1."""
        if not self.senders:
            return np.full(len(sources), self.recipient), sources.astype(np.int64)
        kinds = np.array([kind for kind, _ in self.senders])
        starts = np.array([0, *accumulate(size for _, size in self.senders)])
        place = np.searchsorted(starts, sources, side="right") - 1
        place = place.clip(0, len(kinds) - 1)
        return kinds[place], np.where(sources < 0, -1, sources - starts[place])

    def with_groups(self, groups: tuple[str, ...]) -> NodeNames:
        """The same, with the groups' names where there are several kinds of node."""
        return replace(self, groups=groups) if self.typed else self

    # Files -------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {
            "recipient": self.recipient,
            "senders": [list(pair) for pair in self.senders],
            "groups": list(self.groups),
        }

    @classmethod
    def of_header(cls, header: Any) -> NodeNames:
        """What :meth:`header` wrote; files of earlier versions have none."""
        if header is None:
            return cls()
        try:
            senders = tuple((kind, size) for kind, size in header["senders"])
            names = cls(header["recipient"], senders, tuple(header["groups"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("its names of nodes are not what an exposure writes") from error
        texts = (names.recipient, *names.groups, *(kind for kind, _ in senders))
        sizes = [size for _, size in senders]
        if any(type(text) is not str for text in texts) or any(type(n) is not int for n in sizes):
            raise InputError("its names of nodes are no texts, or their counts no whole numbers")
        if any(size < 0 for size in sizes):
            raise InputError("its names of nodes count fewer than none")
        return names


ONE_KIND = NodeNames()
"""The names in a graph whose nodes are all of one kind."""


def recipient_column(names: NodeNames) -> str:
    """The name of a frame's column of recipients: ``graph`` where these are classified."""
    return "graph" if names.recipient == "graph" else "node"


# Terms in memory --------------------------------------------------------------------------------


NUMBERS = 1 << 22
"""Numbers of a table that are looked at together: 32 MB in double precision, where a graph of a
million nodes has tables ten times as large and a comparison holds five of them."""


def slices(rows: int, width: int) -> Iterator[slice]:
    """The rows of a table so wide, in order; at least one slice, which may be empty."""
    step = max(1, NUMBERS // max(1, width))
    for start in range(0, max(1, rows), step):
        yield slice(start, min(start + step, rows))


CHUNK = 1 << 24
"""Numbers of the aggregate that go through a head at once: 128 MB, and a few times that for the
values in between."""


def through_head(head: HeadGraph, aggregate: Tensor, nodes: Tensor) -> Tensor:
    """T of the aggregates [k, D] of some nodes [k], some rows at a time."""
    step = max(1, CHUNK // max(1, head.width))
    parts = zip(aggregate.split(step), nodes.split(step), strict=True)
    return torch.cat([head(rows, some) for rows, some in parts])


def mixture_of(terms: Pattern, coefficients: Tensor, contributions: Tensor) -> Tensor:
    """Σ λ ℓ of every recipient, [S, n, C].

    Args:
        terms: recipients × rows of the table.
        coefficients: λ, [S or 1, T].
        contributions: ℓ, the table [S, R, C].
    """
    members, rows, classes = contributions.shape
    table = contributions.transpose(0, 1).reshape(rows, members * classes)
    count, each = terms.num_rows, 1 + terms.indices.numel() // max(1, terms.num_rows)
    parts = [*slices(count, each * table.shape[1])]
    if len(parts) == 1 or coefficients.requires_grad or table.requires_grad:
        mixed = mix(terms, coefficients.to(table.dtype).t().contiguous(), table)
    else:
        mixed = table.new_empty(count, table.shape[1])
        for some in parts:
            starts = terms.indptr[some.start : some.stop + 1]
            cut = slice(int(starts[0]), int(starts[-1]))
            few = Pattern(starts - starts[0], terms.indices[cut], rows)
            mixed[some] = mix(few, coefficients[:, cut].to(table.dtype).t().contiguous(), table)
    return mixed.view(-1, members, classes).transpose(0, 1)


def cut_terms(segments: Tensor, groups: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Segments and term numbers of the recipients at ``positions``."""
    each = torch.arange(groups, device=positions.device)
    index = (positions.unsqueeze(1) * groups + each).view(-1)
    lengths = segments.diff()[index]
    cut = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shift = torch.repeat_interleave(segments[index] - cut[:-1], lengths)
    return cut, torch.arange(int(cut[-1]), device=cut.device) + shift


# What must hold ---------------------------------------------------------------------------------


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def check_exposure(exposure: Exposure, derived: bool = False) -> None:
    """Raise :class:`InputError` naming the first field that is not what it must be.

    Args:
        exposure: what is built.
        derived: whether β was made of z⁰ and the mixture.
    """
    _check_pieces(exposure)
    _check_terms(exposure)
    _check_masses(exposure)
    gap = 0.0 if derived else reconstruction(exposure.aggregate)
    if not gap <= RECONSTRUCTION:
        raise InputError(
            f"β + Σ α ℓ differs from the frozen logits by {gap:.2g} (relative); "
            "fixed_logits must be frozen_logits − Σ coefficients · contributions"
        )
    if exposure.head is not None:
        _check_head(exposure)


def check_with_head(exposure: Exposure) -> None:
    """What must hold of an exposure whose mixture has been checked and that has got a head."""
    _check_pieces(exposure)
    _require(_is_finite(exposure.frozen_logits), "frozen_logits holds NaN or infinite values")
    _check_head(exposure)


def _check_pieces(exposure: Exposure) -> None:
    device = None
    for name, (axes, dtypes) in PIECES.items():
        value = getattr(exposure, name)
        if value is None and name in OPTIONAL:
            continue
        _require(isinstance(value, Tensor), f"{name} is a {type(value).__name__}, not a tensor")
        _require(
            value.dim() == len(axes),
            f"{name} has shape {list(value.shape)}; it needs {len(axes)} axes, see Exposure.{name}",
        )
        wanted = str(dtypes[-1]).removeprefix("torch.")
        _require(
            value.dtype in dtypes,
            f"{name} holds {value.dtype} instead of {wanted}; convert it with .to(torch.{wanted})",
        )
        device = device or value.device
        _require(
            value.device == device,
            f"{name} is on {value.device} and recipients on {device}; an exposure is on one device",
        )
    groups, head, outputs = exposure.groups, exposure.head, exposure.outputs
    named = isinstance(groups, tuple) and all(hasattr(group, "rule") for group in groups)
    _require(named, "groups must be a tuple of Group")
    _require(len(groups) >= 1, "an exposure needs at least one group")
    _require(outputs in OUTPUTS, f"outputs is {outputs!r:.40}, none of classes, labels and values")
    members, rows, channels = exposure.contributions.shape
    classes = channels if head is None else exposure.num_classes
    least = 2 if outputs == "classes" else 1
    _require(classes >= least, f"an exposure needs at least two classes, not {classes}")
    _require(head is None or members == 1, "an exposure with a head has one member")
    wide = head is None or head.width == channels
    _require(
        wide, f"the head reads {head and head.width} channels but the aggregate has {channels}"
    )
    both = (head is None) == (exposure.frozen_aggregate is None)
    _require(both, "frozen_aggregate belongs to an exposure with a head")
    known = len(exposure.fingerprint)
    _require(known in (0, members), f"fingerprint has {known} entries for {members} members")
    count, nodes = len(exposure.recipients), exposure.num_nodes
    sizes = {
        "S": members, "R": rows, "D": channels, "C": classes, "N": nodes, "g": nodes + 1,
        "n": count, "s": count * len(groups) + 1, "T": exposure.num_terms,
        "d": exposure.state.shape[2], "M": exposure.messages.shape[1],
    }  # fmt: skip
    for name, (axes, _) in PIECES.items():
        value = getattr(exposure, name)
        if value is not None:
            shared = {"?": 1 if len(value) == 1 else members}
            sizes_given = list(value.shape)
            shape = [{**sizes, **shared}.get(axis, sizes_given[-1]) for axis in axes]
            _require(sizes_given == shape, f"{name} has shape {sizes_given} instead of {shape}")


def _check_terms(exposure: Exposure) -> None:
    _check_rising("segments", exposure.segments, exposure.num_terms, "terms")
    _check_index(exposure.rows, exposure.contributions.shape[1], "rows")
    _check_index(exposure.recipients, exposure.num_nodes, "recipients")
    _check_index(exposure.message_rows, exposure.messages.shape[1], "message_rows")
    if exposure.graph_starts is not None:
        nodes = dict(exposure.names.senders).get("node", exposure.num_sources)
        _check_rising("graph_starts", exposure.graph_starts, nodes, "nodes")
    _check_index(exposure.sources, exposure.num_sources, "sources", low=-1)
    if exposure.n_id is not None:
        negative = bool((exposure.n_id < 0).any())
        _require(not negative, "n_id holds negative numbers; give each node's number in the graph")
    with_head = () if exposure.head is None else ("frozen_aggregate",)
    for name in ("coefficients", "contributions", "fixed_logits", "frozen_logits", *with_head):
        _require(_is_finite(getattr(exposure, name)), f"{name} holds NaN or infinite values")


def _check_rising(name: str, ends: Tensor, last: int, noun: str) -> None:
    whole = bool(ends[0] == 0) and bool(ends[-1] == last) and bool((ends.diff() >= 0).all())
    _require(whole, f"{name} must rise from 0 to the number of {noun}")


def _check_index(index: Tensor, size: int, name: str, low: int = 0) -> None:
    inside = index.numel() == 0 or (int(index.min()) >= low and int(index.max()) < size)
    _require(inside, f"{name} must lie in {low}..{size - 1}")


def _is_finite(values: Tensor) -> bool:
    """Whether no number is NaN or infinite, without a second table of the size."""
    return not values.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(values))


def _check_masses(exposure: Exposure) -> None:
    nonnegative = bool((exposure.coefficients >= 0).all())
    _require(nonnegative, "coefficients must be nonnegative")
    present = (exposure.segments.diff() > 0).view(exposure.num_recipients, exposure.num_groups)
    wrong = (present & ~(exposure.mass > 0)).nonzero()
    if wrong.numel():
        _, recipient, group = wrong[0].tolist()
        owner = exposure.names.node(int(exposure.recipients[recipient]))
        name = exposure.groups[group].name
        raise InputError(f"group {name} of {owner} has terms but no mass; leave its terms out")


def _check_head(exposure: Exposure) -> None:
    assert exposure.head is not None and exposure.frozen_aggregate is not None
    outputs = check_head(exposure.head, exposure.num_nodes, exposure.rows.device)
    classes = exposure.num_classes
    _require(outputs == classes, f"the head gives {outputs} classes instead of {classes}")
    nodes = exposure.recipients
    given = through_head(exposure.head, exposure.frozen_aggregate[0, nodes], nodes)
    gap = _relative(given, exposure.frozen_logits[0, nodes])
    _require(
        gap <= max(RECONSTRUCTION, exposure.residual or 0.0),
        f"the head of the frozen aggregate differs from the frozen logits by {gap:.2g} (relative)",
    )


def _relative(given: Tensor, frozen: Tensor) -> float:
    """The largest difference of logits [n, C], beside the largest of a row."""
    if not given.numel():
        return 0.0
    scale = frozen.abs().amax(1, keepdim=True).clamp(min=1)
    return float(((given - frozen).abs() / scale).max())


def reconstruction(exposure: Exposure) -> float:
    """max |z(α) − z⁰| / max(1, |z⁰|) over recipients, members and classes.

    Behind a head the largest |z⁰| of a recipient is the scale of all its classes.
    """
    members, nodes, classes = exposure.frozen_logits.shape
    if members * nodes * classes * exposure.num_recipients == 0:
        return 0.0
    if exposure.head is not None:
        return _relative(exposure.logits()[0], exposure.frozen_logits[0, exposure.recipients])
    mixed, worst = exposure.mixture(), []
    for some in slices(exposure.num_recipients, members * classes):
        chosen = exposure.recipients[some]
        frozen = exposure.frozen_logits[:, chosen]
        gap = exposure.fixed_logits[:, chosen] + mixed[:, some] - frozen
        worst.append((gap.abs_() / frozen.abs_().clamp_(min=1)).max())
    return float(torch.stack(worst).max())


# What users say about it --------------------------------------------------------------------------


def check_outputs(outputs: Any) -> None:
    """Raise InputError unless it names what outputs can be, or is None."""
    if outputs is not None and outputs not in OUTPUTS:
        raise InputError(f"outputs is {outputs!r}; choose 'classes', 'labels' or 'values'")


def require_outputs(exposure: Any, *wanted: str) -> None:
    """Raise InputError where the exposure's outputs are none of ``wanted``."""
    if exposure.outputs in wanted:
        return
    advice = {
        "labels": "use solve, reach(exposure, y [N, K]) or value_range",
        "values": "use value_range",
        "classes": "expose the model with outputs='labels' or outputs='values'",
    }
    raise InputError(
        f"the exposure's outputs are {exposure.outputs}, and this is about {' or '.join(wanted)}; "
        + advice[exposure.outputs]
    )


def require_own(exposure: Exposure, values: Any, name: str) -> None:
    """Raise InputError where values are of all nodes of the graph that was sampled from."""
    rows = next(iter(getattr(values, "shape", ())), exposure.num_nodes)
    if exposure.n_id is not None and rows != exposure.num_nodes and rows > exposure.n_id.max():
        raise InputError(
            f"{name} has {rows} rows for the {exposure.num_nodes} nodes of a sampled subgraph; of "
            f"the whole graph's pass exposure.local({name})"
        )


def truths_for(exposure: Exposure, y: Any) -> Tensor:
    """y as [N, K] float64 of zeros and ones, NaN where unknown, on the exposure's device.

    Args:
        exposure: N nodes, K labels.
        y: [N, K] (or [N] for one label): truth values, zeros and ones; −1 or NaN is unknown.
    """
    require_own(exposure, y, "y")
    table = as_table(y, (exposure.num_nodes, exposure.num_classes))
    unknown = table.isnan() | (table == -1)
    wrong = ~(unknown | (table == 0) | (table == 1))
    if bool(wrong.any()):
        node, label = wrong.nonzero()[0].tolist()
        sides = "where the label is, 0 where it is not,"
        if exposure.outputs == "values":
            sides = "above the threshold, 0 below (value_range says which values are possible),"
        raise InputError(
            f"y holds {float(table[node, label]):g} for {NOUNS[exposure.outputs]} {label} of "
            f"{exposure.names.node(node)}; give 1 {sides} and NaN (or −1) where that is not known"
        )
    return table.masked_fill(unknown, torch.nan).to(exposure.recipients.device)


def as_table(y: Any, shape: tuple[int, int], name: str = "y") -> Tensor:
    """Numbers a user gives for every node and output, [N, K] float64."""
    try:
        table = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(y).__name__
        raise InputError(f"{name} is a {kind}; give a tensor {list(shape)}") from error
    if table.dim() == 1 and shape[1] == 1:
        table = table.unsqueeze(1)
    if tuple(table.shape) != shape or table.is_complex():
        flat = table.dim() == 1 and len(table) == shape[0]
        classes = "; where outputs are rival classes, expose with outputs='classes'" * flat
        raise InputError(
            f"{name} has shape {list(table.shape)} instead of {list(shape)}: a row for every node, "
            f"a column for every output{classes}"
        )
    return table.detach().double()


def coefficients_for(exposure: Exposure, coefficients: Any) -> Tensor:
    """λ as [S or 1, T] on the exposure's device; a vector [T] is shared by all members."""
    if not isinstance(coefficients, Tensor):
        kind = type(coefficients).__name__
        raise InputError(f"coefficients is a {kind}; pass a tensor [S or 1, T]")
    if not coefficients.is_floating_point():
        raise InputError(f"coefficients holds {coefficients.dtype}; convert it with .double()")
    members, terms = exposure.num_members, exposure.num_terms
    shaped = coefficients.unsqueeze(0) if coefficients.dim() == 1 else coefficients
    if shaped.dim() != 2 or shaped.shape[0] not in (1, members) or shaped.shape[1] != terms:
        first = "1" if members == 1 else f"1 or {members}"
        raise InputError(
            f"coefficients has shape {list(coefficients.shape)} instead of [{first}, {terms}]: "
            "one number for every term of the exposure"
        )
    if shaped.device != exposure.rows.device:
        raise InputError(
            f"coefficients is on {shaped.device} and the exposure on {exposure.rows.device}; "
            "move one of them with .to()"
        )
    if not bool(torch.isfinite(shaped).all()):
        raise InputError("coefficients holds NaN or infinite values")
    return shaped


def classes_for(exposure: Exposure, target: Any, name: str = "y") -> Tensor:
    """The class of every node of the graph, [N] int64, −1 where it is not known."""
    require_outputs(exposure, "classes")
    sizes, noun = (exposure.num_nodes, exposure.num_classes), exposure.names.recipient
    require_own(exposure, target, name)
    given = as_classes(target, *sizes, name, noun)
    return given.to(exposure.rows.device)


def nodes_for(exposure: Exposure, nodes: Any) -> Tensor:
    """Node numbers [k] int64 from a mask [N], numbers in any order, or anything like them."""
    noun = exposure.names.recipient
    if "bool" in str(getattr(nodes, "dtype", "")):
        require_own(exposure, nodes, "nodes")
    return as_nodes(nodes, exposure.num_nodes, noun=noun).to(exposure.recipients.device)


EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest deviation of an exposure from its model beside what moved, by the model's precision: a
hundred (float32) or some thousand (float64) roundings, as sums over a node's terms add up."""


def centre(logits: Tensor) -> Tensor:
    """Logits […, C] without the shift common to all classes: P z."""
    return logits - logits.mean(-1, keepdim=True)
