"""The page's scripts are checked as one, and the check notices what is wrong."""

from __future__ import annotations

import pytest

from gnn_repair.reporting.writing import SCRIPTS
from tools import lint_page


def test_every_script_is_part_of_the_page_and_none_has_a_long_line():
    files = {path.name: path.read_text(encoding="utf-8") for path in lint_page.PAGE.glob("*.js")}
    assert set(files) == set(SCRIPTS)
    assert [name for name, text in files.items() if lint_page.long_lines(text)] == []
    assert lint_page.long_lines("a" * 100 + "\n" + "γ" * 101) == [2]


@pytest.mark.parametrize(
    "fault",
    ["", "console.log(nothingOfThisName);"],
)
def test_the_linter_passes_the_page_and_notices_a_fault(monkeypatch, fault, capfd):
    whole = lint_page.joined_scripts()
    monkeypatch.setattr(lint_page, "joined_scripts", lambda: f"{whole}\n{fault}\n")
    assert lint_page.joined_is_sound() == (fault == "")
