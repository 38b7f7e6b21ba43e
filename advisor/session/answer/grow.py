"""Time the winner at the largest batch that its own measured peak leaves room for, before it is confirmed."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.goal import GoalKind
from advisor.measure.in_turn import Speedup
from advisor.methods.compose import starts_slowly
from advisor.policy.policy import Policy
from advisor.report.wording import batch_words
from advisor.search.sizing.growing import WORTH_GROWING, grown_batch
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.trials.trials import Trials
from advisor.session.trials.turns import at_speed_of
from advisor.trial.outcome import Outcome

__all__ = ["grow_winner"]

_MOST = 1.5
"""Times its own batch: with more room than rounding and forecasts leave, the search stopped below on purpose."""


def grow_winner(context: StudyContext, trials: Trials, recommendation: Recommendation) -> bool:
    """Time the winner at a larger batch if that is expected to be faster; return whether it was tried.

    Only for ``faster`` with a free global batch, not of the user's own baseline, within the number of trials, and only
    beyond the largest batch of its methods that was tried: of smaller ones the search knows which is best.
    """
    policy = _grown(context, trials, recommendation.winner)
    if policy is None or not context.budget.may_repeat:
        return False
    if starts_slowly(policy.methods) and not context.budget.may_set_up:
        return False
    label = Combination.of(policy).words
    context.progress.stage(f"timing the winner at the largest batch that fits: {label}, batch {batch_words(policy)}")
    winner = recommendation.winner
    in_turn = trials.turns.wanted and not starts_slowly(policy.methods)
    found = _in_turn(context, trials, winner, policy) if in_turn else _by_itself(trials, winner, policy)
    if found is not None:
        context.ledger.add(msgspec.structs.replace(found, role=Role.SEARCHED, confirmed=None, not_confirmed=""))
    return True


def _by_itself(trials: Trials, winner: Candidate, policy: Policy) -> Candidate:
    result = trials.time(policy, outpaced_below=None)
    return msgspec.structs.replace(
        winner,
        policy=policy,
        outcome=result.outcome,
        reason=result.reason,
        measurement=result.measurement,
        speedup=result.speedup,
        trial_key=result.key,
    )


def _in_turn(context: StudyContext, trials: Trials, winner: Candidate, policy: Policy) -> Candidate | None:
    """Time it in turn with the winner's own batch, in one process; ``None`` if it does not run.

    Two trials differ by more than the few per cent that are to be gained, and of a tie the smaller batch wins.
    """
    result = trials.time(winner.policy, outpaced_below=None, ladder=(policy,))
    rung = result.ladder[0] if result.outcome is Outcome.OK and result.ladder else None
    if rung is None or rung.gain is None:
        for note in result.notes:
            context.progress.note(note)
        return None
    gain, spread = rung.gain, 1 + winner.measured.relative_spread
    # Its rate is as uncertain as before, and by the gain's own interval.
    over_own = Speedup(value=1.0, low=1 / spread, high=spread, rounds=1).times(gain)

    def compared(one: Candidate) -> Candidate:
        return msgspec.structs.replace(one, gain_of_larger=gain) if one.policy == winner.policy else one

    context.ledger.replace(compared)
    return msgspec.structs.replace(
        winner,
        policy=policy,
        measurement=at_speed_of(winner.measured, rung.measurement, over_own),
        speedup=None if winner.speedup is None else winner.speedup.times(gain),
        gain_of_larger=None,
        trial_key=result.key,
    )


def _grown(context: StudyContext, trials: Trials, winner: Candidate) -> Policy | None:
    """The winner at the larger batch; ``None`` if there is none, or none that promises anything."""
    own, goal, combination = winner.policy, context.goal, Combination.of(winner.policy)
    if winner.role is Role.BASELINE or context.ledger.measured >= context.request.trials + context.ledger.tried_again:
        return None
    model = trials.model_of(combination)
    if goal.kind is not GoalKind.FASTER or goal.global_batch is not None or model is None:
        return None
    tried = [one.policy.micro_batch for one in context.ledger.candidates if Combination.of(one.policy) == combination]
    longest = context.budget.limits.longest_step_seconds / own.accumulation_steps
    batch = grown_batch(model, goal.limit_on(own.gpu_count), most=model.largest_within_seconds(longest))
    if own.micro_batch < max(tried) or winner.measured.memory.allocation_retries:
        return None
    if not own.micro_batch < batch <= _MOST * own.micro_batch:
        return None
    gain = batch / model.seconds(batch) * model.seconds(own.micro_batch) / own.micro_batch - 1
    return msgspec.structs.replace(own, micro_batch=batch) if gain >= WORTH_GROWING else None
