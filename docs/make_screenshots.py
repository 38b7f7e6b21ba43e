"""Write docs/pictures from the recorded studies of docs/reports: ``python docs/make_screenshots.py``.

Needs chromium and chromium-driver. The page of these studies is first written as it is today; each picture is a part of
it, as its reader sees it.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from selenium import webdriver

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from advisor.report.page.document import PageDocument  # noqa: E402
from advisor.report.page.page_text import page_text  # noqa: E402
from benchmarks.browser import RECORDED, open_chromium, recorded_document  # noqa: E402

PICTURES = DOCS / "pictures"
MOST_BYTES = 150_000


class Shot(NamedTuple):
    """What to show.

    Attributes:
        study: Position among the recorded studies; ``None`` for all of them on one page.
        selectors: The elements to show, from the first one's top to the last one's bottom.
        width: Of the window, in CSS pixels.
    """

    study: int | None
    selectors: tuple[str, ...]
    width: int = 1120
    dark: bool = False


SHOTS = {
    "report-answer": Shot(0, ("#answer",)),
    "report-throughput": Shot(0, ("#throughput",)),
    "report-memory": Shot(0, ("#memory",), dark=True),
    "report-cost": Shot(1, ("#cost",)),
    "report-size": Shot(2, ("#size",)),
    "report-policies": Shot(0, ("#policies",)),
    "report-side-by-side": Shot(None, ("#compare",)),
    "report-phone": Shot(0, ("#head", "#answer"), width=390),
}

_BOX = """
const boxes = arguments[0].map((one) => document.querySelector(one).getBoundingClientRect());
return [boxes[0].left + scrollX, boxes[0].top + scrollY, boxes[0].width, boxes.at(-1).bottom - boxes[0].top];
"""


def main() -> None:
    """Take all of them."""
    PICTURES.mkdir(exist_ok=True)
    document = recorded_document()
    RECORDED.write_text(page_text(msgspec.convert(document, PageDocument, strict=False)), encoding="utf-8")
    driver = open_chromium()
    try:
        for name, shot in SHOTS.items():
            studies = document["studies"] if shot.study is None else [document["studies"][shot.study]]
            text = page_text(msgspec.convert({**document, "studies": studies}, PageDocument, strict=False))
            picture = _taken(driver, text, shot)
            assert len(picture) <= MOST_BYTES, f"{name} has {len(picture)} bytes"
            (PICTURES / f"{name}.webp").write_bytes(picture)
    finally:
        driver.quit()


def _taken(driver: webdriver.Chrome, text: str, shot: Shot) -> bytes:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if shot.dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    size: dict[str, Any] = {"width": shot.width, "height": 900, "deviceScaleFactor": 1.25, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "report.html")
        page.write_text(text, encoding="utf-8")
        driver.get(page.as_uri())
    left, top, width, height = driver.execute_script(_BOX, shot.selectors)
    # A little of what is around, as on the page; a long table ends somewhere.
    clip = {
        "x": max(0, left - 8),
        "y": max(0, top - 8),
        "width": width + 16,
        "height": min(height + 16, 1100),
        "scale": 1,
    }
    wanted = {"format": "webp", "quality": 80, "captureBeyondViewport": True, "clip": clip}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", wanted)["data"])


if __name__ == "__main__":
    main()
