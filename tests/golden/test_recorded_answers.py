"""Answers about what is made by hand, tables and files of earlier versions, as recorded.

``make golden`` compares all parts, and rewrites what is named.
"""

from __future__ import annotations

import pytest

from tests.golden.golden import compare, found_in

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "part",
    (
        "lps",
        "heads",
        "labels",
        "diagnosis",
        "study",
        "files",
    ),
)
def test_everything_is_as_recorded(part):
    assert compare(part, found_in(part)) == []
