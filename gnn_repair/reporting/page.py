"""Putting the page together: one HTML file, nothing outside it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

from gnn_repair.methods import METHODS
from gnn_repair.reporting.payload import script_safe

SCRIPTS = (
    "run.js",
    "words.js",
    "draw.js",
    "export.js",
    "charts.js",
    "story.js",
    "overview.js",
    "plane.js",
    "picture.js",
    "node.js",
    "terms.js",
    "graph.js",
    "compare.js",
    "list.js",
    "explorer.js",
    "main.js",
)
"""Plain scripts that share one scope, in the order in which they are joined."""


def build_page(content: Mapping[str, Any]) -> str:
    """The whole page around ``content`` (title, subtitle, run, arrays, study)."""
    parts = {
        "TITLE": html.escape(str(content["title"])),
        "STYLE": _read("style.css"),
        "SCRIPT": joined_scripts(),
        # Only a page with parts asks for anything, and only for what lies beside it.
        "CONNECT": "; connect-src 'self'" if content.get("parts") else "",
        "PAYLOAD": script_safe({**content, "looks": _looks()}),
    }
    # Split once, so that a marker inside a title or a payload is never taken for ours.
    pieces = _read("page.html").split("@@")
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def joined_scripts() -> str:
    """The page's whole script."""
    return "\n".join(_read(name) for name in SCRIPTS)


def _looks() -> dict[str, dict[str, Any]]:
    """How every declared method is drawn, and whether it reads the message set."""
    return {
        name: {**asdict(method.look), "message_set": method.message_set}
        for name, method in METHODS.items()
    }


def _read(name: str) -> str:
    return (
        resources.files("gnn_repair.reporting").joinpath("page", name).read_text(encoding="utf-8")
    )
