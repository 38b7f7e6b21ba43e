"""What nobody should type, and no file should hold; and what must be true of the answer to it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from advisor.errors import UserError

TEXTS = (
    "",
    " ",
    "abc",
    "-1",
    "0",
    "2.5",
    "1e3",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "9" * 400,
    "9" * 5000,
    "²",
    "٣",
    "1_000",
    "~nobody-at-all",
    "~nobody-at-all/x",
    "a" * 300,
    "a/" * 2500,
    "two\nlines",
    "back\rward",
    "bell\a",
    "\x1b[31mred",
    "C1\x9b31m",
    "\u202egnitirw",
    "\udcff",
    "\ud800",
    "\u2028",
    "nul\0byte",
    "{}",
    "[/bold]",
    "%s%n",
    "--",
)

texts = st.sampled_from(TEXTS) | st.text(st.characters(codec=None), max_size=40)
"""With lone surrogates, which are bytes that are not UTF-8 where Python read them from the system."""

typed = texts.filter(lambda text: "\0" not in text)
"""What the system can hand over as an argument or a variable."""

numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([0, -1, 10**400, -(10**400), 2**63, 2**64, 1e308, 5e-324, float("nan"), float("inf"), True])
)

values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
"""Of any type."""

_SCALAR = re.compile(rb'(?<=[:\[,])[ ]*(-?\d[\d.eE+-]*|"[^"]*"|null|true|false)')

_RULE = re.compile(
    r"\b(must|needs?|takes?|there is no|belongs to|unknown|at most|at least|is no|may only|cannot|is not)\b"
    r"|[<>]=|Expected|Invalid|missing required"
)

_PIECES = (
    b"0",
    b"-1",
    b"9" * 400,
    b"1e400",
    b"NaN",
    b"2.5",
    b"null",
    b"true",
    b'"x"',
    b'"\xff\xfe"',
    b'"\\ud800"',
    b'"\xed\xa0\x80"',
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'"2026-02-30"',
    b"\0",
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Something that was a whole file: cut, overwritten, or with another value in some place."""
    kind = draw(st.sampled_from(["cut", "byte", "value", "piece", "other"]))
    at = draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        return whole[:at]
    if kind == "byte":
        return whole[:at] + bytes([draw(st.integers(0, 255))]) + whole[at + 1 :]
    if kind == "value" and (found := list(_SCALAR.finditer(whole))):
        place = draw(st.sampled_from(found))
        return whole[: place.start()] + draw(st.sampled_from(_PIECES)) + whole[place.end() :]
    if kind == "piece":
        return whole[:at] + draw(st.sampled_from(_PIECES)) + whole[at:]
    return draw(st.binary(max_size=40) | st.sampled_from(_PIECES))


def steering(text: str) -> set[str]:
    """The characters of a text that steer a terminal, or that no terminal can be given."""
    return {
        character
        for character in text
        if character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }


def assert_explains(message: str) -> None:
    """A message is one line that can be printed as it is, that nobody has to scroll, and that has a rule in it."""
    assert "\n" not in message
    assert not steering(message)
    assert len(message) < 1500
    assert _RULE.search(message), message


@contextmanager
def valid_or_explained(*errors: type[UserError]) -> Iterator[None]:
    """What is inside works, or raises one of these errors with a message that explains it."""
    try:
        yield
    except errors as error:
        assert_explains(str(error))


def explained(call: Callable[[], object], error: type[UserError] = UserError) -> str:
    """The message of the error that a call must end in."""
    with pytest.raises(error) as raised:
        call()
    assert_explains(str(raised.value))
    return str(raised.value)
