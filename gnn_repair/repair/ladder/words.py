"""A fitted ladder in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnn_repair.repair.ladder.fitted import FittedLadder


def describe(fitted: FittedLadder) -> str:
    """What was found: accuracies out of fold, the chosen rungs, findings, advice."""
    members = fitted.num_members
    who = "1 member" if members == 1 else f"{members} members"
    ladder = fitted.ladder
    lines = [f"Evidence ladder of {who}, {ladder.folds} folds, combined by {ladder.combine!r}"]
    mean = fitted.weights.mean(0).tolist()
    chosen = Counter(fitted.chosen)
    lines.append(f"  {'rung':28} out of fold   weight   best for")
    for (name, accuracy), weight in zip(fitted.out_of_fold.items(), mean, strict=True):
        share = 100 * float(accuracy.mean())
        lines.append(f"  {name:28} {share:9.1f} %   {weight:6.2f}   {chosen[name]} of {members}")
    kept = int((fitted.weights[:, 0] == 1).sum())
    if kept:
        lines.append(f"Frozen stays as it is for {kept} of {members}: nothing clearly beats it.")
    lines += _missing(fitted)
    lines += [text[0].upper() + text[1:] + "." for text in map(str, fitted.findings().overall())]
    lines += [f"→ {line}" for line in fitted.findings().advice()]
    lines += _transductive(fitted)
    return "\n".join(lines)


def _transductive(fitted: FittedLadder) -> list[str]:
    """Which rungs hold for this graph only, and who speaks on another one."""
    names = fitted.candidates[1:]
    bound = [name for name in names if fitted.ladder.rung(name).needs_evidence]
    free = ["frozen", *(name for name in names if name not in bound)]
    if not bound:
        return []
    return [
        f"Transductive, for they read labels or features of this graph: {', '.join(bound)}. "
        f"On another graph the ladder falls back to {', '.join(free)}, with a warning."
    ]


def _missing(fitted: FittedLadder) -> list[str]:
    left_out = [name for name in fitted.ladder.rungs if name not in fitted.candidates]
    if not left_out:
        return []
    return [f"Left out, since no raw features were given (data=…): {', '.join(left_out)}."]
