"""On a phone, in the dark, on paper, without motion, and with names that would like to be markup."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from .chrome import Chrome
from .pages import HOSTILE

PAIRS = (("body", "body"), (".lead", ".card"), (".quiet", ".card"), (".why li", ".card"), ("td", ".card"), ("th button", ".card"), (".status strong", ".status"), ("summary", ".card"))
"""A text and what lies behind it."""


@pytest.mark.parametrize("name", ["faster", "cheapest", "bigger", "all", "hostile"])
def test_nothing_is_wider_than_a_phone(chrome: Chrome, pages: Path, name: str) -> None:
    chrome.open(pages / f"{name}.html", width=360)
    assert chrome.js("return document.documentElement.scrollWidth") <= 360
    wide = """return [...document.querySelectorAll('.canvas svg')].filter((one) => one.getBoundingClientRect().right > 360).length"""
    assert chrome.js(wide) == 0
    assert chrome.console() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast_on_what_is_behind_it(chrome: Chrome, pages: Path, dark: bool) -> None:
    chrome.open(pages / "cheapest.html", dark=dark)
    background = luminance(chrome.style("body", "backgroundColor"))
    assert (background < 0.05) == dark
    for text, behind in PAIRS:
        light, deep = sorted((luminance(chrome.style(text, "color")), luminance(chrome.style(behind, "backgroundColor"))), reverse=True)
        assert (light + 0.05) / (deep + 0.05) >= 4.5, (text, behind)


def test_pictures_take_the_colours_of_the_page(chrome: Chrome, pages: Path) -> None:
    found = []
    for dark in (False, True):
        chrome.open(pages / "faster.html", dark=dark)
        found.append((chrome.style("#throughput .canvas svg", "color"), chrome.style("#throughput .dots-measured", "stroke")))
    assert found[0][0] != found[1][0]


def test_paper_has_the_pictures_and_no_controls(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "cheapest.html", dark=True, media="print")
    for selector in (".copy", ".filters", ".sliders", ".sections"):
        assert chrome.style(selector, "display") == "none"
    assert luminance(chrome.style("body", "backgroundColor")) == 1
    printed = base64.b64decode(chrome.command("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3
    assert chrome.console() == []


def test_nothing_moves_for_who_asked_for_no_motion(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    assert chrome.style("html", "scrollBehavior") == "auto"
    assert chrome.style(".copy", "transitionDuration") == "0s"


def test_hostile_names_are_text(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "hostile.html")
    assert chrome.js("return [typeof window.hacked, document.querySelectorAll('img, iframe, object, embed, base, link').length]") == ["undefined", 0]
    chrome.js("document.querySelectorAll('details').forEach((one) => { one.open = true; }); document.querySelectorAll('.toggle').forEach((one) => one.click())")
    chrome.wait("return document.querySelectorAll('.picture details tbody').length > 0")
    assert HOSTILE in chrome.text("#answer")
    assert HOSTILE in chrome.text(".policies")
    assert chrome.js("return [typeof window.hacked, document.querySelectorAll('img, iframe, object, embed, base, link').length]") == ["undefined", 0]
    assert chrome.requests() == [(pages / "hostile.html").as_uri()]
    assert chrome.console() == []


def test_the_policy_of_the_page_stops_what_would_run_or_call_out(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    chrome.js("const one = document.createElement('script'); one.textContent = 'window.hacked = 1'; document.body.append(one)")
    chrome.js("const one = document.createElement('img'); one.src = 'https://example.invalid/x.png'; document.body.append(one)")
    assert chrome.js("try { return Boolean(new Function('return 1')()) } catch { return 'refused' }") == "refused"
    assert chrome.js("return typeof window.hacked") == "undefined"
    assert chrome.js("return fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in message for message in chrome.console())


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(...)``, as WCAG defines it."""
    parts = [int(one) / 255 for one in re.findall(r"\d+", color)[:3]]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
