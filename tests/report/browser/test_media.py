"""On a phone, in the dark, on paper, without motion, and with names that would like to be markup."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from .chrome import Chrome
from .pages import HOSTILE, PAGES

BEHIND = {
    "body": "body",
    ".lead": ".card",
    ".quiet": ".card",
    ".why li": ".card",
    "td": ".card",
    "th button": ".card",
    "summary": ".card",
    ".status strong": ".status",
    ".code figcaption": ".code",
}
"""A text -> what lies behind it."""


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_a_phone(chrome: Chrome, pages: Path, name: str) -> None:
    chrome.open(pages / f"{name}.html", width=360)
    assert chrome.first("html", "one.scrollWidth") <= 360
    assert max(chrome.each(".canvas svg", "one.getBoundingClientRect().right"), default=0) <= 360
    assert chrome.logged()[0] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast_on_what_is_behind_it(chrome: Chrome, pages: Path, dark: bool) -> None:
    chrome.open(pages / "cheapest.html", dark=dark)
    assert (luminance(chrome.style("body", "backgroundColor")) < 0.05) == dark
    for text, behind in BEHIND.items():
        pair = luminance(chrome.style(text, "color")), luminance(chrome.style(behind, "backgroundColor"))
        assert (max(pair) + 0.05) / (min(pair) + 0.05) >= 4.5, text


def test_pictures_take_the_colours_of_the_page(chrome: Chrome, pages: Path) -> None:
    found = []
    for dark in (False, True):
        chrome.open(pages / "faster.html", dark=dark)
        found.append(chrome.style("#peaks .canvas text", "fill"))
        assert chrome.style("#peaks .canvas svg", "color") == chrome.style("body", "color")
    assert found[0] != found[1]


def test_paper_has_the_pictures_and_no_controls(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "cheapest.html", dark=True, media="print")
    for selector in (".copy", ".filters", ".sliders", ".sections"):
        assert chrome.style(selector, "display") == "none"
    assert luminance(chrome.style("body", "backgroundColor")) == pytest.approx(1)
    printed = base64.b64decode(chrome.command("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3
    assert chrome.logged()[0] == []


def test_nothing_moves_for_who_asked_for_no_motion(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    assert chrome.style("html", "scrollBehavior") == "auto"
    assert chrome.style(".copy", "transitionDuration") == "0s"


def test_hostile_names_are_text(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "hostile.html")
    chrome.each("details", "one.open = true")
    chrome.each(".toggle", "one.click()")
    chrome.wait("document.querySelector('.picture details tbody') !== null")
    for place in ("#answer", ".policies", "#conditions", "#cost table", "h1"):
        assert HOSTILE in chrome.text(place)
    assert chrome.count("img, iframe, object, embed, base, link, .canvas style") == 0
    assert chrome.js("return typeof window.hacked") == "undefined"
    assert chrome.logged() == ([], [(pages / "hostile.html").as_uri()])


def test_the_policy_of_the_page_stops_what_would_run_or_call_out(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    assert "unsafe" not in chrome.first("meta[http-equiv=Content-Security-Policy]", "one.content")
    add = (
        "const one = document.createElement(arguments[0]); one[arguments[1]] = arguments[2]; document.body.append(one)"
    )
    chrome.js(add, "script", "textContent", "window.hacked = 1")
    chrome.js(add, "img", "src", "https://example.invalid/picture.png")
    assert chrome.js("return fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    assert chrome.js("return typeof window.hacked") == "undefined"
    refused = [one for one in chrome.logged()[0] if "Content Security Policy" in one]
    assert all(any(what in one for one in refused) for what in ("inline script", "picture.png", "connect-src"))


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(...)``, as WCAG defines it."""
    parts = [int(one) / 255 for one in re.findall(r"\d+", color)[:3]]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
