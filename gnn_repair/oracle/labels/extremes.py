# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""The kernel: of every group the message that speaks loudest for the wanted side.

Σ_g Σ_a λ_a ℓ_a over λ ≥ 0 with Σ_{a∈g} λ_a = m_g is a linear function on a product of simplices,
and each simplex's part is largest at a corner: all of m_g on a message with the largest ℓ. Work a
node: terms × outputs comparisons, one pass over rows that lie whole in memory.
"""

from gnn_repair.kernel_cache import cached_njit


@cached_njit(nogil=True)
def best_terms(segments, groups, positions, rows, table, signs, best, where):
    """For each of ``positions``, group and output: the largest sign · ℓ, and the first term there.

    Args: table [R, K], signs [P, K] ±1; out: best [P, G, K], where [P, G, K] (−1: no term).
    """
    width = table.shape[1]
    for p in range(len(positions)):
        sign = signs[p]
        for g in range(groups):
            slot = positions[p] * groups + g
            top, place = best[p, g], where[p, g]
            first = segments[slot]
            if first == segments[slot + 1]:
                for k in range(width):
                    top[k] = 0.0
                    place[k] = -1
                continue
            message = table[rows[first]]
            for k in range(width):
                top[k] = sign[k] * message[k]
                place[k] = first
            for t in range(first + 1, segments[slot + 1]):
                message = table[rows[t]]
                for k in range(width):
                    value = sign[k] * message[k]
                    better = value > top[k]
                    top[k] = value if better else top[k]
                    place[k] = t if better else place[k]
