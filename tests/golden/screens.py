"""What a browser shows of the recorded pages: words, cards, files, colours, and where marks stand.

Text is measured by its length here, so that pictures do not depend on the fonts of a machine.
"""

from __future__ import annotations

import atexit
import hashlib
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from gnn_repair.reporting.payload import needs_server
from tests.golden import shown
from tests.golden.record import numbers
from tests.helpers.report.browser import Browser, missing, open_browser, served

RULER = (
    "CanvasRenderingContext2D.prototype.measureText = (text) => ({ width: 6 * text.length });"
    "window.saved = []; window.pending = 0; const own = window.fetch;"
    "const later = () => setTimeout(() => pending--, 50);"
    "window.fetch = (...given) => { pending++; return own(...given).finally(later); };"
    " window.matchMedia = () => ({ matches: false, addEventListener() {} });"
)
SHOWN = """
const done = arguments[0], found = {};
URL.createObjectURL = (blob) => ((window.blob = blob), "data:,");
HTMLAnchorElement.prototype.click = function () {
  const name = this.download;
  window.saved.push(window.blob.text().then((text) => [name, text]));
};
for (const list of document.querySelectorAll("details:not([open])")) {
  pending++;
  list.addEventListener("toggle", () => setTimeout(() => pending--, 50), { once: true });
  list.open = true;
}
let before = "", same = 0;
function settled() {  // what is drawn in a later frame, or read from a file, is waited for
  // Two predictions side by side are drawn where they are in sight, and on paper.
  for (const kind of ["beforeprint", "afterprint"]) dispatchEvent(new Event(kind));
  const now = document.body.innerHTML.length + document.body.innerText;
  same = now === before && !pending ? same + 1 : 0;
  if (same === 3) return read();
  before = now;
  setTimeout(() => requestAnimationFrame(settled), 60);
}
const DRAWN = "rect, line, circle, path, polygon, text";
const NUMBERS = ["x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"];
const STATES = ["class", "aria-sort", "aria-selected", "aria-pressed", "disabled", "text-anchor"];
function looks(mark) {
  const colours = (mark.getAttribute("style") || "").match(/--[\\w-]+/g) || [];
  const chosen = mark.matches("select") ? mark.value : String(mark.checked || "");
  return [...STATES.map((name) => mark.getAttribute(name)), ...colours, chosen].join(" ");
}
function read() {
  for (const place of document.querySelectorAll("[id], .chart, .figure")) {
    if (!place.offsetParent || place.matches("main, option, button, #announce")) continue;
    const marks = [place, ...place.querySelectorAll("*")], tips = [];
    for (const mark of marks) {
      if (mark.tip) tips.push([].concat(typeof mark.tip === "function" ? mark.tip() : mark.tip));
      if (mark.go) tips.push(JSON.stringify(mark.go));
    }
    const sums = [0, 0, 0];
    for (const drawing of place.querySelectorAll("svg")) {
      const wide = drawing.viewBox.baseVal.width || 1;
      drawing.querySelectorAll(DRAWN).forEach((mark, j) => {
        sums[0]++;
        for (const [k, name] of NUMBERS.entries()) {
          const value = Number(mark.getAttribute(name)) / wide;
          sums[1] += value;
          sums[2] += value * Math.cos(j + 20 * k);
        }
        for (const name of ["d", "points", "style"])
          for (const value of (mark.getAttribute(name) || "").match(/-?[\\d.]+/g) || [])
            sums[1] += Number(value) / wide;
      });
    }
    const name = place.id || place.getAttribute("aria-label") || "tile";
    let key = name;
    for (let n = 2; key in found; n++) key = `${name} ${n}`;
    const text = (place.innerText || place.textContent).replace(/\\s+/g, " ").trim();
    if (text || sums[0])
      found[key] = [text, tips.flat(2).join("\\n"), sums, marks.map(looks).join("\\n")];
  }
  for (const one of document.querySelectorAll(".tools button, #nodes-csv, #terms-csv"))
    if (one.offsetParent && one.textContent === "CSV") one.click();
  Promise.all(window.saved.splice(0)).then((files) => {
    for (const [name, text] of files) found[name] = [text, "", [0, 0, 0], ""];
    done(found);
  });
}
settled();
"""
LISTS = (
    "nodes&status=wrong&order=gain", "nodes&status=reachable&order=degree&from=3&to=6",
    "nodes&repair=1%20corrected&order=node", "nodes&repair=2%20wrong&q=1",
    "nodes&label=1&predicted=2&gamma=~0&order=frozen-high", "nodes&homophily=0.2~0.6&gamma=0~",
    "nodes&support=1~1&order=gain%200", "nodes&status=beyond&order=margin-high",
    "nodes&a=0%20frozen&b=1%20frozen&pair=changed&order=changed",
)  # fmt: skip
GAPS = (
    "", "nodes&order=margin", "nodes&order=margin-high&gamma=~0", "nodes&status=cannot",
    "nodes&status=reachable", "nodes&order=gain&gamma=0~",
)  # fmt: skip
VIEWS = (
    "node=2&view=three&one=0&weigh=oracle&colour=prediction&sort=up%20source&what=oracle,0:0.3",
    "node=2&what=frozen,1:0.3,0:1,0:0.4&weigh=what_if",
    "node=29&view=spread&weigh=unit&sort=down%20over%201&hide=none",
    "node=8&two=3&frame=-3,2,-1,4&weigh=what_if&what=nearest,1:0.9", "node=17&fit=repairs",
    "node=14&fit=all&a=0%20%3Ci%3E0%3C/i%3E&b=1%20frozen&hide=0,3,5", "node=3", "node=x%3Cb%3E",
)  # fmt: skip
PLACES: dict[str, tuple[str, ...]] = {
    "affine": ("", *LISTS, "node=2", "node=29&a=0%20oracle&b=1%20reweighting", *VIEWS),
    "two classes": ("", "node=2", "node=8&what=frozen,0:0.9996&hide=none"),
    "head": ("", "node=2", "nodes&status=open", "node=12&view=spread&sort=up%20alone"),
    "graphs": ("", "node=1", "nodes&from=4", "node=3&view=three&one=0"),
    "types": ("", "node=3"),
    "ladder": ("", "node=20"),
    "one": ("",),
    "right": ("", "nodes"),
    "spoilt": ("", "node=3"),
    "study": ("", "overview&case=3", "node=3"),
    "sampled": ("", "nodes&status=wrong&order=margin"),
    "parts": ("node=2", "node=14"),
    "gaps": (*GAPS, "node=32", "node=3"),
    "gaps, head": (*GAPS, "nodes&status=undecided", "nodes&status=unreachable"),
}


