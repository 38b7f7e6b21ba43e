"""Print the notes of a release, from the changelog: ``python docs/release_notes.py [VERSION]``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).with_name("changelog.md")
VERSION = Path(__file__).parents[1] / "advisor" / "version.py"


def version() -> str:
    """The version of this checkout."""
    (found,) = re.findall(r'^__version__ = "(.+)"$', VERSION.read_text(encoding="utf-8"), re.MULTILINE)
    return str(found)


def notes(of: str, changelog: str) -> str:
    """The section of a version, without its heading.

    Raises:
        SystemExit: There is none, or it is empty.
    """
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if heading.split()[:1] == [of] and text.strip():
            return text.strip() + "\n"
    known = ", ".join(section.split()[0] for section in sections if section.split())
    raise SystemExit(f"docs/changelog.md must have notes for {of}, but has them for: {known or 'nothing'}.")


if __name__ == "__main__":
    sys.stdout.write(notes(sys.argv[1] if len(sys.argv) > 1 else version(), CHANGELOG.read_text(encoding="utf-8")))
