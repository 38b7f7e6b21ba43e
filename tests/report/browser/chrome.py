"""One headless Chromium, and what the tests of the page ask it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.browser import open_chromium

__all__ = ["Chrome", "Keys", "chrome_or_skip"]

_LOADS = ("Network.requestWillBeSent", "Network.webSocketCreated", "Network.webTransportCreated")


@contextmanager
def chrome_or_skip() -> Iterator[Chrome]:
    """A browser without a window; the test is skipped, and says why, where there is none."""
    try:
        driver = open_chromium()
    except LookupError as error:
        pytest.skip(str(error))
    try:
        yield Chrome(driver)
    finally:
        driver.quit()


class Chrome:
    """A page in the browser, as the tests look at it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, media: str = "") -> None:
        """Load a page as a reader with such a window would, and forget what was logged before."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self._driver.get("about:blank")
        self.logged()
        self._driver.get(page.as_uri())

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(name, parameters)

    def js(self, script: str, *arguments: Any) -> Any:
        """What a function with this body returns."""
        return self._driver.execute_script(script, *arguments)

    def each(self, selector: str, expression: str) -> list[Any]:
        """An expression of ``one`` for every element of a selector."""
        script = f"return [...document.querySelectorAll(arguments[0])].map((one) => {expression})"
        return list(self.js(script, selector))

    def first(self, selector: str, expression: str) -> Any:
        """An expression of ``one`` for the first of them."""
        return self.js(f"const one = document.querySelector(arguments[0]); return {expression}", selector)

    def text(self, selector: str) -> str:
        """The text of the first one, also where it is not seen."""
        return str(self.first(selector, "one.textContent"))

    def count(self, selector: str) -> int:
        """How many there are."""
        return len(self.each(selector, "0"))

    def style(self, selector: str, name: str) -> str:
        """A computed property of the first one."""
        return str(self.first(selector, f"getComputedStyle(one)['{name}']"))

    def click(self, selector: str) -> None:
        """Click where a reader would."""
        self._driver.find_element(By.CSS_SELECTOR, selector).click()

    def point(self, selector: str) -> None:
        """Move the mouse there."""
        target = self._driver.find_element(By.CSS_SELECTOR, selector)
        ActionChains(self._driver).scroll_to_element(target).move_to_element(target).perform()

    def put(self, selector: str, value: object, event: str) -> None:
        """Give a control a value, as its user would."""
        self.first(selector, f"(one.value = {json.dumps(value)}, one.dispatchEvent(new Event('{event}')))")

    def write(self, selector: str, *keys: str) -> None:
        """Type into a field."""
        self._driver.find_element(By.CSS_SELECTOR, selector).send_keys(*keys)

    def press(self, key: str) -> None:
        """A key, to whatever has the focus."""
        self._driver.switch_to.active_element.send_keys(key)

    def wait(self, condition: str, seconds: float = 5) -> None:
        """Until an expression is true."""
        until = WebDriverWait(self._driver, seconds, poll_frequency=0.02).until
        until(lambda _: self.js(f"return {condition}"))

    def column(self, label: str) -> list[str]:
        """The texts of a column of the table of policies, as shown."""
        number = self.header(label)
        return self.each(".policies tbody tr:not(.detail)", f"one.cells[{number}].textContent")

    def header(self, label: str) -> int:
        """The number of a column of the table of policies."""
        return self.each(".policies th button", "one.firstChild.textContent").index(label)

    def logged(self) -> tuple[list[str], list[str]]:
        """Since the last call: what the console said, and which addresses were asked for, whatever came of it."""
        console = [entry["message"] for entry in self._driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        asked = [one["params"] for one in events if one["method"] in _LOADS]
        return console, [one.get("request", one).get("url", "") for one in asked]
