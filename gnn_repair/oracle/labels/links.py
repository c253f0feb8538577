"""Questions about links: could this wrong link be right, and how far does its logit go?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.truths import as_table
from gnn_repair.oracle.labels.questions import ask
from gnn_repair.oracle.labels.ranges import ValueRange, range_of
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.labels.solve import solve_asked
from gnn_repair.oracle.tables import check_number


def require_links(exposure: Any) -> None:
    """Raise InputError unless it is an exposure of links."""
    if not isinstance(exposure, LinkExposure):
        kind = type(exposure).__name__
        raise InputError(
            f"exposure is a {kind}; give what expose(model, data) or expose_links(...) returns"
        )


def solve_links(
    exposure: Any,
    y: Any,
    links: Any = None,
    *,
    threshold: float = 0.0,
    threads: int | None = None,
    effort: str | float = "normal",
) -> LabelSolution:
    """The answers about links; y [L] says which are there, ``"flip"`` asks for the other side."""
    require_links(exposure)
    threshold = check_number(threshold, "threshold")
    if not isinstance(y, str | bool):
        given = as_table(y, (exposure.num_links, 1))
        whole = torch.full((exposure.mixture.num_nodes, 1), torch.nan, dtype=torch.float64)
        whole[exposure.offset :] = given.cpu()
        y = whole
    asked = ask(exposure.mixture, y, exposure.numbers(links), None, threshold)
    return named(exposure, solve_asked(exposure.mixture, asked, threshold, threads, effort))


def link_range(
    exposure: Any,
    links: Any = None,
    *,
    threads: int | None = None,
    effort: str | float = "normal",
) -> ValueRange:
    """Between which values each link's logit can be brought."""
    require_links(exposure)
    found = range_of(exposure.mixture, exposure.numbers(links), None, threads, effort)
    return ValueRange(named(exposure, found.lower), named(exposure, found.upper), found.frozen)


def named(exposure: LinkExposure, solution: LabelSolution) -> LabelSolution:
    """The solution with links' own numbers and ends."""
    number = solution.node - exposure.offset
    ends = exposure.links.t().cpu().numpy()[number]
    return replace(solution, node=number, links=np.ascontiguousarray(ends), noun="link")
