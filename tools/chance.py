"""The table of chance reach in docs/results/reproduction.md.

make chance ARGS="gcn cora chameleon actor"    a backbone, then datasets
"""

from __future__ import annotations

import sys

import gnn_repair as gr
from gnn_repair.oracle.metrics import Reach
from gnn_repair.oracle.rates import Mean

HEAD = (
    "graph", "errors", "error reach (%)", "chance (%)", "excess (points)", "classes per error",
    "rank by γ", "rank by smallest change", "mass moved: true, others (median, %)",
)  # fmt: skip


def row(backbone: str, name: str) -> list[str]:
    """One graph, all its splits: means over splits with 95 % intervals over nodes."""
    data = gr.load_dataset(name)
    exposure = gr.expose(gr.train_backbone(backbone, data))
    found = gr.reach(exposure, data.y, data.test_mask)
    assert isinstance(found, Reach)
    classes, changes = exposure.num_classes, found.changes
    moved = [100 * sorted(x[x < 2])[len(x[x < 2]) // 2] for x in changes.shares()]

    def rank(mean: Mean) -> str:
        return f"{mean.words()} of {classes - 1}"

    return [
        name.capitalize(),
        f"{int(found.wrong.sum()):,}",
        f"{100 * found.error:.1f}",
        found.chance.words(100),
        found.excess.words(100, sign="+"),
        f"{found.classes_per_error.words()} of {classes}",
        rank(found.rank),
        rank(changes.rank),
        f"{moved[0]:.0f}, {moved[1]:.0f}",
    ]


def main(backbone: str, *names: str) -> None:
    """Print the table as Markdown."""
    print(f"| {' | '.join(HEAD)} |")
    print("|---|" + "---:|" * (len(HEAD) - 1))
    for name in names:
        print(f"| {' | '.join(row(backbone, name))} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
