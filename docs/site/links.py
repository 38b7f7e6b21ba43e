"""Where links of the repository's pages lead on the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from sections import outside_of_code

__all__ = ["Links"]

_LINK = re.compile(r"(`+)(?:(?!\1).)+?\1|\]\(([^)\s#]*)(#[^)\s]*)?\)", flags=re.DOTALL)
"""Code in the running text, or the target of a link: path and anchor."""


class Links:
    """Pages of the site by the file of the repository that they show.

    Args:
        root: The repository.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.clear()

    def clear(self) -> None:
        """Forget all pages."""
        self._pages: dict[str, str] = {}
        self._origins: dict[str, str] = {}
        self._sections: dict[tuple[str, str], str] = {}

    def add(self, origin: str, page: str) -> None:
        """A file (or a folder, with a slash) is shown by a page."""
        self._pages[origin] = page
        self._origins[page] = origin

    def add_section(self, origin: str, anchor: str, page: str) -> None:
        """A section of a file has a page of its own."""
        self._sections[origin, f"#{anchor}"] = page

    def stands_for(self, page: str, origin: str) -> None:
        """The links of a page are written as they are in that file."""
        self._origins[page] = origin

    def origin(self, page: str) -> str:
        """The file whose place the links of a page are relative to."""
        return self._origins[page]

    def sources(self, markdown: str, origin: str) -> Iterator[str]:
        """Files of the repository that a page links to and no page shows yet."""
        for is_text, piece in outside_of_code(markdown):
            for found in _LINK.finditer(piece) if is_text else ():
                path = self._path(found[2], origin) if found[2] else None
                if path is not None and path not in self._pages and self._is_text(path):
                    yield path

    def rewritten(self, markdown: str, page: str) -> str:
        """A page whose links lead to pages of the site. What leads nowhere stays, for MkDocs to complain about."""
        origin = self.origin(page)

        def target(found: re.Match[str]) -> str:
            if found[1] is not None:  # code
                return found[0]
            path, anchor = self._path(found[2], origin), found[3] or ""
            if path is None:
                return found[0]
            if (path, anchor) in self._sections:
                leads, anchor = self._sections[path, anchor], ""
            elif path in self._pages:
                leads = self._pages[path]
            else:
                return found[0]
            own = "" if leads == page and anchor else posixpath.relpath(leads, posixpath.dirname(page) or ".")
            return f"]({own}{anchor})"

        pieces = outside_of_code(markdown)
        return "".join(_LINK.sub(target, piece) if is_text else piece for is_text, piece in pieces)

    def _path(self, target: str, origin: str) -> str | None:
        """The file in the repository that a link leads to; ``None`` for one on another machine."""
        if "://" in target or target.startswith("mailto:"):
            return None
        if not target:
            return origin
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        return f"{path}/" if (self._root / path).is_dir() else path

    def _is_text(self, path: str) -> bool:
        return (self._root / path).is_file() and Path(path).suffix not in (".png", ".svg", ".html", ".jpg")
