"""Layers and graphs: exposures, their words and their answers, as committed in records.

``make golden`` compares all parts, and rewrites what is named.
"""

from __future__ import annotations

import pytest

from tests.golden.golden import compare, found_in

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "part",
    (
        "convolutions",
        "products",
        "filters",
        "spellings",
        "pools",
        "outputs",
        "refusals",
        "head-models",
        "views",
    ),
)
def test_everything_is_as_recorded(part):
    assert compare(part, found_in(part)) == []
