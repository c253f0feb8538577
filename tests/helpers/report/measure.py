"""How quick a report page is: ``python -m tests.helpers.report.measure PAGE.html …``."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from tests.helpers.report.browser import open_browser, served

STEPS = 80
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
WALK = """
const [steps, done] = arguments, times = [];
function step() {
  const start = performance.now();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => {
    times.push(performance.now() - start);
    if (times.length < steps) setTimeout(step, 30); else done(times);
  }, 0));
}
const tab = document.getElementById("tab-nodes");
tab.click();
setTimeout(step, 500);
"""


def main(pages: list[str]) -> None:
    """Print first paint and the time of a node change, layout and drawing included."""
    with open_browser() as browser:
        for name in pages:
            page = Path(name).resolve()
            with served(page) as server:
                browser.resize()
                browser.driver.get(server.address)
                browser.run("return document.body.offsetHeight")
                browser.driver.set_script_timeout(60)
                times = sorted(browser.driver.execute_async_script(WALK, STEPS))
                paint = browser.run(PAINT)
            late = times[int(0.95 * len(times))]
            size = page.stat().st_size / 1e6
            print(
                f"{name}: {size:.1f} MB, first paint {paint:.0f} ms, node change "
                f"{statistics.median(times):.0f} / {late:.0f} / {times[-1]:.0f} ms "
                "(median / 95 % / worst)"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
