"""An exposure in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnn_repair.exposure.checks import reconstruction

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


def describe(exposure: Exposure) -> str:
    """What was exposed, by which rule, and how exactly: the text of ``print(exposure)``."""
    members = exposure.num_members
    lines = [
        f"Exposure of {exposure.origin or 'a model'}" + (f", {members} members" * (members > 1)),
        f"  {exposure.num_recipients:,} recipients, {exposure.num_classes} classes, "
        f"{exposure.num_terms:,} terms ({_spread(exposure)})",
    ]
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)
    for index, group in enumerate(exposure.groups):
        absent = int((lengths[:, index] == 0).sum())
        note = f", absent at {absent:,} recipients" if absent else ""
        lines.append(
            f"  group {group.name}: {int(lengths[:, index].sum()):,} terms{note}; {group.rule}; "
            f"coefficients from {group.coefficients_from}"
        )
    root = "; the node's own state is context for repairs" if exposure.root else ""
    lines.append(f"  fixed logits: {exposure.fixed}{root}")
    certified = "" if exposure.residual is None else f", certified residual {exposure.residual:.1e}"
    lines.append(f"  reconstruction {reconstruction(exposure):.1e}{certified}")
    return "\n".join(lines)


def _spread(exposure: Exposure) -> str:
    counts = exposure.segments[:: exposure.num_groups].diff()
    if counts.numel() == 0:
        return "none"
    low, high, mean = int(counts.min()), int(counts.max()), float(counts.double().mean())
    return f"{low:,} to {high:,} a recipient, {mean:.1f} on average"
