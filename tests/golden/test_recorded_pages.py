"""What users see, and what is trained, as recorded."""

from __future__ import annotations

from tests.golden.golden import recorded

test_everything_is_as_recorded = recorded(
    "repairs", "ladder", "pages", "diagnoses", "figures", "lines", "screens"
)
