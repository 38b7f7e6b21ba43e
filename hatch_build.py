"""The description on a package index: README.md without what leads nowhere there, relative links and pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", flags=re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", flags=re.MULTILINE)
_LINK = re.compile(r"\[([^]]*)\]\((?!https?:)[^)]*\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", flags=re.DOTALL | re.MULTILINE)
_REST = "The pages that this one names are in the folder `docs` of the source distribution.\n"


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatchling for every distribution that it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = description((Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def description(readme: str) -> str:
    """The text of README.md for a package index, which has no files beside it. Code stays as it is."""
    pieces = (piece if piece.startswith("`") else _plain(piece) for piece in _CODE.split(readme))
    return f"{''.join(pieces).rstrip()}\n\n{_REST}"


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", text)))
