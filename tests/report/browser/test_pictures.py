"""What a reader of a study for each goal sees: the answer, the pictures, and what a picture lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.text.units import format_bytes, format_percent, format_rate, format_seconds

from .chrome import Chrome
from .pages import study_of

OWN_PICTURE = {"faster": "throughput", "cheapest": "cost", "bigger": "size"}
PICTURES = {"throughput", "memory", "peaks", "step", "gradients", "losses", "course"}


@pytest.fixture(params=sorted(OWN_PICTURE))
def goal(request: pytest.FixtureRequest, chrome: Chrome, pages: Path) -> str:
    name = str(request.param)
    chrome.open(pages / f"{name}.html")
    return name


def test_the_page_opens_without_a_word_on_the_console_and_asks_nobody(chrome: Chrome, pages: Path, goal: str) -> None:
    assert chrome.logged() == ([], [(pages / f"{goal}.html").as_uri()])


def test_the_answer_comes_first_in_one_screen(chrome: Chrome, goal: str) -> None:
    assert chrome.text("#answer h2") == study_of(goal)["answer"]["headline"]
    assert chrome.first(".apply", "one.getBoundingClientRect().bottom") < 900
    for sentence in study_of(goal)["answer"]["why"]:
        assert sentence in chrome.text(".why")


def test_every_picture_is_drawn_or_says_what_is_missing(chrome: Chrome, goal: str) -> None:
    drawn = dict(chrome.each(".picture", "[one.id, one.querySelectorAll('.canvas svg').length]"))
    assert all(drawn.values())
    assert OWN_PICTURE[goal] in drawn
    missing = chrome.each(".missing dd", "one.textContent")
    assert len(drawn) + len(missing) == len(PICTURES | {OWN_PICTURE[goal]})
    assert all(one.endswith(".") for one in missing)


def test_each_measured_point_is_a_mark_of_its_source(chrome: Chrome, goal: str) -> None:
    points = [
        point["samples_per_second"]["source"]
        for curve in study_of(goal)["throughput"]
        for point in (*curve.get("points", []), *curve.get("predicted", []))
    ]
    for source in set(points):
        marks = chrome.count(f"#throughput .dots-{source} :is(path, circle)")
        # Of what was only predicted, the page draws the combinations that have a colour; all of it is in the table.
        assert marks == points.count(source) or (source == "predicted" and 0 < marks < points.count(source))
        hollow = chrome.first(f"#throughput .dots-{source}", "one.getAttribute('fill') === 'var(--surface)'")
        assert hollow == (source != "measured")


def test_each_picture_says_in_words_and_in_a_table_what_it_shows(chrome: Chrome, goal: str) -> None:
    labels = chrome.each(".picture .canvas > *", "[one.getAttribute('role'), one.getAttribute('aria-label')]")
    assert all(role == "img" and len(words) > 30 for role, words in labels)
    assert chrome.count(".picture > details") == chrome.count(".picture")
    chrome.each(".picture > details", "one.open = true")
    chrome.wait("[...document.querySelectorAll('.picture > details')].every((one) => one.querySelector('tbody tr'))")


def test_what_ran_on_a_simulated_device_has_marks_of_its_own(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "simulated.html")
    for drawing in ("#cost", "#throughput", "#course"):
        assert chrome.count(f"{drawing} .dots-simulated path") > 0
        assert chrome.count(f"{drawing} :is(.dots-measured, .dots-profiled) :is(path, circle)") == 0
        legend = " ".join(chrome.each(f"{drawing} .legend", "one.textContent"))
        assert "simulated" in legend
        assert "measured" not in legend
    places = study_of("simulated")["frontier"]["places"]
    assert chrome.count("#cost .dots-simulated path") == len(places)
    assert chrome.count("#throughput .dots-predicted path") > 0


def test_a_study_of_which_nothing_is_known_says_so_of_each_picture(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "bare.html")
    assert chrome.count(".picture") == 0
    assert len(chrome.each(".missing dd", "one.textContent")) == len(PICTURES)
    assert chrome.column("Outcome") == ["ok"]
    assert chrome.logged()[0] == []


def test_a_picture_that_fails_leaves_the_others_and_its_table(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    chrome.js("drawn.get(document.querySelector('#course .canvas')).draw = () => { throw new Error('a mistake'); }")
    chrome.js("redraw(document.querySelector('#course .canvas'))")
    assert "could not be drawn (a mistake)" in chrome.text("#course .canvas")
    assert chrome.count("#course > details") == 1
    made = "guarded(function coursePicture() { throw new Error('another'); }, {}).missing"
    assert "another" in chrome.js(f"return {made}")


def test_the_picture_of_a_step_says_what_bounds_each_part_or_why_that_cannot_be_told(
    chrome: Chrome, pages: Path
) -> None:
    chrome.open(pages / "faster.html")
    part = {"seconds": 1.0, "bound": "", "seconds_by_bound": {}}
    told = {"phase": "optimizer", "seconds": 0.01, "bound": "launching operators", "seconds_by_bound": {}}
    of = {"name": "plain", "batch": "4", "samples_per_step": 4, "roles": []}
    parts = [{**part, "phase": "forward", "unbound": "a hook reads values"}, told]
    step = {"policy": "p0", "of": of, "obtained": "Seen.", "phases": parts}
    study = {"steps": [step], "missing": [], "notDivided": ["The step of the winner is not divided: no time."]}
    card = f"stepPicture({json.dumps(study)})"
    words = chrome.js(f"return {card}.textContent")
    assert "What bounds the operators of forward cannot be told: a hook reads values." in words
    assert "The step of the winner is not divided: no time." in words
    drawn = chrome.js(f"const card = {card}; document.body.append(card); drawAll(); return card.textContent")
    assert "bound not known" in drawn
    assert "optimizer: launching operators" in drawn, "too short for a word in it"


def test_processes_that_share_one_memory_have_each_their_part_of_the_limit(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    lines = [{"limit": 2**28, "deviceCount": 1}, {"limit": 2**27, "deviceCount": 2}]
    said = f"limitWords(commonLimit({json.dumps(lines)}), {json.dumps(lines)}, 'above')"
    assert chrome.js(f"return {said}") == " The limit is 256 MiB on one device, and 128 MiB on each of 2 devices."


def test_pointing_at_a_mark_shows_its_values(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "cheapest.html")
    before = chrome.text("#cost .canvas")
    chrome.point("#cost .dots-measured :is(path, circle)")
    chrome.wait("document.querySelector('#cost .canvas').textContent.includes(' each, ')")
    assert len(chrome.text("#cost .canvas")) > len(before)


def test_numbers_read_as_in_the_terminal(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    values = [0.00123, 0.0999, 0.1, 0.314, 1.0, 9.99, 9.996, 12.346, 99.94, 99.96, 999.4, 1234.6, 98765.4, 1.5e9]
    shown = {
        "significant": format_rate,
        "seconds": format_seconds,
        "percent": format_percent,
    }
    for name, format_as in shown.items():
        assert chrome.js(f"return arguments[0].map({name})", values) == [format_as(one) for one in values]
    sizes = [0, 1023, 1024, 1536, 10**6, 1022976, 12 * 2**20, 2**30, 3 * 10**12]
    assert chrome.js("return arguments[0].map(bytes)", sizes) == [format_bytes(one) for one in sizes]


def test_where_sizes_are_drawn_the_users_own_settings_are_called_so(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "bigger.html")
    drawn = "return sizePicture(readStudy(arguments[0], '1')).textContent"
    study = study_of("bigger")
    assert "plain training" in chrome.js(drawn, study)
    own = chrome.js(drawn, {**study, "goal": {**study["goal"], "own_settings": "own.yaml"}})
    assert "your own settings" in own
    assert "plain training" not in own
