"""Run an emitted wrapper in a fresh process, and compare it with the search's measurements."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.confirmation import Confirmation
from advisor.decide.eligible import is_measured
from advisor.decide.promise import is_certain, promised, shown, together
from advisor.decide.uneven import are_many, are_uneven
from advisor.hardware.contention import other_load
from advisor.hardware.hardware import DeviceKind
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.search.space.space import Combination
from advisor.session.answer.steadier_baseline import SteadierBaseline, lowered, steadying
from advisor.session.context import StudyContext
from advisor.session.setup.limits import CUDA_CONTEXT_BYTES
from advisor.session.trials.stalls import speedup_between
from advisor.session.trials.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.result import ConfirmResult

__all__ = ["WrapperRun", "WrapperRuns"]

_KEPT = 0.9
"""Share of the promised throughput below which a confirmation needs the baseline beside it."""

_REPETITIONS = 1000
"""More than there are of a policy otherwise."""

_MOST_PAIRS = 5
"""Pairs of fresh processes that a vague promise is worth."""

_PROCESSES = 4
"""Fresh processes of the baseline that tell whether all take as many pages from the system in a step."""

_NO_MEMORY = (Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY)

_APART = 0.1
"""Relative difference always allowed between two runs of one policy."""


class WrapperRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of running a winner's wrapper.

    Attributes:
        found: Its speedup over the baseline from all alternating runs; ``None`` without any.
        interrupted: Whether the user interrupted what came after the run.
        may_go_on: Whether another run of the study may add pairs of processes to what was found.
    """

    confirmation: Confirmation
    found: Speedup | None = None
    interrupted: bool = False
    may_go_on: bool = False


