"""The form of a translation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnn_repair.exposure.tails.layout import Traced

Result = Traced | tuple[Any, ...]
Translation = Callable[..., Result]
"""(builder, the real output, *arguments, **keywords) → what the output shows.

Arguments are those of the ATen operation with a :class:`Traced` in place of every tensor that
messages reach. Raises :class:`Unfollowed` where it does not apply.
"""
