"""What users see, and what is trained, as recorded; ``make golden`` rewrites what is named."""

from __future__ import annotations

import pytest

from tests.golden.golden import compare, found_in
from tests.helpers.report.browser import missing

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "part", ("repairs", "ladder", "pages", "diagnoses", "figures", "lines", "screens")
)
def test_everything_is_as_recorded(part):
    if part == "screens" and missing():
        pytest.skip(missing())
    assert compare(part, found_in(part)) == []
