"""The text of a page: the template with style, scripts and document, and a policy that lets nothing else in.

Everything of the user's is in the document, which is ASCII and has no character that ends a script, a comment or a line
of JavaScript. The content security policy names the hashes of the page's own style and scripts: nothing else runs, and
nothing is loaded from anywhere.

Source: W3C, Content Security Policy Level 3, section 6.7.3.3 (hashes of inline elements).
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path
from typing import Any

import msgspec

from advisor.report.page.document import PAGE_SCHEMA, PageDocument
from advisor.text.printable import printable
from advisor.text.records import encode_record

__all__ = ["is_page", "page_text"]

_ASSETS = Path(__file__).parent / "assets"
_GENERATOR = "momadvise report"
_LONGEST_TEXT = 2000
_EXACT = frozenset({"lines", "command", "verify_command", "commands", "apply_lines"})
"""Fields that people copy: they stay as they are, to every character."""
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]|[<>&]")


def page_text(document: PageDocument) -> str:
    """The whole page."""
    style = _asset("page.css")
    scripts = [_asset(name) for name in _asset("order.txt").split()]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {
        "csp": f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy, quote=False)}">\n'
        f'<meta name="generator" content="{_GENERATOR} {PAGE_SCHEMA}">',
        "style": f"<style>{style}</style>",
        "document": f'<script type="application/json" id="document">{_inert_json(document)}</script>',
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    template = _asset("page.html")
    for name in parts:
        assert template.count(f"<!-- {{{{{name}}}}} -->") == 1, f"the template has one place for {name}"
    return re.sub(r"<!-- {{(\w+)}} -->", lambda found: parts[found[1]], template)


def is_page(path: Path) -> bool:
    """Whether a file is a page that this module wrote, of any version.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(8192)
    return f'<meta name="generator" content="{_GENERATOR} '.encode() in begin


def _asset(name: str) -> str:
    """A part of the page as browsers read it, with line feeds alone."""
    text = (_ASSETS / name).read_text(encoding="utf-8").replace("\r\n", "\n")
    if not name.endswith((".html", ".txt")):
        lowered = text.lower()
        assert not any(end in lowered for end in ("</script", "</style", "<!--", "\0")), f"{name} would end its element"
    return text


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _inert_json(document: PageDocument) -> str:
    """The document in characters that mean nothing to a parser of HTML."""
    shown = _shown(msgspec.to_builtins(document, str_keys=True))
    text = encode_record(shown).decode()
    return _NOT_PLAIN.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def _copied(name: str, value: Any) -> Any:
    """What is copied as it is; a command that would steer the terminal that it is pasted into is none."""
    if name in ("command", "verify_command"):
        return value if value.isprintable() else ""
    if name == "commands":
        return {label: command for label, command in value.items() if command.isprintable()}
    return value


def _shown(value: Any) -> Any:
    """Texts as people may see them, without control characters and of a bounded length; numbers to six digits."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.6g}")
    if isinstance(value, str):
        text = value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}..."
        return printable(text)
    if isinstance(value, dict):
        return {printable(key): _copied(key, one) if key in _EXACT else _shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    return value