@dataclass
class WrapperRuns:
    """Runs the wrapper of one winner after the other."""

    context: StudyContext
    trials: Trials
    path: str

    def confirm(self, recommendation: Recommendation) -> WrapperRun:
        """Run the winner's wrapper, and whatever tells a wrong promise from a slow machine.

        Args:
            recommendation: The recommendation whose files are in the folder.
        """
        winner = recommendation.winner
        assert winner.measurement is not None
        label = Combination.of(winner.policy).words
        self.context.progress.stage(f"running the emitted wrapper in a fresh process: {label}")
        # The baseline itself is no faster than the baseline, whatever it takes turns with.
        steady = None if _same_training(winner, recommendation.baseline) else self.trials.turns.steady
        busy = steady is not None and bool(self._other_load())  # an idle machine slows nothing down any more
        beside = {} if self.trials.turns.wanted else self._beside(winner, recommendation.baseline)
        result = self._at_size_of(winner).confirm(winner.policy, self.path, repeat=0, around_stalls=busy, **beside)
        ended = beside and winner.policy.gpu_count > 1 and result.outcome is not Outcome.OK
        if ended or result.outcome in _NO_MEMORY:
            # A group that its partners do not fit beside ends as a whole; and each process loads the data for itself.
            self.context.progress.stage(f"running the emitted wrapper without the baseline beside it: {label}")
            result = self._at_size_of(winner).confirm(winner.policy, self.path, repeat=0, beside=None)
        over_steady = None if steady is None or not _took_turns(result, steady) else result.speedup
        speedups = [] if result.speedup is None else [result.speedup]
        interrupted = False
        if over_steady is not None and steady is not None and steady.speedup is not None:
            speedups = [steady.speedup.times(over_steady)]
        else:
            try:
                failed = self._in_more_processes(speedups, recommendation, **beside)
            except KeyboardInterrupt:
                interrupted, failed = True, None  # the confirmation is complete without what comes now
            if failed is not None:
                result, speedups = failed, []
        found, promise = self._promise(speedups, recommendation)
        speedup = together(speedups) if speedups else None
        confirmation = Confirmation(
            outcome=result.outcome,
            reason=result.reason,
            measurement=result.measurement,
            promised_samples_per_second=winner.measurement.samples_per_second,
            speedup=speedup,
            promise=promise,
            noise=_noise(winner, result.measurement),
        )
        if speedup is not None:
            confirmation = _beside_earlier(confirmation, speedup, recommendation, result)
        try:
            if interrupted:
                pass
            elif promise is None:
                confirmation, after = self._with_baseline(confirmation, recommendation)
                confirmation = self._once_more(confirmation, winner)
                confirmation = self._promised_beside(confirmation, after, recommendation)
            elif over_steady is not None:
                confirmation = lowered(confirmation, over_steady, self.trials.turns.around)
            else:
                confirmation = self._steadier.without_stalls(confirmation, recommendation, self._other_load())
                confirmation = self._steadier.without_page_faults(confirmation, recommendation, asked=beside)
                if found is not None and confirmation.page_faults and confirmation.promise is not None:
                    found = msgspec.structs.replace(found, low=max(found.low, confirmation.promise.low))
        except KeyboardInterrupt:
            interrupted = True
        if confirmation.kept is not None and (confirmation.is_unsteady or not confirmation.as_promised):
            confirmation = msgspec.structs.replace(confirmation, other_load=self._other_load())
        may_go_on = over_steady is None and len(speedups) < _MOST_PAIRS
        return WrapperRun(confirmation=confirmation, found=found, interrupted=interrupted, may_go_on=may_go_on)

    def _in_more_processes(
        self, speedups: list[Speedup], recommendation: Recommendation, **asked: Any
    ) -> ConfirmResult | None:
        """Add what further pairs of fresh processes show, while the promise is vague and there is time.

        Returns:
            The run in which the wrapper failed, if any: it is as good a reason against the winner as in the first.
        """
        winner = recommendation.winner
        label = Combination.of(winner.policy).words
        while len(speedups) < _MOST_PAIRS and self.context.budget.may_confirm_another:
            found, promise = self._promise(speedups, recommendation)
            if found is None or promise is None:
                return None
            tells_more = found.value > 1 and len(speedups) < _PROCESSES and self._may_be_uneven(recommendation)
            if is_certain(found, promise) and not tells_more:
                return None
            self.context.progress.stage(f"running the emitted wrapper in other fresh processes, to be surer: {label}")
            again = self._at_size_of(winner).confirm(
                winner.policy, self.path, repeat=len(speedups), around_stalls=False, **asked
            )
            if again.speedup is None:
                # Several ranks may have ended because of their partners.
                fails = again.outcome is not Outcome.OK and not again.outcome.is_by_chance
                return again if fails and winner.policy.gpu_count == 1 else None
            speedups.append(again.speedup)
        return None

    def _may_be_uneven(self, recommendation: Recommendation) -> bool:
        """Whether steps of the baseline take many pages from the system, as far as is known all as many."""
        if not steadying(recommendation, self.context.space):
            return False
        assert recommendation.baseline is not None, "there is something to steady"
        readings = self.trials.turns.page_faults_of(recommendation.baseline.policy)
        return are_many(readings) and not are_uneven(readings)

    @property
    def _steadier(self) -> SteadierBaseline:
        return SteadierBaseline(self.context, self.trials, self.path)

    def _other_load(self) -> str:
        """What keeps the machine busy; empty if nothing does."""
        load = other_load(self.context.hardware, devices=max(self.context.goal.gpu_counts))
        return "" if load.is_idle else load.words

    def _beside(self, winner: Candidate, baseline: Candidate | None) -> dict[str, Any]:
        """What the wrapper takes turns with where the search took none: the baseline, if it can train beside it.

        It does so on all of the wrapper's devices, or on the first one, at a model size of its own.
        """
        if baseline is None or baseline.measurement is None or _same_training(winner, baseline):
            return {}
        count = winner.policy.gpu_count
        context = CUDA_CONTEXT_BYTES if self.context.hardware.kind is DeviceKind.CUDA else 0
        both = baseline.measurement.memory.peak_bytes + winner.measured.memory.peak_bytes + context
        if baseline.policy.gpu_count not in (1, count) or both > self.context.usable_bytes // self.context.goal.sharers(
            count
        ):
            return {}
        size = None if baseline.model_size == winner.model_size else baseline.model_size
        return {"beside": baseline.policy, "beside_size": size}

    def _at_size_of(self, candidate: Candidate) -> Trials:
        return self.trials.at_size(candidate.model_size) if candidate.model_size else self.trials

    def _once_more(self, confirmation: Confirmation, winner: Candidate) -> Confirmation:
        """Run the wrapper again if it was far from the search's measurement; the nearer of the two counts."""
        may = confirmation.outcome is Outcome.OK and self.context.budget.may_confirm_another
        if confirmation.as_promised or not may:
            return confirmation
        label = Combination.of(winner.policy).words
        self.context.progress.stage(f"running the emitted wrapper once more, as it was far from its promise: {label}")
        result = self._at_size_of(winner).confirm(winner.policy, self.path, repeat=1)
        if result.outcome is not Outcome.OK:
            return confirmation
        again = msgspec.structs.replace(
            confirmation, measurement=result.measurement, noise=_noise(winner, result.measurement)
        )
        nearer, other = sorted((confirmation, again), key=lambda one: abs((one.kept or 0.0) / (one.drift or 1.0) - 1))
        assert other.measurement is not None, "both went well"
        return msgspec.structs.replace(nearer, other_samples_per_second=other.measurement.samples_per_second)

    def _promise(
        self,
        found: Sequence[Speedup],
        recommendation: Recommendation,
        baselines: Sequence[Measurement] = (),
        also: Sequence[Speedup] = (),
    ) -> tuple[Speedup, Speedup] | tuple[None, None]:
        """The speedup that confirmations show and the one to promise, from all alternating runs.

        Args:
            found: What the confirmations found.
            recommendation: What was confirmed.
            baselines: The baseline's measurements after it.
            also: Other speedups of the winner, which show how much they vary but do not move the value.
        """
        if not found:
            return None, None
        winner, baseline = recommendation.winner, recommendation.baseline
        speedups: dict[str, list[Speedup]] = {winner.policy.key: []}
        for one in self.context.ledger.candidates:
            if one.speedup is not None and is_measured(one):
                speedups.setdefault(one.policy.key, []).append(one.speedup)
        own = [*speedups.pop(winner.policy.key), *also]
        others = list(speedups.values())
        rates: tuple[float, ...] = ()
        if baseline is not None and baseline.measurement is not None:
            measured = (baseline.measurement, *baselines)
            rates = (*(one.samples_per_second for one in measured), *self.trials.turns.rates_of(baseline.policy))
        return shown(found, own, others, rates), promised(found, own, others, rates)

    def _promised_beside(
        self, confirmation: Confirmation, after: Measurement | None, recommendation: Recommendation
    ) -> Confirmation:
        """Promise the ratio to the baseline that ran right after the wrapper, where the two cannot take turns.

        It is as uncertain as either of them, as the baseline's speed differs from what the search measured, and as a
        second run of the wrapper differs from the one that counts.
        """
        if after is None or confirmation.measurement is None:
            return confirmation
        ratio, other = speedup_between(confirmation.measurement, after), confirmation.other_samples_per_second
        others = [] if other is None else [msgspec.structs.replace(ratio, value=other / after.samples_per_second)]
        _, promise = self._promise([ratio], recommendation, (after,), also=others)
        return msgspec.structs.replace(confirmation, promise=promise)

    def _with_baseline(
        self, confirmation: Confirmation, recommendation: Recommendation
    ) -> tuple[Confirmation, Measurement | None]:
        """Measure the baseline again right after the winner: a machine that slowed down slows both.

        If the winner fell short of its promise, this may exceed the time limit: nothing else tells a slow machine from
        a wrong promise.
        """
        baseline, winner, budget = recommendation.baseline, recommendation.winner, self.context.budget
        if baseline is None or _same_training(winner, baseline) or confirmation.outcome is not Outcome.OK:
            return confirmation, None
        as_promised = confirmation.kept is not None and confirmation.kept >= _KEPT
        if as_promised and budget.remaining_seconds < budget.expected_trial_seconds:
            return confirmation, None
        self.context.progress.stage("measuring the baseline once more, for comparison")
        again = (
            self._at_size_of(baseline)
            .time(baseline.policy, outpaced_below=None, repeat=_right_after(winner))
            .measurement
        )
        if again is None:
            return confirmation, None
        before, rate = baseline.measurement, again.samples_per_second
        drift = None if before is None else rate / before.samples_per_second
        return msgspec.structs.replace(confirmation, baseline_samples_per_second=rate, drift=drift), again


