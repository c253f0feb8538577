"""What must hold of an exposure when it is built, and how far it may be from its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.head import check_head
from gnn_repair.exposure.terms import slices

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure

RECONSTRUCTION = 1e-5
"""Largest |z(α) − z⁰| / max(1, |z⁰|) accepted at construction: coefficients may be float32, whose
sums are right to five digits."""


def check_exposure(exposure: Exposure) -> None:
    """Raise :class:`InputError` naming the first field that is not what it must be."""
    _check_kinds(exposure)
    _check_shapes(exposure)
    _check_terms(exposure)
    _check_masses(exposure)
    gap = reconstruction(exposure.aggregate)
    if not gap <= RECONSTRUCTION:
        raise InputError(
            f"β + Σ α ℓ differs from the frozen logits by {gap:.2g} (relative); "
            "fixed_logits must be frozen_logits − Σ coefficients · contributions"
        )
    if exposure.head is None:
        return
    outputs = check_head(exposure.head, exposure.num_nodes, exposure.rows.device)
    classes = exposure.num_classes
    _require(outputs == classes, f"the head gives {outputs} classes instead of {classes}")
    gap = reconstruction(exposure)
    _require(
        gap <= max(RECONSTRUCTION, exposure.residual or 0.0),
        f"the head of the frozen aggregate differs from the frozen logits by {gap:.2g} (relative)",
    )


def reconstruction(exposure: Exposure) -> float:
    """max |z(α) − z⁰| / max(1, |z⁰|) over recipients, members and classes.

    Behind a head the largest |z⁰| of a recipient is the scale of all its classes.
    """
    members, nodes, classes = exposure.frozen_logits.shape
    if members * nodes * classes * exposure.num_recipients == 0:
        return 0.0
    if exposure.head is not None:
        frozen = exposure.frozen_logits[:, exposure.recipients]
        scale = frozen.abs().amax(2, keepdim=True).clamp(min=1)
        return float(((exposure.logits() - frozen).abs() / scale).max())
    mixed, worst = exposure.mixture(), []
    for some in slices(exposure.num_recipients, members * classes):
        chosen = exposure.recipients[some]
        frozen = exposure.frozen_logits[:, chosen]
        gap = exposure.fixed_logits[:, chosen] + mixed[:, some] - frozen
        worst.append((gap.abs_() / frozen.abs_().clamp_(min=1)).max())
    return float(torch.stack(worst).max())


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS: dict[str, tuple[int, tuple[torch.dtype, ...]]] = {
    "recipients": (1, (torch.int64,)),
    "segments": (1, (torch.int64,)),
    "rows": (1, (torch.int32,)),
    "coefficients": (2, FLOATING),
    "contributions": (3, (torch.float64,)),
    "fixed_logits": (3, (torch.float64,)),
    "frozen_logits": (3, (torch.float64,)),
    "frozen_aggregate": (3, (torch.float64,)),
    "state": (3, FLOATING),
    "messages": (3, FLOATING),
    "message_rows": (1, (torch.int32,)),
    "sources": (1, (torch.int32,)),
    "embedding": (3, FLOATING),
    "n_id": (1, (torch.int64,)),
    "graph_starts": (1, (torch.int64,)),
}
"""Axes and number types of every tensor: the kernels read memory by them."""
OPTIONAL = ("embedding", "n_id", "graph_starts", "frozen_aggregate")
"""Tensors that may be None."""


def _check_kinds(exposure: Exposure) -> None:
    device = None
    for name, (axes, dtypes) in KINDS.items():
        value = getattr(exposure, name)
        if value is None and name in OPTIONAL:
            continue
        _require(isinstance(value, Tensor), f"{name} is a {type(value).__name__}, not a tensor")
        _require(
            value.dim() == axes,
            f"{name} has shape {list(value.shape)}; it needs {axes} axes, see Exposure.{name}",
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
    named = isinstance(exposure.groups, tuple) and all(hasattr(g, "rule") for g in exposure.groups)
    _require(named, "groups must be a tuple of Group")


def _check_shapes(exposure: Exposure) -> None:
    members, rows, channels = exposure.contributions.shape
    head = exposure.head
    classes = channels if head is None else exposure.num_classes
    nodes = exposure.fixed_logits.shape[1]
    recipients, groups = exposure.recipients.numel(), len(exposure.groups)
    _require(groups >= 1, "an exposure needs at least one group")
    named = exposure.outputs in ("classes", "labels", "values")
    _require(named, f"outputs is {exposure.outputs!r:.40}, none of classes, labels and values")
    least = 2 if exposure.outputs == "classes" else 1
    _require(classes >= least, f"an exposure needs at least two classes, not {classes}")
    _require(head is None or members == 1, "an exposure with a head has one member")
    wide = head is None or head.width == channels
    _require(
        wide, f"the head reads {head and head.width} channels but the aggregate has {channels}"
    )
    both = (head is None) == (exposure.frozen_aggregate is None)
    _require(both, "frozen_aggregate belongs to an exposure with a head")
    expected: dict[str, tuple[int, ...]] = {
        "segments": (recipients * groups + 1,),
        "coefficients": (_shared(exposure.coefficients, members), exposure.rows.numel()),
        "fixed_logits": (members, nodes, channels),
        "frozen_logits": (members, nodes, classes),
        "state": (_shared(exposure.state, members), nodes, exposure.state.shape[-1]),
        "messages": (
            _shared(exposure.messages, members),
            exposure.messages.shape[1],
            exposure.state.shape[-1],
        ),
        "message_rows": (rows,),
        "sources": (rows,),
    }
    known = len(exposure.fingerprint)
    _require(known in (0, members), f"fingerprint has {known} entries for {members} members")
    if exposure.embedding is not None:
        expected["embedding"] = (members, nodes, exposure.embedding.shape[-1])
    if exposure.frozen_aggregate is not None:
        expected["frozen_aggregate"] = (members, nodes, channels)
    if exposure.n_id is not None:
        expected["n_id"] = (nodes,)
    if exposure.graph_starts is not None:
        expected["graph_starts"] = (nodes + 1,)
    for name, shape in expected.items():
        found = tuple(getattr(exposure, name).shape)
        _require(found == shape, f"{name} has shape {list(found)} instead of {list(shape)}")


def _shared(tensor: Tensor, members: int) -> int:
    return 1 if tensor.shape[0] == 1 else members


def _check_terms(exposure: Exposure) -> None:
    ends = exposure.segments
    whole = bool(ends[0] == 0) and bool(ends[-1] == exposure.num_terms)
    ordered = bool((ends.diff() >= 0).all())
    _require(whole and ordered, "segments must rise from 0 to the number of terms")
    _check_index(exposure.rows, exposure.contributions.shape[1], "rows")
    _check_index(exposure.recipients, exposure.num_nodes, "recipients")
    _check_index(exposure.message_rows, exposure.messages.shape[1], "message_rows")
    _check_graphs(exposure)
    _check_index(exposure.sources, exposure.num_sources, "sources", low=-1)
    if exposure.n_id is not None:
        negative = bool((exposure.n_id < 0).any())
        _require(not negative, "n_id holds negative numbers; give each node's number in the graph")
    with_head = () if exposure.head is None else ("frozen_aggregate",)
    for name in ("coefficients", "contributions", "fixed_logits", "frozen_logits", *with_head):
        _require(_is_finite(getattr(exposure, name)), f"{name} holds NaN or infinite values")


def _is_finite(values: Tensor) -> bool:
    """Whether no number is NaN or infinite, without a second table of the size."""
    if values.numel() == 0:
        return True
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(values))


def _check_graphs(exposure: Exposure) -> None:
    starts = exposure.graph_starts
    if starts is not None:
        ends = bool(starts[0] == 0) and bool(starts[-1] == exposure.num_sources)
        rising = ends and bool((starts.diff() >= 0).all())
        _require(rising, "graph_starts must rise from 0 to the number of nodes")


def _check_index(index: Tensor, size: int, name: str, low: int = 0) -> None:
    inside = index.numel() == 0 or (int(index.min()) >= low and int(index.max()) < size)
    _require(inside, f"{name} must lie in {low}..{size - 1}")


def _check_masses(exposure: Exposure) -> None:
    nonnegative = bool((exposure.coefficients >= 0).all())
    _require(nonnegative, "coefficients must be nonnegative")
    present = (exposure.segments.diff() > 0).view(exposure.num_recipients, exposure.num_groups)
    massive = exposure.mass > 0
    wrong = (present & ~massive).nonzero()
    if wrong.numel():
        _, recipient, group = wrong[0].tolist()
        node, name = int(exposure.recipients[recipient]), exposure.groups[group].name
        owner = exposure.names.node(node)
        raise InputError(f"group {name} of {owner} has terms but no mass; leave its terms out")


EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest deviation of an exposure from its model beside what moved, by the model's precision: a
hundred (float32) or some thousand (float64) roundings, as sums over a node's terms add up."""


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


def excused(residual: float, dtype: torch.dtype) -> str:
    """What to do about a residual: rounding explains it, or nothing does."""
    enough = min(2 * residual, WORST_ROUNDING * EXACT[dtype])
    if not residual <= enough:
        return (
            "that is no rounding: what follows does something else with other messages, such as "
            "keeping values between runs; take that out of the forward"
        )
    double = "pass model.double() and double data"
    if dtype == torch.float64:
        double = "scale its features, or take out what divides by small numbers"
    return f"that is how {dtype} rounds in this model: {double}, or tolerance={enough:.0e}"


def centre(logits: Tensor) -> Tensor:
    """Logits without the shift common to all classes."""
    return logits - logits.mean(1, keepdim=True)
