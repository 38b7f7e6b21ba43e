"""A page of Markdown in parts: its sections, and what is code and what is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["outside_of_code", "sections", "slug", "title", "without", "without_comments"]

_FENCED = re.compile(r"(^(`{3,})[^\n]*\n.*?^\2$)", flags=re.DOTALL | re.MULTILINE)


def outside_of_code(markdown: str) -> Iterator[tuple[bool, str]]:
    """Pieces of a page in order: whether a piece is text (not a fence), and the piece."""
    position = 0
    for found in _FENCED.finditer(markdown):
        yield True, markdown[position : found.start()]
        yield False, found[0]
        position = found.end()
    yield True, markdown[position:]


def sections(markdown: str) -> Iterator[tuple[str, str]]:
    """Title and text of each section of the second level. A line ``## ...`` within a fence begins none."""
    hidden = "".join(
        piece if is_text else re.sub(r"(?m)^#", "\0", piece) for is_text, piece in outside_of_code(markdown)
    )
    for part in re.split(r"(?m)^## ", hidden)[1:]:
        head, _, text = part.partition("\n")
        yield head, text.replace("\0", "#")


def without(markdown: str, titles: set[str]) -> str:
    """The page without the sections of these titles."""
    kept = [f"## {head}\n{text}" for head, text in sections(markdown) if head not in titles]
    return "".join((re.split(r"(?m)^## ", markdown)[0], *kept))


def without_comments(markdown: str) -> str:
    """The page without comments that stand on lines of their own."""
    pieces = outside_of_code(markdown)
    return "".join(re.sub(r"(?ms)^<!--.*?-->\n", "", piece) if is_text else piece for is_text, piece in pieces)


def title(markdown: str) -> str:
    """The heading of a page."""
    found = re.search(r"(?m)^# (.+)$", markdown)
    assert found, "a page has a heading"
    return found[1]


def slug(text: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
