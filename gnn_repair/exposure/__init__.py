"""Exposure: a frozen model's final aggregation as a nonnegative mixture of contributions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnn_repair.exposure.value import Exposure, Group, HeldPart

if TYPE_CHECKING:
    from gnn_repair.exposure.from_model import WHOLE_MESSAGES, expose
    from gnn_repair.exposure.links.from_model import expose_links

__all__ = [
    "WHOLE_MESSAGES",
    "Exposure",
    "Group",
    "HeldPart",
    "expose",
    "expose_links",
]

_HOMES = {
    "expose": "from_model",
    "expose_links": "links.from_model",
    "WHOLE_MESSAGES": "from_model",
}


def __getattr__(name: str) -> Any:
    # Exposing a model needs PyG, which loads slowly; reading and solving an exposure does not.
    if name in _HOMES:
        return getattr(import_module(f"gnn_repair.exposure.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'gnn_repair.exposure' has no attribute {name!r}")
