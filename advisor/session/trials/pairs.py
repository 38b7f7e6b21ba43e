"""Compare two policies in turn in one group of processes, at batches at which both fit."""

from __future__ import annotations

import collections
import math

import msgspec

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import is_measured, is_outpaced, why_not_eligible
from advisor.decide.noise import SMALLEST_NOISE
from advisor.goal import GoalKind
from advisor.methods.compose import starts_slowly
from advisor.policy.policy import Policy
from advisor.search.sizing.memory_model import MemoryModel, round_batch
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.trials.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.workload.batch_layout import BatchLayout

__all__ = ["Pair", "Pairs", "best_of_each", "compares_pairs"]

_SHARES = tuple(share / 20 for share in range(20, 7, -1))
"""Shares of their own batches at which two policies may be compared; with less room another measurement says more."""

_ROUGHLY = {"target_spread": 0.03}
"""Enough for the search's model, which knows other combinations to a few per cent."""


def compares_pairs(context: StudyContext) -> bool:
    """Whether a study does: for speed, at one batch each, for itself alone.

    Other workers of a shared study do not see comparisons made here.
    """
    alone = context.request.storage is None
    return context.goal.kind is GoalKind.FASTER and len(context.space.batch_fractions) == 1 and alone


def best_of_each(context: StudyContext) -> dict[str, Candidate]:
    """Label of each combination that may win -> its best candidate."""
    best: dict[str, Candidate] = {}
    for one in context.ledger.candidates:
        if is_measured(one) and not is_outpaced(one) and why_not_eligible(one, context.goal) is None:
            label = Combination.of(one.policy).label
            if label not in best or one.samples_per_second > best[label].samples_per_second:
                best[label] = one
    return best


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two policies at the batches at which they are compared."""

    one: Policy
    other: Policy


class Pairs:
    """The comparisons of a study.

    Args:
        context: The study.
        trials: Runs them, and knows the memory of what it has timed.
    """

    def __init__(self, context: StudyContext, trials: Trials) -> None:
        self._context = context
        self._trials = trials
        self._made: collections.Counter[tuple[str, str]] = collections.Counter()

    def _usable_bytes(self, gpu_count: int) -> int:
        """Bytes that two trainings may hold together on each device."""
        return self._context.usable_bytes // self._context.goal.sharers(gpu_count)

    def room(self, one: Policy, other: Policy, *, at_most: MemoryModel | None = None) -> Pair | None:
        """Two policies at the same share of their batches, the largest at which both are expected to fit.

        Weights, gradients and optimizer states of both stay in memory, activations those of the one that steps.

        Args:
            one: A policy that was timed.
            other: Another one on as many devices.
            at_most: The memory that the other one needs at most, if it was never run.
        """
        models = [self._trials.model_of(Combination.of(policy)) for policy in (one, other)]
        models[1] = models[1] or at_most
        if one.gpu_count != other.gpu_count or None in models:
            return None
        first, second = (model for model in models if model is not None)
        usable = self._usable_bytes(one.gpu_count)
        for share in _SHARES:
            layout = self._context.facts.batch_layout
            pair = Pair(one=_at(one, share, layout), other=_at(other, share, layout))
            if max(_beside(first, pair.one, second), _beside(second, pair.other, first)) <= usable:
                return pair
        return None

    def compare(self, pair: Pair, *, roughly: bool = False) -> tuple[float, float] | None:
        """Take turns until the ratio is known.

        Args:
            pair: The policies.
            roughly: As well as a search needs it; otherwise to tell leaders apart.

        Returns:
            Log of the first policy's throughput over the other's, and its standard error; ``None`` without a result.
        """
        limits, key = self._context.budget.limits, (pair.one.key, pair.other.key)
        slow_start = starts_slowly((*pair.one.methods, *pair.other.methods))
        result = self._trials.pair(
            pair.one,
            beside=pair.other,
            measure_seconds=limits.turn_seconds,
            hard_limit_seconds=limits.hard_limit_seconds(None, slow_start=slow_start),
            memory_limit_bytes=self._usable_bytes(pair.one.gpu_count),
            repeat=self._made[key],
            **(_ROUGHLY if roughly else {}),
        )
        self._made[key] += 1
        if result.outcome is not Outcome.OK or result.speedup is None:
            return None
        # Two processes of the same trainings differ by more than the turns of one of them show.
        return math.log(result.speedup.value), max(SMALLEST_NOISE, result.speedup.standard_error)


def _at(policy: Policy, share: float, layout: BatchLayout) -> Policy:
    batch = round_batch(math.floor(share * policy.micro_batch), layout)
    return msgspec.structs.replace(policy, micro_batch=max(layout.least_samples, batch))


def _beside(model: MemoryModel, policy: Policy, other: MemoryModel) -> float:
    """Predicted peak of a policy's step beside what the other one holds between its own."""
    return model.predict(policy.micro_batch) + max(0, other.predict(0))
