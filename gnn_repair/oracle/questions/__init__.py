"""Questions beyond the largest margin: the smallest change, terms that are needed, masses that
give way. Each is answered exactly without a head, and by verdicts behind one."""

from __future__ import annotations

from torch import Tensor

from gnn_repair.exposure.pieces import require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.heads.nearest import nearest_behind_head
from gnn_repair.oracle.problems import check_number, require_exposure
from gnn_repair.oracle.questions.nearest import Nearest, nearest
from gnn_repair.published import REACHABLE


def nearest_reweighting(
    exposure: Exposure,
    target: Tensor,
    nodes: Tensor | None = None,
    *,
    margin: float = REACHABLE,
    threads: int | None = None,
) -> tuple[Nearest, ...]:
    """The admissible λ closest to α in moved mass that makes the target win by ``margin``.

    Args:
        exposure: as for :func:`solve`, like ``target``, ``nodes`` and ``threads``.
        target: [N] a class per node.
        nodes: which nodes.
        margin: the worst-rival margin to reach; a win to :func:`solve` unless given.
        threads: worker threads, each with its own highspy.

    Returns:
        One answer per node. With a head, a λ that was run through the model and the mass that it
        moves, with what is proved to move at least.
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    margin = check_number(margin, "margin")
    if exposure.head is not None:
        return nearest_behind_head(exposure, target, nodes, margin)
    return nearest(exposure, target, nodes, margin, threads)
