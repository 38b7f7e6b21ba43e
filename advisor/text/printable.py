"""Make the user's text safe to show: a name or an exception must not control or flood a terminal."""

from __future__ import annotations

import os
import unicodedata

__all__ = ["printable", "quoted", "shown"]

_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and bidirectional formatting characters, lone surrogates, line separators."""

_LONGEST = 120
"""Most characters of a value in a message."""


def printable(text: str) -> str:
    r"""A text with terminal controls escaped; line breaks and tabs stay.

    Example:
        >>> printable("name\x1b[31m\nnext line")
        'name\\x1b[31m\nnext line'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in "\n\t" else _escaped(character) for character in text)


def shown(value: object, longest: int = _LONGEST) -> str:
    r"""A value in a message: on one line, printable, and shortened in its middle.

    Args:
        value: A text or a path is shown as it is, anything else by its ``repr``.
        longest: Most characters.

    Example:
        >>> shown("two\nlines"), len(shown("9" * 400))
        ('two\\nlines', 120)
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    text = _shortened(value if isinstance(value, str) else _represented(value), longest)
    return _shortened("".join(map(_escaped, text)), longest)


def quoted(value: object) -> str:
    r"""Like :func:`shown`, but by its ``repr``: a text is in quotes.

    Example:
        >>> quoted("two\nlines"), quoted(2.5)
        ("'two\\nlines'", '2.5')
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return shown(repr(_shortened(value)) if isinstance(value, str) else value)


def _represented(value: object) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):  # Python refuses to print numbers of more than 4300 digits
        return f"a {type(value).__name__} that is too long to be shown"


def _shortened(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 43]}...{text[-40:]}"


def _escaped(character: str) -> str:
    harmless = character.isprintable() or unicodedata.category(character) not in _STEERING
    return character if harmless else character.encode("unicode_escape").decode()
