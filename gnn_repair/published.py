"""The paper's published numbers, as data."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def published() -> dict[str, Any]:
    """``["tables"][table]["cells"][backbone][dataset]`` and ``["datasets"][dataset]``."""
    text = resources.files("gnn_repair").joinpath("paper.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables
