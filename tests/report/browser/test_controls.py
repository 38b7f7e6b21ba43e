"""What a reader can do: sort, filter, open, move limits, copy, change the study; by mouse and by keyboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.text.units import format_percent

from .chrome import Chrome, Keys
from .pages import document_of, study_of, text_of

NOTHING = "\N{EN DASH}"
"""What stands in the table where there is no value."""


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
        faster.each(".policies th button", f"one.closest('th').cellIndex === {number} && one.click()")
        assert faster.each(".policies th", "one.ariaSort")[number] == state
        column = faster.column("Samples/s")
        shown = [float(one.strip("~").replace(",", "")) for one in column if one != NOTHING]
        assert len(shown) > 3
        assert shown == sorted(shown, key=lambda one: order * one)
        assert set(column[len(shown) :]) <= {NOTHING}, "those without a value come last"
    assert faster.count(".policies th[aria-sort]:not([aria-sort=none])") == 1


def test_words_leave_the_policies_that_have_them_all(faster: Chrome) -> None:
    faster.write(".filters input", "BF16 fused")
    policies = study_of("faster")["policies"]
    texts = [f"{one['name']} {one.get('reason', '')}" for one in policies]
    found = [one for one in texts if "bf16" in one and "fused" in one]
    assert 0 < len(faster.column("Policy")) == len(found) < len(policies)
    assert faster.text(".policies [role=status]") == f"{len(found)} of {len(policies)} policies"


def test_an_outcome_leaves_the_policies_that_ended_so(faster: Chrome) -> None:
    faster.put(".filters select", "ok", "change")
    ended = [one["outcome"] for one in study_of("faster")["policies"]]
    assert len(faster.column("Outcome")) == ended.count("ok") > 0


def test_each_policy_has_its_wrapper_its_command_and_its_reason(faster: Chrome) -> None:
    study = study_of("faster")
    for policy in study["policies"]:
        faster.first(f"[aria-controls='policy-{policy['id']}']", "one.click()")
        text = faster.text(f"#policy-{policy['id']}")
        assert policy.get("reason", "") in text
        assert policy.get("command", "") in text
        assert text_of(study, policy.get("wrapper", [])) in text
    assert any(one.get("wrapper") and one.get("command") for one in study["policies"])


def test_a_policy_that_can_be_measured_by_itself_has_the_command_for_it(faster: Chrome) -> None:
    command = "printf %s '{schema: 1}' | momadvise verify /dev/stdin model.py"
    text = faster.js(f"return policyDetail({{notes: [], verify_command: {json.dumps(command)}}}).textContent")
    assert f"Exactly this policy, measured beside the baselineCopy{command}" in text


def test_where_a_larger_model_was_asked_for_sizes_are_compared_with_the_baseline_and_not_throughputs(
    chrome: Chrome, pages: Path
) -> None:
    chrome.open(pages / "bigger.html")
    study = study_of("bigger")
    own = next(one for one in study["policies"] if one["id"] == study["answer"]["baseline"])["parameter_count"]
    largest = max(one["parameter_count"] for one in study["policies"]) / own - 1
    assert f"+{format_percent(largest)}" in chrome.column("Size vs baseline")


def test_a_policy_of_functions_has_a_program_for_it_that_keeps_its_lines(faster: Chrome) -> None:
    program = "import advisor\nimport train\n\nadvisor.tune(\n    build_model=train.build_model,\n)\n"
    detail = f"policyDetail({{notes: [], verifyProgram: {json.dumps(program)}}})"
    assert f"Exactly this policy, measured by a programCopy{program}" in faster.js(f"return {detail}.textContent")


def test_a_latency_picks_the_cheapest_within_it(cheapest: Chrome) -> None:
    frontier = frontier_of("cheapest")
    for place in frontier:
        limit = place["latency"]
        slide(cheapest, "latency", limit)
        best = min((one for one in frontier if one["latency"] <= limit), key=lambda one: one["cost"])
        assert best["name"] in cheapest.text(".pick")
        assert cheapest.count("#cost .picked circle") == 1
        assert cheapest.first("[data-limit=latency]", "one.getAttribute('aria-valuetext')").startswith("at most")


def test_a_cost_picks_the_fastest_within_it(cheapest: Chrome) -> None:
    frontier = frontier_of("cheapest")
    for place in frontier:
        slide(cheapest, "cost", place["cost"])
        best = min((one for one in frontier if one["cost"] <= place["cost"]), key=lambda one: one["latency"])
        assert best["name"] in cheapest.text(".pick")


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({"max_latency_seconds": 0.5}, {"latency": 0.5, "cost": None}),
        ({"deadline_seconds": 100.0, "iterations": 1000}, {"latency": 0.1, "cost": None}),
        ({"max_cost_usd": 3.0, "iterations": 1000}, {"latency": None, "cost": 0.003}),
        ({"max_cost_usd": 3.0}, {"latency": None, "cost": 3.0}),
    ],
    ids=str,
)
def test_the_readers_own_limits_are_those_of_one_iteration(
    asked: dict[str, float], limits: dict[str, float | None], cheapest: Chrome
) -> None:
    assert cheapest.js(f"return limitsOf({json.dumps(asked)})") == limits


def test_without_limits_the_searchs_own_pick_is_shown_and_too_tight_ones_are_said(cheapest: Chrome) -> None:
    study = study_of("cheapest")
    knee = study["frontier"]["places"][study["frontier"]["knee"]]["policy"]
    assert {one["id"]: one["name"] for one in study["policies"]}[knee] in cheapest.text(".pick")
    cheapest.js("return undefined")
    assert cheapest.js("return pickOf([{frontier: true, latency: 2, cost: 2}], {latency: 1, cost: null})") is None
    sentence = cheapest.js("return pickSentence([{frontier: true, latency: 2, cost: 2}], {latency: 1, cost: null})[0]")
    assert sentence.startswith("No policy on the frontier keeps these limits")


def test_a_copy_button_puts_the_whole_text_on_the_clipboard(faster: Chrome) -> None:
    faster.click(".apply .copy")
    faster.wait("document.querySelector('.apply .copy').textContent === 'Copied'")
    assert "Copied" in faster.text("#announcements")
    faster.write(".filters input", Keys.CONTROL, "v")
    pasted = faster.first(".filters input", "one.value")
    assert pasted.strip() == faster.text(".apply code").replace("\n", " ").strip()


def test_without_a_clipboard_the_text_is_selected(faster: Chrome) -> None:
    faster.js("Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = () => false")
    faster.click(".apply .copy")
    faster.wait("document.querySelector('.apply .copy').textContent.startsWith('Selected')")
    assert faster.js("return String(getSelection())").strip() == faster.text(".apply code").strip()


def test_everything_is_reached_and_done_by_keyboard(faster: Chrome) -> None:
    faster.press(Keys.TAB)
    assert faster.js("return document.activeElement.className") == "skip"
    faster.press(Keys.ENTER)
    faster.first(".policies th button", "one.focus()")
    faster.press(Keys.ENTER)
    assert faster.first(".policies th", "one.ariaSort") == "descending"
    faster.first(".policies .toggle", "one.focus()")
    faster.press(Keys.SPACE)
    assert faster.count(".policies .detail:not([hidden])") == 1
    assert faster.first(".policies .toggle", "[one.ariaExpanded, getComputedStyle(one).outlineStyle]") == [
        "true",
        "solid",
    ]
    assert min(faster.each("button, input, select, summary, a, .scroll, pre", "one.tabIndex")) == 0


def test_sliders_move_by_keyboard(cheapest: Chrome) -> None:
    limit = "[data-limit=latency]"
    before = cheapest.first(limit, "[one.value, one.getAttribute('aria-valuetext')]")
    cheapest.first(limit, "one.focus()")
    cheapest.press(Keys.HOME)
    tightest = cheapest.first(limit, "[one.value, one.getAttribute('aria-valuetext')]")
    assert tightest[0] == "0"
    assert tightest != before
    fastest = min(frontier_of("cheapest"), key=lambda one: one["latency"])
    assert fastest["name"] in cheapest.text(".pick")
    cheapest.press(Keys.ARROW_RIGHT)
    assert cheapest.first(limit, "one.value") == "1"


def test_several_studies_are_compared_and_each_can_be_shown(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "all.html")
    studies = document_of("all")["studies"]
    assert chrome.count("#compare thead th") == len(studies)
    assert len(set(chrome.each(".tabs button", "one.textContent"))) == len(studies)
    for number, study in enumerate(studies):
        chrome.click(f".tabs button:nth-child({number + 1})")
        assert chrome.text("#answer h2") == study["answer"]["headline"]
        assert chrome.each(".tabs button", "one.ariaPressed")[number] == "true"
    assert chrome.logged()[0] == []


def test_studies_of_one_title_in_folders_of_one_name_are_told_apart_and_drawn_together(
    chrome: Chrome, pages: Path
) -> None:
    """Trap: before/out and after/out had one name, in every table and legend."""
    chrome.open(pages / "twice.html")
    tabs = chrome.each(".tabs button", "one.textContent")
    assert [one.rpartition(" ")[2] for one in tabs] == ["(before/out)", "(after/out)"]
    assert chrome.count("#shared .canvas svg") == 1
    assert [one.strip() for one in chrome.each("#shared .legend li", "one.textContent")] == tabs
    legend = chrome.each("#shared .legend path", "one.getAttribute('fill')")
    assert len(set(legend)) == len(tabs), "filled, as its marks are"
    assert "none" not in legend
    different = "folderAmong({folder: 'a/b/c', id: 's0'}, [{folder: 'x/c'}, {folder: 'a/d'}])"
    assert chrome.js(f"return {different}") == "b/c"
    same = "const one = {folder: 'a', id: 's0'}; return folderAmong(one, [one, {folder: 'a', id: 's1'}])"
    assert chrome.js(same) == "s0"


def frontier_of(name: str) -> list[dict[str, Any]]:
    """Name, cost and latency of the frontier."""
    study = study_of(name)
    names = {one["id"]: one["name"] for one in study["policies"]}
    return [
        {"name": names[one["policy"]], "cost": one["cost_usd"]["value"], "latency": one["latency_seconds"]["value"]}
        for one in study["frontier"]["places"]
        if one.get("on_frontier")
    ]


def slide(chrome: Chrome, name: str, limit: float) -> None:
    """Move one slider to a value, and the other to no limit."""
    field = {"latency": "latency_seconds", "cost": "cost_usd"}[name]
    values = sorted({one[field]["value"] for one in study_of("cheapest")["frontier"]["places"]})
    for other in chrome.each(".sliders input", "one.dataset.limit"):
        most = chrome.first(f"[data-limit={other}]", "one.max")
        chrome.put(f"[data-limit={other}]", values.index(limit) if other == name else most, "input")
