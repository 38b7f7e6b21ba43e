"""A headless Chromium, and a document to open: for the tests of the report page, its screenshots and its benchmark."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException

__all__ = ["RECORDED", "open_chromium", "recorded_document"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


RECORDED = Path(__file__).resolve().parents[1] / "docs" / "reports" / "small_gpt2.html"
"""The committed report page."""


def recorded_document() -> dict[str, Any]:
    """The document of the committed page: one real study for each goal."""
    found = re.search(r'id="document">(.*?)</script>', RECORDED.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "the page holds its document"
    return dict(json.loads(found[1]))


def open_chromium() -> webdriver.Chrome:
    """Start the installed browser without a window. The caller quits it.

    Raises:
        LookupError: There is none, or it does not start; says which.
    """
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        raise LookupError(f"no {'chromium' if browser is None else 'chromedriver (chromium-driver)'} is installed here")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--window-size=1280,900", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses to run as root with it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    except WebDriverException as error:
        raise LookupError(f"{browser} does not start here: {error.msg}") from None
