"""Links to other sites: their form, where they come from, and, with a network, whether their pages are there."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from advisor.methods.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]

_spec = importlib.util.spec_from_file_location("check_links", ROOT / "docs" / "check_links.py")
assert _spec is not None
assert _spec.loader is not None
check_links = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_links)

STATUSES = {"/here": 200, "/gone": 404, "/people-only": 403, "/broken": 500, "/get-only": 200}


class Site(BaseHTTPRequestHandler):
    """Answers as its paths say; one of them to GET alone."""

    def do_HEAD(self) -> None:
        self.send_response(405 if self.path == "/get-only" else STATUSES.get(self.path, 200))
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(STATUSES.get(self.path, 200))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[str]:
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
    answers = check_links.answers_of([site + path for path in STATUSES] + ["http://127.0.0.1:9/"])
    assert answers == {site + path: status for path, status in STATUSES.items()} | {"http://127.0.0.1:9/": None}


def test_the_command_fails_for_a_page_that_is_gone_alone(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_links, "_MADE_UP", re.compile("(?!)"))
    monkeypatch.setattr(check_links, "mistakes", lambda links: [])
    page = tmp_path / "README.md"
    page.write_text(f"{site}/here {site}/people-only {site}/broken")
    assert check_links.main(tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 external links: 0 wrong, 2 not known"
    page.write_text(f"{site}/here {site}/gone")
    assert check_links.main(tmp_path) == 1
    assert f"{site}/gone: gone (404), in README.md" in capsys.readouterr().out


def test_without_a_network_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_links, "answer_of", lambda link, seconds=0: None)
    (tmp_path / "README.md").write_text("https://a.org/")
    assert check_links.main(tmp_path) == 0
    assert capsys.readouterr().out == "no network: none of 1 external links was asked\n"


def test_no_page_that_is_linked_is_gone(links: dict[str, list[str]]) -> None:
    """Sites that are down or answer people alone are no mistake of these pages."""
    if not check_links.is_online(list(links)):
        pytest.skip("no network: no external link was asked")
    answers = check_links.answers_of(list(links))
    assert {link: status for link, status in answers.items() if status in (404, 410)} == {}
