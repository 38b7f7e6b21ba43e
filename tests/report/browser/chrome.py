"""One headless Chromium, and what the tests of the page ask it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install '.[test]'")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

__all__ = ["Chrome", "Keys", "chrome_or_skip"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LOADS = ("Network.requestWillBeSent", "Network.webSocketCreated", "Network.webTransportCreated")


@contextmanager
def chrome_or_skip() -> Iterator[Chrome]:
    """A browser without a window; the test is skipped, and says why, where there is none."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        missing = "browser (chromium)" if browser is None else "chromedriver (chromium-driver)"
        pytest.skip(f"no {missing} is installed here")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--window-size=1280,900", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses to run as root with it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield Chrome(chrome)
    finally:
        chrome.quit()


class Chrome:
    """A page in the browser, as the tests look at it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Load a page as a reader with such a window would, and forget what was logged before."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._driver.get("about:blank")
        self.console(), self.requests()
        self._driver.get(page.as_uri())

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(name, parameters)

    def js(self, script: str, *arguments: Any) -> Any:
        """What a function with this body returns."""
        return self._driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """All elements of a selector."""
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The first of them."""
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of the first one, also where it is not seen."""
        return str(self.js("return document.querySelector(arguments[0]).textContent", selector))

    def count(self, selector: str) -> int:
        """How many there are."""
        return int(self.js("return document.querySelectorAll(arguments[0]).length", selector))

    def column(self, number: int) -> list[str]:
        """The texts of a column of the table of policies, as shown."""
        script = "return [...document.querySelectorAll('.policies tbody tr:not(.detail)')].map((one) => one.cells[arguments[0]].textContent)"
        return list(self.js(script, number))

    def style(self, selector: str, name: str) -> str:
        """A computed property."""
        return str(self.js("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name))

    def press(self, *keys: str) -> None:
        """Keys, to whatever has the focus."""
        for key in keys:
            self._driver.switch_to.active_element.send_keys(key)

    def focused(self) -> str:
        """The text of what has the focus."""
        return str(self.js("return document.activeElement.textContent"))

    def wait(self, condition: str, seconds: float = 5) -> None:
        """Until a function with this body returns something true."""
        WebDriverWait(self._driver, seconds, poll_frequency=0.02).until(lambda _: self.js(condition))

    def header(self, label: str) -> int:
        """The number of a column of the table of policies."""
        labels = self.js("return [...document.querySelectorAll('.policies th button')].map((one) => one.firstChild.textContent)")
        return int(labels.index(label))

    def click_header(self, label: str) -> None:
        """Sort by a column."""
        self.js("document.querySelectorAll('.policies th button')[arguments[0]].click()", self.header(label))

    def slide(self, name: str, limit: float) -> None:
        """Move a slider to the highest value that keeps a limit."""
        values = self.js("return [...new Set(readStudies(JSON.parse(document.getElementById('document').textContent))[0].places.map((one) => one[arguments[0]]))].sort((a, b) => a - b)", name)
        at = max(0, sum(one <= limit for one in values) - 1)
        script = "const one = document.querySelector(`[data-limit='${arguments[0]}']`); one.value = arguments[1]; one.dispatchEvent(new Event('input'))"
        self.js(script, name, at)

    def console(self) -> list[str]:
        """What the console has said since the last call: errors, warnings, violations of the policy."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call, whatever came of it."""
        events = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        return [
            event["params"].get("request", event["params"]).get("url", "")
            for event in events
            if event["method"] in _LOADS
        ]
