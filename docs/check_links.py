"""Ask every external link whether its page is still there: ``python docs/check_links.py``.

Links are those of the documentation, of what methods cite, of the sources of hardware profiles and of the package's own
description. A page that is gone, or an address that is not https, makes the exit status 1. A site that is down, or that
answers people only, is named and does not: that is no mistake of these pages. Without a network nothing is asked.
"""

from __future__ import annotations

import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
_SECONDS = 5.0
_PROBE_SECONDS = 1.0
_AT_ONCE = 16
_PROBES = 4


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


def answer_of(link: str, seconds: float = _SECONDS) -> int | None:
    """The status of a page; ``None`` if nobody answered."""
    agent = {"User-Agent": "Mozilla/5.0 (momadvise docs/check_links.py)"}
    for method in ("HEAD", "GET"):  # some answer only the latter
        request = urllib.request.Request(link, headers=agent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            status = error.code
        except (OSError, ValueError):
            return None
    return status


def answers_of(links: Sequence[str]) -> dict[str, int | None]:
    """Ask them all, several at once."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(links, pool.map(answer_of, links), strict=True))


def is_online(links: Sequence[str], seconds: float = _PROBE_SECONDS) -> bool:
    """Whether any of a few sites answers at once; a name that nobody resolves may take far longer than a time-out."""
    answered = threading.Event()

    def probe(address: str) -> None:
        if answer_of(address, seconds) is not None:
            answered.set()

    for site in list(dict.fromkeys(urlsplit(link)._replace(path="/").geturl() for link in links))[:_PROBES]:
        threading.Thread(target=probe, args=(site,), daemon=True).start()
    return answered.wait(seconds)


def main(root: Path = ROOT) -> int:
    """Print what is wrong with the links of a repository, and what is not known of them."""
    links = external_links(root)
    wrong = list(mistakes(links))
    if not is_online(list(links)):
        print("\n".join([*wrong, f"no network: none of {len(links)} external links was asked"]))
        return int(bool(wrong))
    silent = []
    for link, status in answers_of(list(links)).items():
        if status in _GONE:
            wrong.append(f"{link}: gone ({status}), in {', '.join(links[link])}")
        elif status is None or status >= 400:
            silent.append(f"{link}: {'no answer' if status is None else f'answered {status}'}")
    print("\n".join([*wrong, *silent, f"{len(links)} external links: {len(wrong)} wrong, {len(silent)} not known"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
