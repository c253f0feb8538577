"""Answers about what is made by hand, tables and files of earlier versions, as recorded."""

from __future__ import annotations

from tests.golden.golden import recorded

test_everything_is_as_recorded = recorded("lps", "heads", "labels", "diagnosis", "study", "files")
