"""Measure the leaders once more before one of them is recommended.

The best of many noisy measurements is usually a lucky one. A model of the search shows which to repeat
(:mod:`advisor.decide.repeat`). Without one, the policies near the best and the baseline run again: the worse of two
measurements represents a policy (:func:`~advisor.decide.ranking.ranked`), their difference counts as noise, and if two
leaders are still close, both run a third time and the median counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_measured, is_outpaced, measured_once, why_not_eligible
from advisor.decide.noise import noise_of
from advisor.decide.repeat import contested, worth_repeating
from advisor.decide.score import gain, score
from advisor.goal import Goal, GoalKind
from advisor.measure.timing import NEAR
from advisor.policy.policy import Policy
from advisor.report.wording import batch_words
from advisor.search.propose.standing import Standing
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.ledger import Ledger
from advisor.session.trials.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult

__all__ = ["MOST", "ROUNDS", "measure_leaders_again", "times_measured"]

MOST = 3
"""Policies that are run again, besides the baseline."""

ROUNDS = 4
"""Most rounds of measuring the new leader again; with noisy measurements, a few find one that is not just lucky."""


def measure_leaders_again(
    context: StudyContext,
    trials: Trials,
    recommendation: Recommendation,
    standings: Mapping[str, Standing] | None = None,
) -> bool:
    """Run the leaders and the baseline again, as time allows; return whether anything was measured.

    Nothing is repeated where nothing can change: for ``bigger`` (a model's size has no luck), if only plain training
    was measured, or for policies that an earlier run of the study repeated. A policy that does not run a second time
    is replaced in the ledger by its failure, and is never recommended.
    """
    ledger, goal, candidates = context.ledger, context.goal, context.ledger.candidates
    if standings and goal.kind is GoalKind.FASTER:
        again = _doubtful(recommendation, candidates, goal, standings)
    else:
        again = [one for one in _leaders(recommendation, goal) if times_measured(one.policy, candidates) == 1]
        again = again or _contested(recommendation, candidates, goal)
    for number, leader in enumerate(again, start=1):
        if not context.budget.may_repeat:
            return number > 1
        label, batch = Combination.of(leader.policy).words, batch_words(leader.policy)
        context.progress.stage(f"measuring the leaders again ({number} of {len(again)}): {label}, batch {batch}")
        result = trials.time(
            leader.policy, outpaced_below=None, repeat=times_measured(leader.policy, ledger.candidates)
        )
        if result.outcome is Outcome.OK:
            ledger.add(
                msgspec.structs.replace(
                    leader,
                    role=Role.SEARCHED,
                    measurement=result.measurement,
                    speedup=result.speedup,
                    trial_key=result.key,
                )
            )
        elif not result.outcome.is_by_chance:  # A timeout means a busy machine, not a failing policy.
            _rule_out(leader.policy, ledger, result)
    return bool(again)


def times_measured(policy: Policy, candidates: Sequence[Candidate]) -> int:
    """Number of measurements of a policy."""
    return sum(is_measured(one) and one.policy == policy for one in measured_once(candidates))


def _doubtful(
    recommendation: Recommendation, candidates: Sequence[Candidate], goal: Goal, standings: Mapping[str, Standing]
) -> list[Candidate]:
    """A candidate that may be lucky, or better than it looks; and a baseline that alternated with nothing."""
    best: dict[str, Candidate] = {}
    for one in _able(recommendation, goal):
        label = Combination.of(one.policy).label
        if label in standings:
            best.setdefault(label, one)
    thought = {label: standings[label] for label in best}
    measurements: dict[str, list[float]] = {label: [] for label in best}
    for one in measured_once(candidates):
        label = Combination.of(one.policy).label
        if one.measurement is None or is_outpaced(one) or label not in best or one.policy != best[label].policy:
            continue
        if measurements[label]:  # The search knows the first.
            thought[label] = thought[label].after(score(one, goal), noise_of(one.measurement, one.speedup))
        measurements[label].append(score(one, goal))
    again = worth_repeating(thought, measurements)
    found = [] if again is None else [best[again]]
    baseline, winner = recommendation.baseline, recommendation.winner
    if baseline is not None and winner.speedup is None and baseline.policy not in (one.policy for one in found):
        others = winner.policy != baseline.policy or bool(found)
        found += [baseline] if others and times_measured(baseline.policy, candidates) == 1 else []
    return found


def _leaders(recommendation: Recommendation, goal: Goal) -> list[Candidate]:
    """The winner, the baseline, and other possible winners, in the order of importance."""
    if goal.kind is GoalKind.BIGGER:
        return []
    winner, baseline = recommendation.winner, recommendation.baseline
    able = _able(recommendation, goal) or [winner]
    if recommendation.frontier is not None:
        points = {point.policy.key for point in recommendation.frontier.points}
        near = [one for one in able if one.policy.key in points]
    else:
        best = score(able[0], goal)
        near = [one for one in able if gain(best, score(one, goal), goal.kind) <= NEAR]
    if any(one.speedup is not None for one in (winner, *near)):
        # These speedups are all over the baseline, directly or through a leader; and a slightly faster batch of the
        # same methods does not matter.
        different = {one.policy.combination_key: one for one in reversed([winner, *near])}
        rivals = [one for one in near if different[one.policy.combination_key] is one]
        rivals = [one for one in rivals if one.policy.combination_key != winner.policy.combination_key]
        if baseline is not None and winner.policy == baseline.policy:
            return rivals[:MOST]
        return [winner, *rivals][:MOST] if rivals else []
    leaders = [winner, *(one for one in near if one.policy != winner.policy)][:MOST]
    if baseline is not None and baseline.policy not in [one.policy for one in leaders]:
        leaders.insert(1, baseline)
    return leaders if len(leaders) > 1 else []


def _able(recommendation: Recommendation, goal: Goal) -> list[Candidate]:
    """Eligible candidates whose timing was not cut short, the best first."""
    return [one for one in recommendation.ranking if why_not_eligible(one, goal) is None and not is_outpaced(one)]


def _contested(recommendation: Recommendation, candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """Two leaders so close that two measurements each do not tell which is better."""
    if goal.kind is not GoalKind.FASTER:
        return []
    able = {one.policy.key: one for one in _able(recommendation, goal)}
    measurements: dict[str, list[float]] = {key: [] for key in able}
    for one in measured_once(candidates):
        if is_measured(one) and one.policy.key in able:
            measurements[one.policy.key].append(score(one, goal))
    found = [able[key] for key in contested(measurements)]
    if found and found[0].speedup is not None and len({one.policy.combination_key for one in found}) == 1:
        return []
    return found


def _rule_out(policy: Policy, ledger: Ledger, again: TimeResult) -> None:
    """Replace the measurements of a policy that does not run a second time by its failure."""

    def ended(one: Candidate) -> Candidate:
        if one.policy != policy or not is_measured(one):
            return one
        reason = f"run again, it ended: {again.reason}"
        return msgspec.structs.replace(one, outcome=again.outcome, reason=reason, measurement=None)

    ledger.replace(ended)
