"""Ask every external link whether its page is still there: ``python docs/check_links.py``.

Links are those of the documentation, of what methods cite, of the sources of hardware profiles and of the package's own
description. The exit status is 1 if a page is gone (or its whole site, or a redirect leads nowhere) or an address is
not https, one line for each; 2 if that cannot be told, because there is no network; otherwise 0. A site that is down,
or that answers people only, is named and changes no status: that is no mistake of these pages.
"""

from __future__ import annotations

import http.client
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]

PLACES = (
    *("*.md", "*.cff", "*.toml", "*.yml", "docs/**/*.md", "docs/**/*.py", "docs/ci/*.yml"),
    *("advisor/**/*.py", "benchmarks/**/*.py", "examples/*.py", "profiles/*.yaml", "search_spaces/*.yaml"),
)
"""Files with links that people follow. Tests have made-up ones, and a recorded report repeats the pages' own."""

MOVED = {
    "https://pytorch.org/docs/": "https://docs.pytorch.org/docs/",
    "https://pytorch.org/tutorials/": "https://docs.pytorch.org/tutorials/",
    "https://github.com/microsoft/DeepSpeed": "https://github.com/deepspeedai/DeepSpeed",
}
"""Where pages were -> where they are."""

_LINK = re.compile(r"\bhttps?://[^\s<>\"'`\]]+")
_MADE_UP = re.compile(r"[{}$@\\^*]|//(?:[^/]*\.)?(?:example\.(?:com|org|invalid)|localhost|127\.0\.0\.1)\b|//[^./]+$")
"""Templates, patterns, and addresses that stand for another."""

_GONE = (404, 410)
_REDIRECTS = range(300, 400)
_BUSY = (408, 425, 429, *range(500, 600))
_SECONDS = 10.0
_PROBE_SECONDS = 5.0
_PAUSES_SECONDS = (1.0, 5.0)
"""Before another attempt, where nobody answered or a site was busy."""
_SITES_AT_ONCE = 16
_PROBES = 8
_NO_NETWORK = 2


class Answer(NamedTuple):
    """What became of a request.

    Attributes:
        status: Of HTTP; ``None`` if nobody answered.
        reason: Why nobody did.
        is_unknown_site: No such name is known any more.
    """

    status: int | None
    reason: str = ""
    is_unknown_site: bool = False

    @property
    def gone(self) -> str:
        """Why the page will not be there tomorrow either; empty if it may be."""
        if self.is_unknown_site:
            return "no such site"
        if self.status in _GONE:
            return f"gone ({self.status})"
        return f"redirected to no page ({self.status})" if self.status in _REDIRECTS else ""

    @property
    def unknown(self) -> str:
        """Why nothing can be told of the page; empty if it was there."""
        return self.reason if self.status is None else f"answered {self.status}" if self.status >= 400 else ""


def links_in(text: str) -> set[str]:
    """The external links of a text, without what ends the sentence around them."""
    found = set()
    for link in _LINK.findall(text):
        while link[-1] in ".,;:!?" or (link[-1] == ")" and link.count(")") > link.count("(")):
            link = link[:-1]
        if not _MADE_UP.search(link):
            found.add(link)
    return found


def external_links(root: Path = ROOT) -> dict[str, list[str]]:
    """Link -> the files that have it."""
    found: dict[str, list[str]] = {}
    files = {path for place in PLACES for path in root.glob(place)} - {Path(__file__).resolve()}
    for path in sorted(files):
        for link in sorted(links_in(path.read_text(encoding="utf-8"))):
            found.setdefault(link, []).append(str(path.relative_to(root)))
    return found


def mistakes(links: Iterable[str]) -> Iterator[str]:
    """What can be said of links without asking anybody."""
    for link in links:
        parts = urlsplit(link)
        if parts.scheme != "https":
            yield f"{link}: a link is https"
        if "." not in parts.netloc or not link.isascii():
            yield f"{link}: no address"
        for before, now in MOVED.items():
            if link.startswith(before):
                yield f"{link}: moved to {now}{link.removeprefix(before)}"


def answer_of(link: str, seconds: float = _SECONDS, pauses: Sequence[float] = _PAUSES_SECONDS) -> Answer:
    """Ask for a page, and again after each pause while nobody answers or the site is busy."""
    answer = _asked(link, seconds)
    for pause in pauses:
        if answer.gone or not answer.unknown or (answer.status is not None and answer.status not in _BUSY):
            break
        time.sleep(pause)
        answer = _asked(link, seconds)
    return answer


def _asked(link: str, seconds: float) -> Answer:
    agent = {"User-Agent": "Mozilla/5.0 (momadvise docs/check_links.py)"}
    for method in ("HEAD", "GET"):  # some answer only the latter, whatever they say or do to the former
        request = urllib.request.Request(link, headers=agent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return Answer(int(answer.status))
        except urllib.error.HTTPError as error:
            found = Answer(error.code)
        except urllib.error.URLError as error:
            is_unknown = isinstance(error.reason, socket.gaierror) and error.reason.errno == socket.EAI_NONAME
            found = Answer(None, f"no answer ({error.reason})", is_unknown)
        except (OSError, ValueError, http.client.HTTPException) as error:
            found = Answer(None, f"no answer ({error or type(error).__name__})")
    return found


def answers_of(links: Iterable[str], pauses: Sequence[float] = _PAUSES_SECONDS) -> dict[str, Answer]:
    """Ask them all: several sites at once, each for one page after the other, as those that count requests like it."""
    sites: dict[str, list[str]] = {}
    for link in links:
        sites.setdefault(urlsplit(link).netloc, []).append(link)

    def ask(pages: list[str]) -> list[tuple[str, Answer]]:
        return [(page, answer_of(page, pauses=pauses)) for page in pages]

    with ThreadPoolExecutor(_SITES_AT_ONCE) as pool:
        return dict(answer for answers in pool.map(ask, sites.values()) for answer in answers)


def is_online(links: Iterable[str], seconds: float = _PROBE_SECONDS) -> bool:
    """Whether any of a few sites answers at once; a name that nobody resolves may take far longer than a time-out."""
    answered = threading.Event()

    def probe(address: str) -> None:
        if answer_of(address, seconds, pauses=()).status is not None:
            answered.set()

    sites = list(dict.fromkeys(urlsplit(link)._replace(path="/", query="", fragment="").geturl() for link in links))
    for site in sites[:_PROBES]:
        threading.Thread(target=probe, args=(site,), daemon=True).start()
    return answered.wait(seconds)


def main(root: Path = ROOT) -> int:
    """Print what is wrong with the links of a repository, and what is not known of them."""
    links = external_links(root)
    wrong = list(mistakes(links))
    if not is_online(links):
        print("\n".join([*wrong, f"cannot be told without a network: none of {len(links)} external links was asked"]))
        return 1 if wrong else _NO_NETWORK
    silent = []
    for link, answer in sorted(answers_of(links).items()):
        if answer.gone:
            wrong.append(f"{link}: {answer.gone}, in {', '.join(links[link])}")
        elif answer.unknown:
            silent.append(f"{link}: {answer.unknown}")
    print("\n".join([*wrong, *silent, f"{len(links)} external links: {len(wrong)} wrong, {len(silent)} not known"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
