"""On a phone, in the dark, on paper, without motion, and with names that would like to be markup."""

from __future__ import annotations

import base64
import itertools
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


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
@pytest.mark.parametrize("name", ["all", "cheapest", "bigger", "quick", "twice"])
def test_every_label_of_a_picture_lies_within_its_card(chrome: Chrome, pages: Path, name: str, width: int) -> None:
    chrome.open(pages / f"{name}.html", width=width)
    outside = """(() => {
      const card = one.closest(".card").getBoundingClientRect(), label = one.getBoundingClientRect();
      return label.width && (label.left < card.left || label.right > card.right) ? one.textContent : "";
    })()"""
    found = chrome.each(".canvas svg text", outside)
    assert len(found) > 50
    assert [one for one in found if one] == []


@pytest.mark.parametrize("width", [320, 768, 1280])
@pytest.mark.parametrize("name", ["all", "faster", "cheapest", "bigger", "quick", "twice"])
def test_no_value_of_an_axis_touches_the_next(chrome: Chrome, pages: Path, name: str, width: int) -> None:
    chrome.open(pages / f"{name}.html", width=width)
    touching = """(() => {
      const texts = [...one.querySelectorAll("g[font-variant=tabular-nums]:not([text-anchor]) > text")];
      const values = texts.map((text) => [text, text.getBoundingClientRect()]).filter(([, box]) => box.width);
      return values.flatMap(([text, box], at) => values.slice(0, at).filter(([other, {left, right, top}]) =>
        other.parentNode === text.parentNode && top === box.top && left < box.right && box.left < right
      ).map(([other]) => [other.textContent, text.textContent]));
    })()"""
    assert chrome.count(".canvas svg g[font-variant=tabular-nums]:not([text-anchor]) > text") > 10
    assert [pair for pairs in chrome.each(".canvas svg", touching) for pair in pairs] == []