def _beside_earlier(
    confirmation: Confirmation, found: Speedup, recommendation: Recommendation, result: ConfirmResult
) -> Confirmation:
    """With the speedup that the policy showed before: in the search, or in an earlier confirmation if that is nearer.

    Two confirmations that agree are reproducible, whatever the search measured on a busy machine.
    """
    winner = recommendation.winner
    before = winner.confirmed
    if before is not None and before.value == found.value:
        before = None  # the same runs, read back by a continued study: they confirm nothing
    earlier = [(one.value, one.relative_spread) for one in (winner.speedup, before) if one is not None]
    earlier = earlier or _between_trials(recommendation, result)
    if not earlier:
        return confirmation
    expected, spread = min(earlier, key=lambda one: abs(math.log(found.value / one[0])))
    noise = max(_APART, 2 * math.hypot(found.relative_spread, spread))
    return msgspec.structs.replace(confirmation, expected_speedup=expected, noise=noise)


def _between_trials(recommendation: Recommendation, result: ConfirmResult) -> list[tuple[float, float]]:
    """The winner's throughput over the baseline's from trials of their own, and how far chance may change that.

    All there is of a winner that took turns with nothing before: there was no room beside it, or the search took none.
    By how much the baseline's speed differs now is by how much a ratio of trials at different times may be wrong.
    """
    winner, baseline = recommendation.winner, recommendation.baseline
    if baseline is None or baseline.measurement is None:
        return []
    first, second = winner.measured, baseline.measurement
    rates = [pace.samples_per_second for pace in result.paces if pace.policy == baseline.policy]
    differs = max((abs(math.log(rate / second.samples_per_second)) for rate in rates), default=0.0)
    spread = math.hypot(first.relative_spread, second.relative_spread, recommendation.repeats, differs)
    return [(first.samples_per_second / second.samples_per_second, spread)]


def _right_after(winner: Candidate) -> int:
    """The repetition of the baseline that belongs to a winner's wrapper: read back with it, and with no other's.

    A continued study may find another winner on a machine that runs at another speed by then.
    """
    size = sorted(winner.model_size.items())
    return _REPETITIONS + zlib.crc32(f"{winner.policy.key} {size}".encode())


def _same_training(winner: Candidate, baseline: Candidate | None) -> bool:
    return baseline is not None and (baseline.policy, baseline.model_size) == (winner.policy, winner.model_size)


def _took_turns(result: ConfirmResult, other: Candidate) -> bool:
    return any(pace.policy == other.policy for pace in result.paces)


def _noise(winner: Candidate, again: Measurement | None) -> float:
    spreads = [one.relative_spread for one in (winner.measurement, again) if one is not None]
    return max(_APART, 2 * math.hypot(*spreads))
