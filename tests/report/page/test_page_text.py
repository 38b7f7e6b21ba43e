"""Whatever a user's texts are, they are text: nothing of theirs ends a script or is run, and nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.report.page import page_text as module
from advisor.report.page.document import PageDocument
from advisor.report.page.finished import read_finished
from advisor.report.page.page_text import is_page, page_text
from advisor.report.page.smaller import fitting_text
from advisor.report.page.study_part import study_part
from advisor.report.page.writing import page_of
from advisor.trial.outcome import Outcome
from tests.decide.examples import goal, lost
from tests.report.scenario import recommendation

from .folders import many, write_study

HOSTILE = (
    "</script><script>alert(1)</script>",
    "</ScRiPt\n>",
    "<!-- <script>",
    "-->",
    "]]>",
    "\u2028\u2029\x85",
    "a\x00b\x1b[31m\x7f",
    "\udc80\ud800",
    "\u202eevil\u2066",
    "&lt;/script&gt;",
    "';\"`${alert(1)}\\",
    "javascript:alert(1)",
    "{{document}} <!-- {{scripts}} -->",
)


class Elements(HTMLParser):
    """The elements of a page, with their attributes and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] and self.elements[-1][0] in ("script", "style"):
            self.texts[-1] = (self.texts[-1][0], self.texts[-1][1] + data)

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", {}))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    text = " ".join(HOSTILE)
    found = recommendation()
    failed = [lost(Outcome.FAILED, reason=one) for one in HOSTILE]
    found = msgspec.structs.replace(
        found,
        not_measured=(*found.not_measured, *failed),
        why=HOSTILE,
        refused_settings=dict.fromkeys(HOSTILE, text),
        stopped_because=text,
    )
    hardware = msgspec.structs.replace(_answer_hardware(), name=text)
    folder = write_study(
        tmp_path_factory.mktemp("hostile") / "a<b>&'\"",
        found,
        goal(),
        model=text,
        workload=text,
        notes=HOSTILE,
        hardware=hardware,
        timings=dict.fromkeys(HOSTILE, 1.0),
    )
    return page_of([read_finished(folder)])


def _answer_hardware() -> Any:
    from tests.report.scenario import CPU

    return CPU


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_study(tmp_path_factory.mktemp("harmless") / "study", recommendation(), goal())
    return page_of([read_finished(folder)])


def document(page: str) -> Any:
    [text] = re.findall(r'<script type="application/json" id="document">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_hostile_texts_add_no_element_and_no_attribute(hostile: str, harmless: str) -> None:
    assert Elements(hostile).elements == Elements(harmless).elements


def test_the_document_has_no_character_that_means_anything_to_a_parser(hostile: str) -> None:
    [text] = re.findall(r'id="document">(.*?)</script>', hostile, re.DOTALL)
    assert re.fullmatch(r"[\x20-\x7e]*", text)
    assert not set("<>&") & set(text)


def test_texts_come_back_as_they_are_with_their_control_characters_shown(hostile: str) -> None:
    [study] = document(hostile)["studies"]
    why = study["answer"]["why"]
    assert why[0] == "</script><script>alert(1)</script>"
    assert why[5] == "\\u2028\\u2029\\x85"
    assert why[6] == "a\\x00b\\x1b[31m\\x7f"
    assert why[7] == "\\udc80\\ud800"
    assert why[8] == "\\u202eevil\\u2066"
    assert why[9:] == list(HOSTILE[9:])
    assert {one["setting"] for one in study["refused"]} >= {"-->", "]]>"}


def test_the_policy_allows_the_pages_own_scripts_and_style_and_nothing_else(hostile: str) -> None:
    page = Elements(hostile)
    [policy] = [
        found["content"] or ""
        for tag, found in page.elements
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = {name: values for name, *values in (rule.split() for rule in policy.split("; "))}
    scripts = [text for tag, text in page.texts if tag == "script" and not text.startswith('{"')]
    styles = [text for tag, text in page.texts if tag == "style"]
    assert rules == {
        "default-src": ["'none'"],
        "script-src": [digest(one) for one in scripts],
        "style-src": [digest(one) for one in styles],
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    assert len(styles) == 1


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_comes_before_everything_that_it_rules(hostile: str) -> None:
    assert hostile.index("Content-Security-Policy") < min(hostile.index("<style"), hostile.index("<script"))


def test_nothing_is_named_that_would_be_loaded(harmless: str) -> None:
    loading = {"src", "href", "srcset", "action", "data", "poster", "style"}
    for tag, found in Elements(harmless).elements:
        named = {name: value for name, value in found.items() if name in loading or name.startswith("on")}
        assert all((value or "").startswith(("#", "data:")) for value in named.values()), (tag, named)


def test_a_flood_of_text_is_cut(tmp_path: Path) -> None:
    found = msgspec.structs.replace(recommendation(), why=("x" * 10**6,))
    page = page_of([read_finished(write_study(tmp_path, found, goal()))])
    [study] = document(page)["studies"]
    assert len(study["answer"]["why"][0]) < 5000


def test_a_part_of_the_page_that_would_end_its_element_is_our_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("order.txt", "page.js"), ("page.css", ""), ("page.js", "'</SCRIPT>'"), ("page.html", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "_ASSETS", tmp_path)
    with pytest.raises(AssertionError, match=r"page\.js would end its element"):
        page_text(msgspec.UNSET)  # type: ignore[arg-type]


def test_our_pages_are_known_and_others_are_not(tmp_path: Path, harmless: str) -> None:
    page, other = tmp_path / "page.html", tmp_path / "other.html"
    page.write_text(harmless)
    other.write_text("<!doctype html><p>momadvise report")
    assert is_page(page)
    assert not is_page(other)


def test_five_studies_of_two_hundred_trials_take_at_most_three_megabytes(tmp_path: Path) -> None:
    folders = [write_study(tmp_path / str(number), many(200), goal()) for number in range(5)]
    page = page_of([read_finished(one) for one in folders])
    assert len(page.encode()) < 3_000_000
    assert [len(one["policies"]) for one in document(page)["studies"]] == [200] * 5


def test_a_page_of_very_many_trials_keeps_its_size_and_says_what_it_lacks(tmp_path: Path) -> None:
    finished = read_finished(write_study(tmp_path / "many", many(1500), goal()))
    whole = PageDocument(version="1", made="2026-01-01", studies=(study_part(finished, "s0"),))
    assert fitting_text(whole) == page_text(whole)
    most = len(page_text(whole).encode()) * 4 // 5
    page = fitting_text(whole, most)
    assert len(page.encode()) <= most
    (study,) = document(page)["studies"]
    policies = study["policies"]
    assert len(policies) == 1500
    with_wrapper = [one for one in policies if one.get("wrapper")]
    assert 100 < len(with_wrapper) < 1500
    assert with_wrapper[:50] == policies[:50], "the best keep theirs"
    assert all(one.get("wrapper") for one in policies if one.get("roles"))
    assert all("outcome" in one and "samples_per_second" in one for one in policies)
    assert study["notes"][-1] == (
        f"of 1,500 policies, {len(with_wrapper):,} have their curve, wrapper and commands on this page, which would be "
        f"larger than {most / 1e6:g} MB with all of them; they are in {study['folder']}"
    )
