"""The candidates of a study: one list, in memory and on disk, which only the ledger changes.

Every change is on disk before it is in memory: a new candidate is appended, for a changed one the file is written anew,
whole. So a killed process leaves a ledger from before a change or from after it. A changed candidate withdraws a stored
answer, whose winner it may rule out. A new one does not: that remains the answer of the shorter search.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from advisor.decide.answer import withdraw_answer
from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import is_measured
from advisor.files import add_line, write_whole
from advisor.goal import GoalKind
from advisor.text.records import DamagedError, decode_record, encode_record
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome

__all__ = ["Ledger", "lost_candidates", "read_candidates", "without_chance"]


class Ledger:
    """The one writer of candidates.

    Args:
        folder: The study folder; what earlier runs wrote into it is read.
        kind: What to optimize, which decides what is run again (:func:`without_chance`).

    Attributes:
        candidates: Everything that was tried and counts for this run, in the order of first lines.
        tried_again: How many candidates of earlier runs were killed from outside and never measured.
    """

    def __init__(self, folder: StudyFolder, kind: GoalKind) -> None:
        self._folder = folder
        self._lines = _by_identity(read_candidates(folder.ledger))
        earlier = list(self._lines.values())
        standing = {_identity(one) for one in without_chance(earlier, kind)}
        self._to_run_again = self._lines.keys() - standing
        self.tried_again = lost_candidates(earlier)
        self.candidates = self._standing()

    @property
    def next_number(self) -> int:
        """Number of the next trial; both batches of a trial share it."""
        return 1 + len({one.trial_key or position for position, one in enumerate(self.candidates)})

    @property
    def measured(self) -> int:
        """Number of trials with measurements; timing two batches counts once, repeating a policy not at all.

        A combination compared by short steps counts once, whether or not it was timed later.
        """
        compared = {
            one.policy.combination_key: one.policy.key for one in self.candidates if one.outcome is Outcome.COMPARED
        }
        first: dict[str, str] = {}
        for one in self.candidates:
            key = one.policy.key
            if one.outcome is Outcome.COMPARED:
                first.setdefault(key, key)
            elif is_measured(one):
                first.setdefault(key, compared.get(one.policy.combination_key) or one.trial_key or key)
        return len(set(first.values()))

    @property
    def baseline(self) -> Candidate | None:
        """The baseline, once it was tried."""
        return next((one for one in self.candidates if one.role is Role.BASELINE), None)

    def add(self, candidate: Candidate) -> None:
        """Record a candidate, replacing an earlier failure of the same trial.

        A trial is measured once: an existing measurement stays, with everything learned about it since.

        Raises:
            OSError: It could not be written; the ledger is as before.
        """
        identity = _identity(candidate)
        known = self._lines.get(identity)
        if known is not None and known.measurement is not None:
            return
        try:
            self._append(candidate)
            self._lines[identity] = candidate
        except OSError:
            raise
        except BaseException:
            self._read_again()
            raise
        finally:
            if self._lines.get(identity) == candidate:
                self._to_run_again.discard(identity)
            self.candidates = self._standing()

    def replace(self, change: Callable[[Candidate], Candidate]) -> None:
        """Apply a change to all candidates at once, or to none.

        Raises:
            OSError: It could not be written; the ledger is as before.
        """
        changed = [one if key in self._to_run_again else change(one) for key, one in self._lines.items()]
        if changed == list(self._lines.values()):
            return
        lines = _by_identity(changed)
        try:
            self._rewrite(lines.values())
            self._lines = lines
        except OSError:
            raise
        except BaseException:
            self._read_again()
            raise
        finally:
            self.candidates = self._standing()

    def _read_again(self) -> None:
        """After Ctrl-C inside of a write: only the file tells whether it took place."""
        self._lines = _by_identity(read_candidates(self._folder.ledger))

    def _standing(self) -> tuple[Candidate, ...]:
        return tuple(one for key, one in self._lines.items() if key not in self._to_run_again)

    def _append(self, candidate: Candidate) -> None:
        add_line(self._folder.ledger, encode_record(candidate))

    def _rewrite(self, candidates: Iterable[Candidate]) -> None:
        withdraw_answer(self._folder)
        write_whole(self._folder.ledger, b"".join(encode_record(one) + b"\n" for one in candidates))


def without_chance(candidates: Sequence[Candidate], kind: GoalKind) -> list[Candidate]:
    """Drop the candidates that a new run of the study must try again because they failed by chance.

    These are the baseline, every step of a climb (``bigger``), and a compared candidate that was lost while it was
    timed. Other combinations are proposed again, and stay in the table until then.
    """
    compared = {one.policy.combination_key for one in candidates if one.outcome is Outcome.COMPARED}

    def is_run_again(one: Candidate) -> bool:
        if one.role is Role.BASELINE or kind is GoalKind.BIGGER:
            return one.outcome.is_by_chance
        return one.outcome is Outcome.LOST and one.policy.combination_key in compared

    return [one for one in candidates if not is_run_again(one)]


def lost_candidates(candidates: Sequence[Candidate]) -> int:
    """Count candidates killed from outside and never measured: they are tried again beyond the trial budget."""
    ends = {Outcome.LOST: set[object](), Outcome.OK: set[object]()}
    for one in candidates:
        if one.outcome in ends:
            ends[one.outcome].add((one.policy.key, *one.model_size.items()))
    return len(ends[Outcome.LOST] - ends[Outcome.OK])


def read_candidates(path: Path) -> list[Candidate]:
    """Read the last version of every candidate in the file, skipping torn or damaged lines."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(decode_record(line, Candidate))
        except DamagedError:
            continue
    return list(_by_identity(found).values())


def _by_identity(candidates: Iterable[Candidate]) -> dict[Hashable, Candidate]:
    return {_identity(one): one for one in candidates}


def _identity(one: Candidate) -> Hashable:
    """The identity that two lines of one candidate share: its trial, or how it ended without one."""
    end = one.outcome if one.trial_key is None else one.trial_key
    return end, one.role, one.policy.key, tuple(one.model_size.items())
