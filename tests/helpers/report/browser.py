"""A headless Chromium for the tests, or the reason why there is none."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnn_repair.reporting.payload import PageServer

PHONE = 390
DESKTOP = 1360


def missing() -> str:
    """Why no browser can be driven here; empty where one can."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install chromium chromium-driver)"
    return ""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium and end it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@contextmanager
def served(page: Path) -> Iterator[PageServer]:
    """A page whose terms lie beside it, on a server of its own."""
    with PageServer(page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Browser:
    """What the tests do with a page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, fragment: str = "", width: int = DESKTOP) -> None:
        """Load a report anew at a width in pixels."""
        self.driver.get("about:blank")
        self.resize(width)
        self.driver.get(f"{path.as_uri()}{fragment}")

    def show(self, fragment: str) -> None:
        """Go on to another place of the page that is open."""
        self.driver.execute_async_script(
            "const [place, done] = arguments;"
            "addEventListener('hashchange', () => requestAnimationFrame(() => done()),"
            " {once: true}); location.hash = place;",
            fragment,
        )

    def resize(self, width: int = DESKTOP, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript body's ``return``."""
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: str, *arguments: Any) -> Any:
        """Wait until a JavaScript expression holds, and give its value."""
        return self.wait(lambda: self.run(f"return {condition}", *arguments), condition)

    def wait(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until something holds, and give its value."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 20, poll_frequency=0.02).until(lambda _: holds(), what)

    def settle(self) -> None:
        """Wait for two frames: what observers and scrolling ask for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def unfold(self) -> None:
        """Open the overview's further charts and wait until they are drawn."""
        self.run("document.getElementById('more').open = true")
        self.until(
            "[...document.querySelectorAll('.chart > .picture')].every(box => box.firstChild)"
        )

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)",
            selector,
        )

    def click(self, selector: str, place: int = 0) -> None:
        """Whether it is in sight or not."""
        self.run(
            "[...document.querySelectorAll(arguments[0])].at(arguments[1])"
            ".dispatchEvent(new MouseEvent('click', {bubbles: true}))",
            selector,
            place,
        )

    def choose(self, selector: str, value: str) -> None:
        """Set a field as a person would, with its events."""
        self.run(
            "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
            "for (const kind of ['input', 'change'])"
            "  field.dispatchEvent(new Event(kind, {bubbles: true}));",
            selector,
            value,
        )

    def saved(self, selector: str) -> str:
        """The text of the file that a button saves."""
        text = self.driver.execute_async_script(
            "const done = arguments[1]; HTMLAnchorElement.prototype.click = () => {};"
            "URL.createObjectURL = blob => { blob.text().then(done); return 'data:,'; };"
            "document.querySelector(arguments[0]).click()",
            selector,
        )
        return str(text).removeprefix("\ufeff")

    @contextmanager
    def medium(self, **features: Any) -> Iterator[None]:
        """Another kind of device for a while, such as ``media="print"``."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver).send_keys(*[getattr(Keys, key) for key in keys]).perform()

    def selected(self) -> int:
        """The node that is shown, which the list shows as chosen."""
        listed = "return document.querySelector('.row[aria-selected=true]').dataset.node"
        node = int(self.run(listed))
        assert self.text("#node-head h2") == f"Node {node}"
        return node

    def shown(self) -> int:
        """How many nodes the list holds."""
        return int(re.match(r"([\d,]+) of", self.text("#count"))[1].replace(",", ""))

    def messages(self) -> list[str]:
        """What the console said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