@cache
def browser() -> Browser:
    """One for all pages, for as long as this process lives."""
    resources = ExitStack()
    atexit.register(resources.close)
    chromium = resources.enter_context(open_browser())
    source = {"source": RULER}
    chromium.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
    chromium.driver.set_script_timeout(60)
    return chromium


def of_screens() -> dict[str, Callable[[], Any]]:
    """By page, what stands at some of its addresses."""
    return {} if missing() else {name: partial(_screens, name) for name in PLACES}


def _screens(name: str) -> Any:
    driver, found = browser().driver, {}
    browser().resize(1360)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as resources:
        page = Path(folder) / "page.html"
        shown.PAGES[name](page)
        server = resources.enter_context(served(page)) if needs_server(page) else None
        address = page.as_uri() if server is None else server.address
        for place in PLACES[name]:
            driver.get("about:blank")
            driver.get(f"{address}#{place}")
            told = driver.execute_async_script(SHOWN)
            told.pop("made", None)
            found[place or "overview"] = {
                "said": {key: _of_place(key, one) for key, one in told.items()},
                "drawn": {key: numbers(one[2], 6) for key, one in told.items() if one[2][0]},
            }
    return {"precision": "float32", "places": found}


def _of_place(name: str, place: list[Any]) -> Any:
    """The words at a place; of a saved file also its numbers."""
    text, cards, _, looks = place
    return shown.of_text(text) if name.endswith(".csv") else _short("\n".join([text, cards, looks]))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


PARTS = {"screens": of_screens}
