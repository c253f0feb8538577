"""Whole models: exposures, their words and their answers, as recorded."""

from __future__ import annotations

from tests.golden.golden import recorded

test_everything_is_as_recorded = recorded(
    "head-gallery", "conventions", "census", "node-types", "links"
)
