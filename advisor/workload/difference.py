"""One difference between what a policy was measured for and what is here now."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping

import msgspec

__all__ = ["Difference", "Weight", "version_differences"]

_NUMBERS = re.compile(r"\d+")


class Weight(enum.Enum):
    """What a difference means for what was measured."""

    STALE = "stale"
    """Other figures must be expected: measure again."""
    READ = "read"
    """Something that the model's code reads is another, while the model is the same. A study is not continued."""
    WARNING = "warning"
    """The figures may have moved a little."""
    PICK = "pick"
    """What was measured holds, and another policy of it may be the one to pick."""
    MOVED = "moved"
    """A figure was measured again, and is another."""


class Difference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing, as it was and as it is.

    Attributes:
        subject: What it is about, such as ``"model"`` or ``"torch"``.
        what: Which property of it; empty if there is only one.
        was: The value then; empty where there is no readable one.
        now: The value now.
    """

    subject: str
    what: str = ""
    was: str = ""
    now: str = ""
    weight: Weight = Weight.STALE

    @property
    def words(self) -> str:
        """One line: ``model: parameters 10 -> 20``."""
        if not (self.was or self.now):
            return f"{self.subject}: {self.what} changed" if self.what else f"{self.subject} changed"
        change = f"{self.was or 'none'} -> {self.now or 'none'}"
        return f"{self.subject}: {self.what} {change}" if self.what else f"{self.subject}: {change}"


def version_differences(then: Mapping[str, str], now: Mapping[str, str], names: Iterable[str]) -> list[Difference]:
    """Versions of installed packages: another minor version makes figures stale, a patch or a build is a warning.

    A package that was not installed then can have had no part in what was measured.
    """
    found = []
    for name in names:
        was, here = then.get(name), now.get(name)
        if was is None or was == here:
            continue
        same = here is not None and _minor(was) == _minor(here)
        weight = Weight.WARNING if same else Weight.STALE
        found.append(Difference(subject=name, was=was, now=here or "not installed", weight=weight))
    return found


def _minor(version: str) -> tuple[str, ...]:
    """Major and minor version."""
    return tuple(_NUMBERS.findall(version.partition("+")[0])[:2])
