"""``python -m tools.plain_simplex``: the vectorised simplex method beside plain numba loops.

Two processes solve the same LPs on one thread in turns; each counts with its best round, in
seconds of its own processor. Their margins are compared.
"""

from __future__ import annotations

import argparse

from tools.plain_simplex.measuring import measure

ROUNDS = 9
"""Turns of each; the best counts, so that what else the machine does is left out."""


def main() -> None:
    """Print a row a shape and a case."""
    parser = argparse.ArgumentParser(prog="python -m tools.plain_simplex", description=__doc__)
    parser.add_argument("--shapes", default="5:3:1,20:7:1,100:18:3,1900:7:1,3000:18:1")
    parser.add_argument("--cases", default="", help="such as cora:gcn,squirrel:sgc")
    parser.add_argument("--root", help="folder of the raw datasets")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    print(
        f"{'LPs':24} {'number':>7} {'vectorised':>11} {'plain':>8} {'ratio':>6}  margins differ by"
    )
    for row in measure((options.shapes, options.cases, options.root), options.rounds):
        name, count, ours, plain, off = row
        print(f"{name:24} {count:7} {ours:10.2f} {plain:8.2f} {plain / ours:6.2f} {off:.0e}")


if __name__ == "__main__":
    main()
