"""The candidates of a study on disk: appended one by one, read back when the study is continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.decide.candidate import Candidate, Role
from advisor.files import add_line
from advisor.goal import GoalKind
from advisor.text.records import DamagedError, decode_record, encode_record
from advisor.trial.outcome import Outcome

__all__ = ["append_candidate", "lost_candidates", "read_candidates", "without_chance"]


def append_candidate(path: Path, candidate: Candidate) -> None:
    """Add a candidate to the file, on disk before this returns."""
    add_line(path, encode_record(candidate))


def without_chance(candidates: Sequence[Candidate], kind: GoalKind) -> list[Candidate]:
    """Those that stand for a run of the study that begins now, which tries again what ended by chance.

    That is the baseline, which everything is held against, and for ``bigger`` every step of a climb. What was lost
    while it was timed, and had been compared, may lead again as it did then. Other combinations are proposed again, and
    stay in the table until then.

    Args:
        candidates: Of earlier runs.
        kind: What to optimize.
    """
    compared = {one.policy.key for one in candidates if one.outcome is Outcome.COMPARED}

    def is_run_again(one: Candidate) -> bool:
        if one.role is Role.BASELINE or kind is GoalKind.BIGGER:
            return one.outcome.is_by_chance
        return one.outcome is Outcome.LOST and one.policy.key in compared

    return [one for one in candidates if not is_run_again(one)]


def lost_candidates(candidates: Sequence[Candidate]) -> int:
    """How many were ended from outside, and never measured: they are tried again beyond the budget of trials.

    Args:
        candidates: Of earlier runs.
    """
    ends = {Outcome.LOST: set[object](), Outcome.OK: set[object]()}
    for one in candidates:
        if one.outcome in ends:
            ends[one.outcome].add((one.policy.key, *one.model_size.items()))
    return len(ends[Outcome.LOST] - ends[Outcome.OK])


def read_candidates(path: Path) -> list[Candidate]:
    """Every whole candidate in the file; a line that was torn by a kill, or damaged, is not one.

    A measurement that is there twice is one candidate, as it was written last: with what was found out about it since.
    """
    candidates: dict[object, Candidate] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            candidate = decode_record(line, Candidate)
        except DamagedError:
            continue
        known = (candidate.trial_key, candidate.role, candidate.policy.key, tuple(candidate.model_size.items()))
        candidates[len(candidates) if candidate.trial_key is None else known] = candidate
    return list(candidates.values())
