"""How large the report page is, and how long a browser takes to open it.

    python -m benchmarks.report_page                       # about a minute; needs chromium and chromium-driver

Opens the recorded studies of docs/reports, alone and side by side, and one of two hundred trials, made by repeating the
policies of the recorded one under other names. Each page is opened seven times in a headless Chromium, from a file;
*open* is the time until everything is drawn, as the browser's own clock says it. Prints a Markdown page and writes it.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import platform
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from selenium import webdriver

from advisor.report.page.document import PageDocument
from advisor.report.page.page_text import page_text
from advisor.text.units import format_bytes, format_seconds
from benchmarks.browser import open_chromium, recorded_document

__all__ = ["main", "of_many_trials"]

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "report-page.md"
_TRIALS = 200
_TIMES = 7
_DRAWN = "return [performance.getEntriesByType('navigation')[0].loadEventEnd, document.querySelectorAll('svg').length]"


def of_many_trials(document: dict[str, Any], trials: int) -> dict[str, Any]:
    """Its first study, with as many policies, each of a combination with its own curve and place in the course."""
    study = copy.deepcopy(document["studies"][0])
    policies, curves = study["policies"], study["throughput"]
    for number in range(len(policies), trials):
        policy = copy.deepcopy(policies[number % len(policies)])
        name = f"{policy['name']} + variant {number}"
        policy |= {"id": f"p{number}", "combination": f"more{number}", "name": name, "roles": [], "rank": number + 1}
        curve = copy.deepcopy(curves[number % len(curves)]) | {"combination": policy["combination"], "name": name}
        study["course"].append({"number": number + 1, "policy": policy["id"], "best": study["answer"]["policy"]})
        policies.append(policy)
        curves.append(curve)
    return {**document, "studies": [study]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_page", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=_PAGE, help="file (default: docs/results/report-page.md)")
    output = parser.parse_args(arguments).output
    document = recorded_document()
    pages = {f"{one['goal']['kind']}, {len(one['policies'])} policies": [one] for one in document["studies"]}
    pages["all of them, side by side"] = document["studies"]
    pages[f"{_TRIALS} policies"] = of_many_trials(document, _TRIALS)["studies"]
    driver = open_chromium()
    try:
        rows = [_row(driver, name, {**document, "studies": studies}) for name, studies in pages.items()]
        browser = driver.capabilities["browserVersion"]
    finally:
        driver.quit()
    lines = [
        "<!-- Written by python -m benchmarks.report_page. Do not edit. -->",
        "",
        "# The report page: size and time to open",
        "",
        f"Chromium {browser} without a window, {platform.machine()}, {datetime.date.today().isoformat()}. Median of",
        f"{_TIMES} times, and the slowest. The limits are 3 MB, and one second for {_TRIALS} trials.",
        "",
        "| study | size | pictures and marks | open | slowest |",
        "|---|---|---|---|---|",
        *rows,
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    output.write_text(text)


def _row(driver: webdriver.Chrome, name: str, document: dict[str, Any]) -> str:
    text = page_text(msgspec.convert(document, PageDocument, strict=False))
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "report.html")
        page.write_text(text, encoding="utf-8")
        seen = [_opened(driver, page) for _ in range(_TIMES)]
    times = [milliseconds / 1000 for milliseconds, _ in seen]
    middle, slowest = format_seconds(statistics.median(times)), format_seconds(max(times))
    return f"| {name} | {format_bytes(len(text.encode()))} | {seen[0][1]} | {middle} | {slowest} |"


def _opened(driver: webdriver.Chrome, page: Path) -> tuple[float, int]:
    driver.get("about:blank")
    driver.get(page.as_uri())
    milliseconds, pictures = driver.execute_script(_DRAWN)
    return float(milliseconds), int(pictures)


if __name__ == "__main__":
    main()
