"""Reserve time for the confirmation by what timings of a study took."""

from __future__ import annotations

from advisor.decide.eligible import is_measured
from advisor.methods.compose import starts_slowly
from advisor.policy.policy import Policy
from advisor.session.context import StudyContext
from advisor.session.trial_limits import Durations
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult
from advisor.trial.spec import TimeTrial

__all__ = ["recall_timings", "remember_timing"]


def remember_timing(durations: Durations, policy: Policy, result: TimeResult) -> None:
    """Keep what one batch of a timing took, if that is the longest."""
    if result.outcome is Outcome.OK:
        seconds = result.wall_seconds / (1 + len(result.ladder))
        durations.timing_seconds = max(durations.timing_seconds, seconds)
        if not starts_slowly(policy.methods):
            durations.quick_timing_seconds = max(durations.quick_timing_seconds, seconds)


def recall_timings(context: StudyContext, folder: StudyFolder) -> None:
    """Remember the timings of an earlier run, which are not made again."""
    for one in context.ledger.candidates:
        trial = folder.trial(one.trial_key) if one.trial_key and is_measured(one) else None
        spec = None if trial is None else trial.read_spec()
        if trial is not None and isinstance(spec, TimeTrial) and (result := trial.read_result(spec)) is not None:
            remember_timing(context.budget.durations, one.policy, result)
