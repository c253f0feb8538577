"""How quick a report page is: ``python -m tests.helpers.report.measure PAGE.html …``."""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_repair.reporting.payload import PageServer, needs_server
from tests.helpers.report.browser import Browser, open_browser

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


@contextmanager
def opened(browser: Browser, page: Path) -> Iterator[None]:
    """The page in the browser: as a file, or served where its terms lie beside it."""
    if not needs_server(page):
        browser.open(page)
        yield
        return
    with PageServer(page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.resize(1360)
        browser.driver.get(server.address)
        yield
        server.shutdown()


def main(pages: list[str]) -> None:
    """Print first paint and the time of a node change, layout and drawing included."""
    with open_browser() as browser:
        for name in pages:
            page = Path(name).resolve()
            with opened(browser, page):
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
