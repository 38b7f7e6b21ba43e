"""What a reader of a study for each goal sees: the answer, the pictures, and what a picture lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chrome import Chrome
from .pages import study_of

GOALS = ("faster", "cheapest", "bigger")
OWN_PICTURE = {"faster": "throughput", "cheapest": "cost", "bigger": "size"}


@pytest.fixture(params=GOALS)
def goal(request: pytest.FixtureRequest, chrome: Chrome, pages: Path) -> str:
    name = str(request.param)
    chrome.open(pages / f"{name}.html")
    return name


def test_the_page_opens_without_a_word_on_the_console_and_asks_nobody(chrome: Chrome, pages: Path, goal: str) -> None:
    assert chrome.console() == []
    assert chrome.requests() == [(pages / f"{goal}.html").as_uri()]


def test_the_answer_comes_first_in_one_screen(chrome: Chrome, goal: str) -> None:
    assert chrome.text("#answer h2") == study_of(goal)["answer"]["headline"]
    assert chrome.js("return document.querySelector('.apply').getBoundingClientRect().bottom") < 900
    for sentence in study_of(goal)["answer"]["why"]:
        assert sentence in chrome.text(".why")


def test_every_picture_is_drawn_or_says_what_is_missing(chrome: Chrome, goal: str) -> None:
    drawn = chrome.js("return [...document.querySelectorAll('.picture')].map((one) => [one.id, one.querySelectorAll('.canvas svg').length])")
    assert [name for name, count in drawn if count == 0] == []
    missing = chrome.count(".missing dt")
    common = {"throughput", "memory", "peaks", "step", "gradients", "losses", "course", OWN_PICTURE[goal]}
    assert len(drawn) + missing == len(common)
    assert OWN_PICTURE[goal] in {name for name, _ in drawn}
    assert chrome.js("return [...document.querySelectorAll('.missing dd')].every((one) => one.textContent.length > 20)")


def test_each_measured_point_is_a_mark_of_its_source(chrome: Chrome, goal: str) -> None:
    curves = study_of(goal)["throughput"]
    sources = [point["samples_per_second"]["source"] for curve in curves for kind in ("points", "predicted") for point in curve.get(kind, [])]
    for source in set(sources):
        assert chrome.count(f"#throughput .dots-{source} path, #throughput .dots-{source} circle") == sources.count(source)
    filled = {"measured": True, "profiled": False, "predicted": False}
    for source in set(sources) & set(filled):
        surface = chrome.js("return document.querySelector(arguments[0]).getAttribute('fill') === 'var(--surface)'", f"#throughput .dots-{source}")
        assert surface != filled[source]


def test_each_picture_says_in_words_what_it_shows(chrome: Chrome, goal: str) -> None:
    labels = chrome.js("return [...document.querySelectorAll('.picture .canvas > *')].map((one) => [one.getAttribute('role'), one.getAttribute('aria-label')])")
    assert all(role == "img" and len(words) > 30 for role, words in labels)
    details = chrome.all(".picture details")
    assert len(details) == chrome.count(".picture")
    for one in details:
        chrome.js("arguments[0].open = true", one)
    chrome.wait("return [...document.querySelectorAll('.picture details')].every((one) => one.querySelector('tbody tr'))")


def test_numbers_read_as_in_the_terminal(chrome: Chrome, pages: Path) -> None:
    from advisor.text.units import format_bytes, format_percent, format_rate, format_seconds

    chrome.open(pages / "faster.html")
    values = [0.0, 0.00123, 0.0999, 0.1, 0.314, 1.0, 9.99, 9.996, 12.345, 99.94, 99.96, 999.4, 1234.5, 98765.4, 1.5e9]
    assert chrome.js("return arguments[0].map(significant)", values[1:]) == [format_rate(one) for one in values[1:]]
    assert chrome.js("return arguments[0].map(seconds)", values[1:]) == [format_seconds(one) for one in values[1:]]
    assert chrome.js("return arguments[0].map(percent)", values) == [format_percent(one).replace(",", "") for one in values]
    assert chrome.js("return arguments[0].map(bytes)", values) == [format_bytes(int(one)) for one in values]
