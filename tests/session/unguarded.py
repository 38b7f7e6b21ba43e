"""A guard that compares nothing, for what is not about it."""

from __future__ import annotations

from typing import Any

from advisor.decide.candidate import Candidate


class _Unguarded:
    def remembered(self, candidate: Candidate) -> Candidate:
        return candidate

    def checked(self, candidate: Candidate) -> Candidate:
        return candidate


UNGUARDED: Any = _Unguarded()
