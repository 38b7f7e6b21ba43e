"""Links to other sites: their form, where they come from, and, with a network, whether their pages are there."""

from __future__ import annotations

import functools
import importlib.util
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from advisor.methods.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]

_spec = importlib.util.spec_from_file_location("check_links", ROOT / "docs" / "check_links.py")
assert _spec is not None
assert _spec.loader is not None
check_links = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_links)

STATUSES = {"/here": 200, "/gone": 404, "/people-only": 403, "/broken": 500, "/get-only": 200, "/not-over-head": 200}
REDIRECTS = {"/moved": "/here", "/moved-to-what-is-gone": "/gone", "/around": "/around"}
NO_PAUSES = (0.0,)


class Site(BaseHTTPRequestHandler):
    """Answers as its paths say: two to GET alone, one not until it is asked twice, one after a second."""

    asked: ClassVar[list[tuple[str, str]]] = []
    at_once: ClassVar[list[int]] = [0, 0]
    """How many requests are being answered, and the most of them."""

    def do_HEAD(self) -> None:
        if self.path == "/not-over-head":
            self.wfile.write(b"what is this\r\n")
            return
        self._answer(405 if self.path == "/get-only" else None)

    def do_GET(self) -> None:
        self._answer(None)

    def _answer(self, status: int | None) -> None:
        self.at_once[0] += 1
        self.at_once[1] = max(self.at_once)
        first = (self.command, self.path) not in self.asked
        self.asked.append((self.command, self.path))
        if self.path == "/silent":
            time.sleep(1)
        if self.path == "/busy":
            status = 503 if first else 200
        status = status or (301 if self.path in REDIRECTS else STATUSES.get(self.path, 200))
        self.send_response(status)
        if self.path in REDIRECTS:
            self.send_header("Location", REDIRECTS[self.path])
        self.send_header("Content-Length", "0")
        self.at_once[0] -= 1
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    Site.asked.clear()
    Site.at_once[:] = [0, 0]
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def links() -> dict[str, list[str]]:
    return dict(check_links.external_links())


def test_every_external_link_is_https_and_none_is_where_a_page_was_before(links: dict[str, list[str]]) -> None:
    assert len(links) > 20
    assert list(check_links.mistakes(links)) == []


def test_links_of_a_generated_page_come_from_what_methods_cite() -> None:
    cited = {link for method in CATALOGUE for link in check_links.links_in(method.citation)}
    shown = check_links.links_in((ROOT / "docs" / "methods.md").read_text())
    assert shown == cited != set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See https://a.org/x (https://b.org/y_(z)), or https://c.org.", {"https://a.org/x", "https://b.org/y_(z)", "https://c.org"}),
        ("[a](https://a.org/x#y), `https://b.org/?q=1`; http://c.org/", {"https://a.org/x#y", "https://b.org/?q=1", "http://c.org/"}),
        ("https://user@host.org/ https://{host}/x https://example.com/x http://127.0.0.1:80/ https://oauth2", set()),
    ],
)  # fmt: skip
def test_links_of_a_text(text: str, found: set[str]) -> None:
    assert check_links.links_in(text) == found


def test_mistakes_are_told_with_what_is_right() -> None:
    told = list(check_links.mistakes(["http://a.org/", "https://pytorch.org/docs/stable/x.html"]))
    assert told == [
        "http://a.org/: a link is https",
        "https://pytorch.org/docs/stable/x.html: moved to https://docs.pytorch.org/docs/stable/x.html",
    ]


def test_pages_are_asked_and_one_that_is_gone_is_told_from_a_site_that_is_down(site: str) -> None:
    asked = [site + path for path in (*STATUSES, *REDIRECTS)] + ["http://127.0.0.1:9/"]
    answers = {link.removeprefix(site): answer for link, answer in check_links.answers_of(asked, NO_PAUSES).items()}
    assert {path: answer.status for path, answer in answers.items() if path in STATUSES} == STATUSES
    gone = {path: answer.gone for path, answer in answers.items() if answer.gone}
    nowhere = "redirected to no page (301)"
    assert gone == {"/gone": "gone (404)", "/moved-to-what-is-gone": "gone (404)", "/around": nowhere}
    unknown = {path: answer.unknown for path, answer in answers.items() if answer.unknown and not answer.gone}
    refused = unknown.pop("http://127.0.0.1:9/")
    assert unknown == {"/people-only": "answered 403", "/broken": "answered 500"}
    assert refused.startswith("no answer (")
    assert "refused" in refused