def test_a_shortened_name_keeps_its_batch_and_its_role(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html", width=320)
    for drawing in ("#peaks", "#memory", "#step"):
        labels = [one for one in chrome.each(f"{drawing} .canvas text", "one.textContent") if "batch " in one]
        assert any("\N{HORIZONTAL ELLIPSIS}" in one for one in labels), "there is a long name"
        assert any("(winner" in one for one in labels)
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("width", [320, 360, 600, 768, 1024, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_no_table_of_policies_or_answers_is_scrolled_sideways(
    chrome: Chrome, pages: Path, name: str, width: int
) -> None:
    chrome.open(pages / f"{name}.html", width=width)
    chrome.each(".toggle", "one.click()")
    tables = chrome.each(".fitted", "[one.getAttribute('aria-label'), one.scrollWidth - one.clientWidth]")
    assert {name for name, _ in tables} == ({"The answers of the studies"} if name in ("all", "twice") else set()) | {
        "Every policy"
    }
    assert {name: over for name, over in tables if over > 0} == {}


def test_a_table_that_is_too_wide_is_a_list_of_labelled_values_until_the_window_is_wide_enough(
    chrome: Chrome, pages: Path
) -> None:
    shown = """[...one.cells].filter((cell) => cell.checkVisibility()).map(
      (cell) => getComputedStyle(cell, "::before").content.replace(/^none$|"/g, "").trim() + cell.textContent
    )"""
    chrome.open(pages / "cheapest.html", width=768)
    assert chrome.style(".policies tbody tr", "display") == "grid"
    names, values = chrome.first(".policies tbody tr", f"[one.querySelector('.name').textContent, {shown}]")
    assert names in values
    assert {"#1", "Batch64", "Samples/s1,094", "Peak92.3 MiB", "Outcomeok"} <= set(values)
    assert not any("\N{EN DASH}" in one for row in chrome.each(".policies tbody tr", shown) for one in row)
    resize(chrome, 1280)
    chrome.wait("getComputedStyle(document.querySelector('.policies tbody tr')).display === 'table-row'")
    resize(chrome, 360)
    chrome.wait("getComputedStyle(document.querySelector('.policies tbody tr')).display === 'grid'")
    assert chrome.first(".policies .scroll", "one.scrollWidth - one.clientWidth") == 0
    assert chrome.logged()[0] == []


def test_a_list_of_values_is_still_a_table_for_a_screen_reader_sorts_and_opens(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html", width=360)
    roles = {tag: chrome.first(f".policies {tag}", "one.getAttribute('role')") for tag in ("table", "tr", "th", "td")}
    assert roles == {"table": "table", "tr": "row", "th": "columnheader", "td": "cell"}
    batches = chrome.header("Batch")
    chrome.each(".policies th button", f"one.closest('th').cellIndex === {batches} && one.click()")
    assert chrome.each(".policies th", "one.ariaSort")[batches] == "ascending"
    assert chrome.column("Batch") == sorted(chrome.column("Batch"), key=int)
    assert chrome.count(".policies .detail:not([hidden])") == 0
    assert chrome.style(".policies .detail", "display") == "none"
    chrome.click(".policies .toggle")
    box = chrome.first(".policies .detail:not([hidden]) > td", "[one.clientWidth, one.closest('table').clientWidth]")
    assert box[0] == box[1]


def test_where_all_studies_agree_a_list_says_it_once(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "all.html", width=360)
    rows = chrome.each(".answers tbody tr", "[...one.cells].filter((cell) => cell.checkVisibility()).length")
    assert {2, 4} == set(rows), "a heading, and one value or three"
    chrome.open(pages / "all.html", width=360, media="print")
    assert chrome.style(".answers tbody tr", "display") == "table-row"
    assert chrome.style(".policies tbody tr", "display") == "table-row"


@pytest.mark.parametrize("name", ["all", "faster", "cheapest", "bigger"])
def test_what_is_opened_on_a_phone_stays_within_it(chrome: Chrome, pages: Path, name: str) -> None:
    """Code scrolls within its frame; whatever else is opened is wrapped."""
    chrome.open(pages / f"{name}.html", width=360)
    chrome.each("details", "one.open = true")
    chrome.each(".policies .toggle", "one.click()")
    chrome.wait("[...document.querySelectorAll('details')].every((one) => one.childElementCount > 1)")
    assert chrome.first("html", "one.scrollWidth") <= 360
    wide = "one.getBoundingClientRect().right > 360 && !one.closest('.scroll, pre') ? one.outerHTML.slice(0, 80) : ''"
    assert [one for one in chrome.each("main *", wide) if one] == []


@pytest.mark.parametrize("name", ["all", "faster", "cheapest"])
def test_on_a_phone_text_can_be_read_and_controls_can_be_hit(chrome: Chrome, pages: Path, name: str) -> None:
    """Targets of 24 pixels, as WCAG 2.2 asks; links and buttons in a line of text need none."""
    chrome.open(pages / f"{name}.html", width=360)
    chrome.each(".toggle", "one.click()")
    small = "[one.tagName, one.textContent.slice(0, 30), Math.round(one.getBoundingClientRect().height * 10) / 10]"
    sizes = chrome.each("button:not(.toggle), summary, select, input", f"one.checkVisibility() ? {small} : null")
    assert len(sizes) > 10
    assert [one for one in sizes if one and one[2] < 24] == []
    fonts = chrome.each("body *", "one.childElementCount ? 99 : parseFloat(getComputedStyle(one).fontSize)")
    assert min(fonts) >= 11


def test_on_a_phone_the_answer_and_how_to_apply_it_come_before_the_reasons(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html", width=360)
    tops = [
        chrome.first(one, "one.getBoundingClientRect().top") for one in ("#answer h2", ".figures", ".apply", ".why")
    ]
    assert tops == sorted(tops)
    assert chrome.first(".figures", "one.getBoundingClientRect().bottom") < 900
    assert chrome.first("meta[name=viewport]", "one.content") == "width=device-width, initial-scale=1"


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


@pytest.mark.parametrize("name", ["all", "faster", "cheapest", "bigger"])
def test_on_paper_a_heading_is_on_the_page_of_what_it_heads(chrome: Chrome, pages: Path, name: str) -> None:
    chrome.open(pages / f"{name}.html", media="print")
    # The table of several answers has no heading of its own.
    heads = "one.closest('.group')?.nextElementSibling.querySelector('h2, h3') != null"
    headings = chrome.each("h2, h3", f"[one.textContent.replaceAll(/\\s/g, ''), {heads}]")
    page_of = printed_headings(chrome)
    pairs = [
        (heading, following)
        for (heading, heads), (following, _) in itertools.pairwise(headings)
        if heads and heading in page_of and following in page_of
    ]
    assert len(pairs) >= 2
    assert [pair for pair in pairs if page_of[pair[0]] != page_of[pair[1]]] == []


def test_on_paper_no_card_is_cut_and_no_column_is_lost(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html", media="print")
    assert set(chrome.each(".picture, .card.answer", "getComputedStyle(one).breakInside")) == {"avoid"}
    assert chrome.style(".policies .scroll", "overflowX") == "visible"
    assert set(chrome.each(".policies tr", "getComputedStyle(one).breakInside")) == {"avoid"}
    assert chrome.style(".policies thead", "display") == "table-header-group"
    wide = {heading for heading, (_, is_wide) in printed_headings(chrome).items() if is_wide}
    assert wide == {"Everythingthatwastried", "Everypolicy"}


def test_what_was_opened_is_printed_and_what_is_closed_is_not(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html")
    chrome.click(".apply summary")
    chrome.click(".policies .toggle")
    chrome.wait("document.querySelector('.apply details pre') !== null")
    before = printed_pages(chrome)
    chrome.command("Emulation.setEmulatedMedia", media="print")
    shown = dict(chrome.each(".apply details", "[one.textContent.slice(0, 10), getComputedStyle(one).display]"))
    assert shown.pop("wrapper.py") == "block"
    assert set(shown.values()) == {"none"}
    assert chrome.style(".policies .detail", "display") == "table-row"
    assert chrome.style(".apply details pre", "overflowX") == "visible"
    assert chrome.style(".apply details pre", "whiteSpace") == "pre-wrap"
    chrome.open(pages / "faster.html")
    assert printed_pages(chrome) <= before


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_paper_looks_alike_whatever_window_it_is_printed_from(chrome: Chrome, pages: Path, width: int) -> None:
    """Trap: a page that was laid out for a phone, or in the dark, was printed so."""
    chrome.open(pages / "cheapest.html", width=1280)
    from_wide = printed_pages(chrome)
    chrome.open(pages / "cheapest.html", width=width, dark=True)
    assert printed_pages(chrome) == from_wide
    chrome.command("Emulation.setEmulatedMedia", media="print")
    for selector, display in ((".policies tbody tr", "table-row"), (".policies td", "table-cell")):
        assert chrome.style(selector, "display") == display
    assert chrome.style(".policies thead tr", "display") == "table-row"
    assert luminance(chrome.style("#answer", "backgroundColor")) == pytest.approx(1)
    assert luminance(chrome.style("#answer h2", "color")) == pytest.approx(0)


def test_pictures_are_drawn_for_the_paper_and_afterwards_for_the_window_again(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "faster.html", width=1280)
    widths = "Math.round(one.getBoundingClientRect().width)"
    before = chrome.each(".canvas svg", widths)
    chrome.js("dispatchEvent(new Event('beforeprint'))")
    drawn_for = "one.getAttribute('width')"
    on_paper = chrome.each(".canvas svg", drawn_for)
    assert max(chrome.each(".canvas svg", widths)) <= 650
    chrome.each(".canvas", "one.style.width = '500px'")  # a change of size that is reported between the two
    chrome.js(
        "window.frames_drawn = 0; const next = () => ++window.frames_drawn < 5 && requestAnimationFrame(next); next()"
    )
    chrome.wait("window.frames_drawn === 5")
    assert chrome.each(".canvas svg", drawn_for) == on_paper
    chrome.each(".canvas", "one.style.width = ''")
    chrome.js("dispatchEvent(new Event('afterprint'))")
    assert chrome.each(".canvas svg", widths) == before


def printed_pages(chrome: Chrome) -> int:
    printed = base64.b64decode(chrome.command("Page.printToPDF", preferCSSPageSize=True)["data"])
    return len(re.findall(rb"/Type\s*/Page\b", printed))


def test_policies_of_several_studies_keep_their_batch_on_a_phone(chrome: Chrome, pages: Path) -> None:
    chrome.open(pages / "twice.html", width=360)
    labels = [one for one in chrome.each("#shared .canvas text", "one.textContent") if "batch" in one]
    assert len(labels) == len(set(labels)) > 3
    assert any("\N{HORIZONTAL ELLIPSIS}" in one for one in labels), "there is a long name"


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


def printed_headings(chrome: Chrome) -> dict[str, tuple[str, bool]]:
    """Each heading without its spaces -> the page of the PDF that it is on, and whether that page is a wide one."""
    options = {"preferCSSPageSize": True, "generateTaggedPDF": True, "generateDocumentOutline": True}
    printed = base64.b64decode(chrome.command("Page.printToPDF", **options)["data"])
    sizes = dict(re.findall(rb"(\d+) 0 obj\n<<[^>]*?/Type /Page\b.*?/MediaBox \[([^\]]*)\]", printed, re.DOTALL))
    found = {}
    for title, page in re.findall(rb"/Title \((.*?)\)\n/Dest \[(\d+) 0 R", printed):
        width, height = map(float, sizes[page].split()[2:])
        found[re.sub(r"\s", "", title.decode())] = page.decode(), width > height
    return found


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(...)``, as WCAG defines it."""
    parts = [int(one) / 255 for one in re.findall(r"\d+", color)[:3]]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("width", [320, 360, 768])
def test_an_option_in_a_text_is_not_broken_at_its_hyphens(chrome: Chrome, pages: Path, width: int) -> None:
    chrome.open(pages / "faster.html", width=width)
    options = chrome.each(".whole", "[one.textContent, one.getClientRects().length]")
    assert options
    assert [text for text, lines in options if lines > 1] == []


def test_the_headings_of_a_table_end_on_one_line(chrome: Chrome, pages: Path) -> None:
    """Trap: room for the arrow of a sorted column began a line of its own, and lifted the words above it."""
    chrome.open(pages / "cheapest.html", width=1280)
    chrome.js("document.querySelectorAll('.policies th button')[2].click()")
    above = """(() => {
      const range = document.createRange();
      range.selectNode(one.firstChild);
      const ends = [...range.getClientRects()].map((each) => each.bottom);
      return Math.round(one.closest("th").getBoundingClientRect().bottom - Math.max(...ends));
    })()"""
    gaps = chrome.each(".policies thead th button", above)
    assert len(gaps) > 5
    assert max(gaps) - min(gaps) <= 1


def resize(chrome: Chrome, width: int) -> None:
    """Make the window of the page that is open wider or narrower."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chrome.command("Emulation.setDeviceMetricsOverride", **size)
