"""The pictures of docs/howto/report.md: ``-m tests.helpers.report.pictures PAGE.html NODE LOST``.

PAGE is a report, NODE an error whose evidence is there, LOST one whose evidence is not (not a
test).
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

from tests.helpers.report.browser import open_browser

IMAGES = Path(__file__).parents[3] / "docs" / "images"


def draw(page: Path, node: str, lost: str) -> None:
    """Write the four pictures."""
    with open_browser() as browser:
        for name, fragment, width, height, theme, part in (
            ("overview", "", 1200, 1180, "light", None),
            ("node", f"#node={node}", 1280, 1150, "light", None),
            ("unreachable", f"#node={lost}", 1280, 1150, "light", (292, 70, 975, 1075)),
            ("phone", f"#node={node}", 390, 1280, "dark", None),
        ):
            with browser.medium(features=[{"name": "prefers-color-scheme", "value": theme}]):
                browser.open(page, fragment, width)
                browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
                browser.resize(width, height)
                browser.settle()
                _save(browser, IMAGES / f"report-{name}.png", part)


def _save(browser: Any, path: Path, part: tuple[int, int, int, int] | None) -> None:
    from PIL import Image

    shot = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    if part:
        left, top, wide, high = part
        picture = picture.crop((left, top, left + wide, top + high))
    # A third of the size; without the means a palette turns an orange diamond yellow.
    palette = picture.quantize(
        256, method=Image.Quantize.FASTOCTREE, kmeans=12, dither=Image.Dither.NONE
    )
    palette.save(path, optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]).resolve(), *sys.argv[2:4])