def test_a_site_whose_name_is_gone_is_a_mistake_and_a_name_that_cannot_be_asked_for_now_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for code, gone in ((socket.EAI_NONAME, "no such site"), (socket.EAI_AGAIN, "")):
        error = socket.gaierror(code, "a reason")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, error=error, **k: (_ for _ in ()).throw(error))
        answer = check_links.answer_of("https://a.org/", pauses=())
        assert answer.gone == gone
        assert "a reason" in answer.unknown


def test_a_page_that_hangs_is_given_up_and_a_busy_one_asked_again(site: str) -> None:
    silent = check_links.answer_of(f"{site}/silent", seconds=0.1, pauses=())
    assert silent.unknown == "no answer (timed out)"
    assert silent.gone == ""
    assert check_links.answer_of(f"{site}/busy", pauses=()).unknown == "answered 503"
    Site.asked.clear()
    assert check_links.answer_of(f"{site}/busy", pauses=NO_PAUSES).status == 200
    Site.asked.clear()
    for page in ("gone", "people-only", "broken"):
        check_links.answer_of(f"{site}/{page}", pauses=NO_PAUSES)
    assert [path for method, path in Site.asked if method == "GET"] == ["/gone", "/people-only", "/broken", "/broken"]


def test_pages_of_one_site_are_asked_one_after_the_other(site: str) -> None:
    """Trap: sixteen requests at once are refused by sites that count them, and nothing is known of their pages."""
    check_links.answers_of([f"{site}/{number}" for number in range(20)], NO_PAUSES)
    assert len(Site.asked) == 20
    assert Site.at_once[1] == 1


@pytest.fixture
def asks_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_links, "_MADE_UP", re.compile("(?!)"))
    monkeypatch.setattr(check_links, "mistakes", lambda links: [])
    monkeypatch.setattr(check_links, "answers_of", functools.partial(check_links.answers_of, pauses=()))


@pytest.mark.usefixtures("asks_the_site")
def test_the_command_fails_for_a_page_that_is_gone_alone(
    site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"{site}/here {site}/moved {site}/people-only {site}/broken")
    assert check_links.main(tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{site}/broken: answered 500",
        f"{site}/people-only: answered 403",
        "4 external links: 0 wrong, 2 not known",
    ]
    page.write_text(f"{site}/here {site}/gone {site}/moved-to-what-is-gone")
    assert check_links.main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{site}/gone: gone (404), in README.md",
        f"{site}/moved-to-what-is-gone: gone (404), in README.md",
        "3 external links: 2 wrong, 0 not known",
    ]


@pytest.mark.parametrize(
    ("link", "status", "said"), [("https://a.org/", 2, []), ("http://a.org/", 1, ["http://a.org/: a link is https"])]
)
def test_without_a_network_nothing_is_asked_and_nothing_has_passed(
    link: str,
    status: int,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(check_links, "_asked", lambda link, seconds: check_links.Answer(None, "no answer", True))
    monkeypatch.setattr(check_links, "is_online", functools.partial(check_links.is_online, seconds=0.2))
    (tmp_path / "README.md").write_text(link)
    assert check_links.main(tmp_path) == status
    cannot = "cannot be told without a network: none of 1 external links was asked"
    assert capsys.readouterr().out.splitlines() == [*said, cannot]


def test_no_page_that_is_linked_is_gone(links: dict[str, list[str]]) -> None:
    """Sites that are down or answer people alone are no mistake of these pages."""
    if not check_links.is_online(links, seconds=1):
        pytest.skip("no network: no external link was asked")
    answers = check_links.answers_of(links)
    assert {link: answer.gone for link, answer in answers.items() if answer.gone} == {}
