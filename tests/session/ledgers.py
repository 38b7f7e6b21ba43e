"""A ledger for tests of what is written into one: it has no file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.decide.candidate import Candidate
from advisor.session.ledger import Ledger, _by_identity, _identity

__all__ = ["InMemory"]


class InMemory(Ledger):
    """Writes into a list.

    Args:
        candidates: Of earlier runs. Figures of one policy get trials of their own, as repetitions have.

    Attributes:
        written: Every candidate that was added or changed, in this order.
    """

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self.written: list[Candidate] = []
        self.tried_again = 0
        self._lines = {}
        self._to_run_again: set[object] = set()
        for number, one in enumerate(candidates):
            known = _identity(one) in self._lines
            one = msgspec.structs.replace(one, trial_key=f"trial-{number}") if known else one
            self._lines[_identity(one)] = one
        self.candidates = tuple(self._lines.values())

    def _append(self, candidate: Candidate) -> None:
        self.written.append(candidate)

    def _rewrite(self, candidates: Iterable[Candidate]) -> None:
        before = self._lines.values()
        self.written += [one for one in _by_identity(candidates).values() if one not in before]
