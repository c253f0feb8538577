"""Exposure: a frozen model's final aggregation as a nonnegative mixture of contributions."""

from typing import TYPE_CHECKING, Any

from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure, Group

if TYPE_CHECKING:
    from gnn_repair.exposure.from_model import expose
    from gnn_repair.exposure.links.from_model import expose_links

Exposed = Exposure | TailedExposure
"""What :func:`expose` returns, and what oracle and repairs take."""

__all__ = ["Exposed", "Exposure", "Group", "TailedExposure", "expose", "expose_links"]


def __getattr__(name: str) -> Any:
    # Exposing a model needs PyG, which loads slowly; reading and solving an exposure does not.
    if name == "expose":
        from gnn_repair.exposure.from_model import expose

        return expose
    if name == "expose_links":
        from gnn_repair.exposure.links.from_model import expose_links

        return expose_links
    raise AttributeError(f"module 'gnn_repair.exposure' has no attribute {name!r}")
