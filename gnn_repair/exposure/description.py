"""An exposure in words."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from gnn_repair.exposure.checks import reconstruction
from gnn_repair.exposure.outputs import NOUNS
from gnn_repair.exposure.tails.heads import ANSWERS, followed_by, kind_of

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


def describe(exposure: Exposure) -> str:
    """What was exposed, by which rule, and how exactly: the text of ``print(exposure)``."""
    members = exposure.num_members
    head = exposure.head
    lines = [
        f"Exposure of {exposure.origin or 'a model'}"
        + (f", {members} members" * (members > 1))
        + _follows(exposure),
        f"  {_recipients(exposure)}, {counted_outputs(exposure)}, "
        f"{exposure.num_terms:,} terms ({_spread(exposure)})",
    ]
    if exposure.called:
        lines.append(f"  called as {exposure.called}")
    numbered = list(enumerate(exposure.groups))
    for rule, groups in groupby(numbered, lambda item: (item[1].rule, item[1].coefficients_from)):
        lines.append(f"  {rule[0]}; coefficients from {rule[1]}")
        lines += [f"    group {group.name}: {_size(exposure, g)}" for g, group in groups]
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


def one_line(exposure: Exposure) -> str:
    """What a list or a debugger shows of an exposure."""
    members = exposure.num_members
    counted = f"{members} members, " if members > 1 else ""
    return (
        f"<Exposure of {exposure.origin or 'a model'}: {counted}{_recipients(exposure)}, "
        f"{counted_outputs(exposure)}, {exposure.num_groups} "
        f"group{'s' * (exposure.num_groups > 1)}, {exposure.num_terms:,} terms{_follows(exposure)}>"
    )


def _follows(exposure: Exposure) -> str:
    return "" if exposure.head is None else f", followed by: {followed_by(exposure.head)}"


def counted_outputs(exposure: Exposure) -> str:
    """``18 classes``, ``121 labels``, ``1 value``."""
    number = exposure.num_classes
    return f"{number} {NOUNS[exposure.outputs] if number == 1 else exposure.outputs}"


def _recipients(exposure: Exposure) -> str:
    """``3 recipients``, and of how many nodes where some were left out."""
    count, nodes = exposure.num_recipients, exposure.num_nodes
    if exposure.graph_starts is not None:
        some = f" of {nodes:,}" * (count < nodes)
        noun = "graph" if nodes == 1 else "graphs"
        return f"{count:,}{some} {noun} with {exposure.num_sources:,} nodes"
    noun = "recipient" if count == 1 else "recipients"
    kind = f" ({exposure.names.recipient})" if exposure.names.typed else ""
    whole = "" if count == nodes else f" of {nodes:,} nodes"
    sampled = " of a sampled subgraph" * (exposure.n_id is not None)
    return f"{count:,} {noun}{kind}{whole}{sampled}"


def _size(exposure: Exposure, group: int) -> str:
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)[:, group]
    absent = int((lengths == 0).sum())
    mass = exposure.mass[:, lengths > 0, group]
    text = f"{int(lengths.sum()):,} terms"
    if mass.numel():
        low, high = f"{float(mass.min()):.4g}", f"{float(mass.max()):.4g}"
        text += f", mass {low}" if low == high else f", mass {low} to {high}"
    return text + (f", absent at {absent:,} recipient{'s' * (absent > 1)}" if absent else "")


def _spread(exposure: Exposure) -> str:
    counts = exposure.segments[:: exposure.num_groups].diff()
    if counts.numel() == 0:
        return "none"
    low, high, mean = int(counts.min()), int(counts.max()), float(counts.double().mean())
    if low == high:
        return f"{low:,} a recipient"
    return f"{low:,} to {high:,} a recipient, {mean:.1f} on average"
