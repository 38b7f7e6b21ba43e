"""What is inlined into the page is what its authors published, and never reads a string as code or markup."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest

import advisor
from advisor.report.page.document import PageDocument
from advisor.report.page.page_text import page_text
from benchmarks.browser import RECORDED, recorded_document

ASSETS = Path(advisor.__file__).parent / "report" / "page" / "assets"
VENDORED = json.loads((ASSETS / "vendor" / "vendored.json").read_text())
OURS = sorted(ASSETS.glob("*.js"))
MOST_BYTES = 1_000_000


@pytest.mark.parametrize("one", VENDORED, ids=lambda one: one["file"])
def test_a_vendored_file_is_the_published_one(one: dict[str, str]) -> None:
    content = (ASSETS / "vendor" / one["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == one["sha256"], "python docs/vendor_plotting_library.py"


def test_every_vendored_script_has_its_licence_beside_it() -> None:
    names = {one["file"] for one in VENDORED} | {"vendored.json"}
    assert {path.name for path in (ASSETS / "vendor").iterdir()} == names
    licensed = {one["package"] for one in VENDORED if one["file"].endswith(".LICENSE.txt")}
    assert licensed == {one["package"] for one in VENDORED}


def test_the_committed_report_is_the_page_as_it_is_written_today() -> None:
    written = page_text(msgspec.convert(recorded_document(), PageDocument, strict=False))
    assert RECORDED.read_text(encoding="utf-8") == written, "python docs/make_screenshots.py"


def test_all_assets_leave_room_for_two_hundred_trials() -> None:
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("script", OURS, ids=lambda path: path.name)
def test_our_scripts_make_elements_and_text_only(script: Path) -> None:
    unsafe = (
        r"(inner|outer|insertAdjacent)HTML|document\.write|\beval\b|new Function|\.html\(|DOMParser|setTimeout\([\"'`]"
    )
    assert re.findall(unsafe, script.read_text()) == []


@pytest.mark.parametrize("script", OURS, ids=lambda path: path.name)
def test_our_scripts_ask_nobody(script: Path) -> None:
    asks = r"\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|https?://(?!www\.w3\.org/)"
    assert re.findall(asks, script.read_text()) == []
