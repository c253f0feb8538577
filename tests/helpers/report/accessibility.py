"""axe-core, where it is at hand: ``npm install --no-save axe-core`` in the repository's root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

NAME = "GNN_REPAIR_AXE"
"""A variable that may name the script itself."""
HOME = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = (
    "const done = arguments[arguments.length - 1];"
    "axe.run(document, {runOnly: arguments[0]}).then(found => done(found.violations.map(one =>"
    " [one.impact, one.id, one.nodes.slice(0, 4).map(n => n.target.join(' ') + ': ' +"
    "  n.failureSummary)])), fault => done([['fault', String(fault), []]]))"
)


def axe_script() -> Path | None:
    """The script, None where there is none."""
    path = Path(os.environ.get(NAME) or HOME)
    return path if path.is_file() else None


def violations(browser: Any, script: Path) -> list[Any]:
    """What axe-core finds serious or critical on the page as it is shown."""
    browser.run(script.read_text(encoding="utf-8") + "\nwindow.axe = axe;")
    browser.driver.set_script_timeout(60)
    found = browser.driver.execute_async_script(RUN, TAGS)
    return [one for one in found if one[0] in ("serious", "critical", "fault")]
