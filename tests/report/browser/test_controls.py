"""What a reader can do: sort, filter, open, move limits, copy, change the study; by mouse and by keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chrome import Chrome, Keys
from .pages import document_of, study_of, text_of


@pytest.fixture
def faster(chrome: Chrome, pages: Path) -> Chrome:
    chrome.open(pages / "faster.html")
    return chrome


@pytest.fixture
def cheapest(chrome: Chrome, pages: Path) -> Chrome:
    chrome.open(pages / "cheapest.html")
    return chrome


def test_a_column_sorts_in_both_directions_and_says_so(faster: Chrome) -> None:
    number = faster.header("Samples/s")
    for state, order in (("descending", -1), ("ascending", 1)):
        faster.click_header("Samples/s")
        assert faster.js("return document.querySelectorAll('.policies th')[arguments[0]].ariaSort", number) == state
        shown = [float(one.strip("~").replace(",", "")) for one in faster.column(number) if one != "–"]
        assert len(shown) > 3
        assert shown == sorted(shown, key=lambda one: order * one)
        assert set(faster.column(number)[len(shown) :]) <= {"–"}, "those without a value come last"
    assert faster.count(".policies th[aria-sort]:not([aria-sort=none])") == 1


def test_words_leave_the_policies_that_have_them_all(faster: Chrome) -> None:
    policies = study_of("faster")["policies"]
    faster.one(".filters input").send_keys("bf16 fused")
    name = faster.header("Policy")
    shown = faster.column(name)
    assert 0 < len(shown) < len(policies)
    assert all("bf16" in one and "fused" in one for one in shown)
    assert faster.text(".policies [role=status]") == f"{len(shown)} of {len(policies)} policies"


def test_an_outcome_leaves_the_policies_that_ended_so(faster: Chrome) -> None:
    policies = study_of("faster")["policies"]
    faster.js("const one = document.querySelector('.filters select'); one.value = 'screened'; one.dispatchEvent(new Event('change'))")
    assert len(faster.column(0)) == sum(one["outcome"] == "screened" for one in policies) > 0


def test_each_policy_has_its_wrapper_its_command_and_its_reason(faster: Chrome) -> None:
    study = study_of("faster")
    by_id = {one["id"]: one for one in study["policies"]}
    for identifier in (study["answer"]["policy"], next(i for i, one in by_id.items() if one["outcome"] == "screened")):
        policy = by_id[identifier]
        faster.js("document.querySelector(`[aria-controls='policy-${arguments[0]}']`).click()", identifier)
        text = faster.text(f"#policy-{identifier}")
        assert policy.get("reason", "") in text
        assert policy["command"] in text
        assert text_of(study, policy["wrapper"]).strip() in text


def test_a_limit_moves_the_pick_to_the_cheapest_within_it(cheapest: Chrome) -> None:
    study = study_of("cheapest")
    frontier = [one for one in study["frontier"]["places"] if one.get("on_frontier")]
    names = {one["id"]: one["name"] for one in study["policies"]}
    knee = study["frontier"]["places"][study["frontier"]["knee"]]
    assert names[knee["policy"]] in cheapest.text(".pick")
    for place in sorted(frontier, key=lambda one: one["latency_seconds"]["value"]):
        limit = place["latency_seconds"]["value"]
        within = [one for one in frontier if one["latency_seconds"]["value"] <= limit]
        cheapest.slide("latency", limit)
        best = min(within, key=lambda one: one["cost_usd"]["value"])
        assert names[best["policy"]] in cheapest.text(".pick")
        assert cheapest.count("#cost .picked circle") == 1
    cheapest.slide("latency", min(one["latency_seconds"]["value"] for one in study["frontier"]["places"]) / 2)
    assert cheapest.console() == []


def test_a_limit_that_nothing_keeps_is_said(cheapest: Chrome) -> None:
    cheapest.js("document.querySelectorAll('.sliders input').forEach((one) => { one.value = 0; one.dispatchEvent(new Event('input')); })")
    frontier = [one for one in study_of("cheapest")["frontier"]["places"] if one.get("on_frontier")]
    both = min(frontier, key=lambda one: one["latency_seconds"]["value"])
    places = study_of("cheapest")["frontier"]["places"]
    kept = both["cost_usd"]["value"] <= min(one["cost_usd"]["value"] for one in places) and both["latency_seconds"]["value"] <= min(
        one["latency_seconds"]["value"] for one in places
    )
    assert ("No policy" in cheapest.text(".pick")) == (not kept)


def test_a_copy_button_puts_the_whole_text_on_the_clipboard(faster: Chrome) -> None:
    faster.js("document.querySelector('.apply .copy').click()")
    faster.wait("return document.querySelector('.apply .copy').textContent === 'Copied'")
    assert "Copied" in faster.text("#announcements")
    field = faster.one(".filters input")
    field.send_keys(Keys.CONTROL, "v")
    pasted = field.get_attribute("value")
    assert pasted == faster.text(".apply code").replace("\n", "")


def test_without_a_clipboard_the_text_is_selected(faster: Chrome) -> None:
    faster.js("Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = () => false")
    faster.js("document.querySelector('.apply .copy').click()")
    faster.wait("return document.querySelector('.apply .copy').textContent.startsWith('Selected')")
    assert faster.js("return String(getSelection())").strip() == faster.text(".apply code").strip()


def test_everything_is_reached_and_done_by_keyboard(faster: Chrome) -> None:
    faster.press(Keys.TAB)
    assert faster.focused() == "Skip to the answer"
    faster.press(Keys.ENTER)
    faster.js("document.querySelectorAll('.policies th button')[0].focus()")
    faster.press(Keys.ENTER)
    assert faster.js("return document.querySelector('.policies th').ariaSort") == "descending"
    faster.js("document.querySelector('.policies .toggle').focus()")
    faster.press(Keys.SPACE)
    assert faster.count(".policies .detail:not([hidden])") == 1
    unreachable = "return [...document.querySelectorAll('button, input, select, summary, a, .scroll, pre')].filter((one) => one.tabIndex < 0).length"
    assert faster.js(unreachable) == 0
    assert "solid" in faster.js("document.querySelector('.policies .toggle').focus(); return getComputedStyle(document.activeElement).outlineStyle")


def test_several_studies_are_compared_and_each_can_be_shown(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "all.html")
    studies = document_of("all")["studies"]
    assert chrome.count("#compare thead th") == len(studies)
    buttons = chrome.count(".tabs button")
    assert buttons == len(studies)
    names = chrome.js("return [...document.querySelectorAll('.tabs button')].map((one) => one.textContent)")
    assert len(set(names)) == len(studies)
    for number, study in enumerate(studies):
        chrome.js("document.querySelectorAll('.tabs button')[arguments[0]].click()", number)
        assert chrome.text("#answer h2") == study["answer"]["headline"]
        assert chrome.js("return document.querySelectorAll('.tabs button')[arguments[0]].ariaPressed", number) == "true"
    assert chrome.console() == []
