"""axe-core, where it is at hand: ``npm install --no-save axe-core`` in the repository's root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
SCRIPT = Path(os.environ.get("GNN_REPAIR_AXE") or HOME)
"""GNN_REPAIR_AXE may name it."""
RUN = """
const done = arguments[0], tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
axe.run(document, {runOnly: [...tags, "best-practice"]}).then(found => done(found.violations
  .filter(one => ["serious", "critical"].includes(one.impact)).map(one => [one.id, one.nodes
  .map(n => n.target.join(" ") + ": " + n.failureSummary)])), fault => done(String(fault)))"""


def violations(browser: Any) -> list[Any]:
    """What axe-core finds serious or critical on the page as it is shown."""
    browser.run(SCRIPT.read_text(encoding="utf-8") + "\nwindow.axe = axe;")
    browser.driver.set_script_timeout(60)
    return list(browser.driver.execute_async_script(RUN))
