"""What the trials of a study alternate with, and their speedups over the baseline.

Machines drift by more than policies differ; the ratio of alternating steps does not. Profiling runs alternate with the
pacesetter, timed runs with the baseline or the leader, where memory has room for both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.decide.candidate import Candidate
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement, Sizing
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.trial.result import ComparedResult, TimeResult

__all__ = ["Turns", "at_speed_of"]

_SAMPLES_OF_PROFILING_RUNS = 8
"""Beside profiling runs, the pacesetter is assumed to need memory for at least this many samples."""

_SLOWER_STEP = 2.0
"""Largest ratio of the leader's step time to the baseline's."""

_OF_LEADERS = ("pacesetter", "compare_at", "leader", "best_batch", "peaked")


class Turns:
    """Pairs trainings whose steps alternate.

    Attributes:
        baseline: The reference of every speedup, once it was timed.
        pacesetter: Partner of profiling runs: plain training, until something clearly faster is known.
        compare_at: Micro-batch of the comparison; ``None`` for that of the last profiling run.
        leader: The pacesetter at its best batch, once it alternated with the baseline; partner of timed runs.
        best_batch: The best micro-batch of the last leader whose batches were timed.
        peaked: Whether a larger one was no better.
        around: Settings that get around what other processes do to plain training; empty if nothing slows it down.
        steady: The baseline with these settings, once it was timed. Whatever would alternate with the baseline then
            alternates with this one: a few of the baseline's own steps would take as long as a whole trial.
    """

    def __init__(
        self,
        *,
        wanted: bool,
        usable_bytes: int,
        second_context_bytes: int,
        around: tuple[MethodSetting, ...] = (),
    ) -> None:
        self._usable_bytes = usable_bytes
        self._second_context_bytes = second_context_bytes
        self.wanted = wanted
        self.baseline: Candidate | None = None
        self.pacesetter = Combination()
        self.compare_at: int | None = None
        self.leader: Candidate | None = None
        self.best_batch: int | None = None
        self.peaked = False
        self.around = around if wanted else ()
        self.steady: Candidate | None = None
        self._compared_with: dict[str, Combination] = {}
        self._rates: dict[str, list[float]] = {}
        self._page_faults: dict[str, list[float]] = {}
        self._before: tuple[Combination, dict[str, Any]] | None = None

    def times(self, leader: Combination) -> None:
        """Remember what is known before a leader is timed, which decides what others are compared with, and where."""
        self._before = leader, {name: getattr(self, name) for name in _OF_LEADERS}

    def withdraw(self, leader: Combination) -> None:
        """Forget what the leader that was timed last has decided: it trains wrongly."""
        if self._before is not None and self._before[0] == leader:
            vars(self).update(self._before[1])

    def beside_profiling_runs(
        self, combination: Combination, first_batch: int, model: MemoryModel | None, sizing: Sizing | None
    ) -> Policy | None:
        """The policy that a combination's profiling runs alternate with; ``None`` without one or room for both."""
        if not self.wanted or combination in (Combination(), self.pacesetter) or model is None:
            return None
        # Memory that it and the baseline hold at the few samples of profiling runs, plus what the other may take.
        samples = max(_SAMPLES_OF_PROFILING_RUNS, self.compare_at or 0)
        need = model.predict(samples)
        held = need
        if self.leader is not None and self.leader.measurement is not None:
            # Until its first turn it is at its own batch.
            held = max(need, self.leader.measurement.memory.peak_bytes)
        if held + 2 * need + self._second_context_bytes > self._usable_bytes:
            return None
        self._compared_with[combination.label] = self.pacesetter
        return Policy(
            methods=self.pacesetter.settings, micro_batch=first_batch, settled={} if sizing is None else sizing.settled
        )

    def compared_with(self, combination: Combination) -> Combination:
        """The combination its profiling runs alternated with; without one, the current pacesetter.

        Plain training's alternate with nothing.
        """
        if combination == Combination():
            return combination
        return self._compared_with.get(combination.label, self.pacesetter)

    def baseline_beside(self, policy: Policy, need_bytes: int) -> Policy | None:
        """The baseline that a policy takes turns with; ``None`` if there is none, or no room for both."""
        baseline = self.baseline
        return None if baseline is None or not self._fits(baseline, policy, need_bytes) else baseline.policy

    def leader_beside(self, policy: Policy, need_bytes: int) -> Candidate | None:
        """The leader that another combination takes turns with; ``None`` if there is none, or no room for both.

        It is loaded already, and the comparison is direct. At a large batch its steps may take so much longer than
        the baseline's that there is time for few of them.
        """
        leader, baseline = self.leader, None if self.baseline is None else self.baseline.measurement
        if leader is None or leader.measurement is None or Combination.of(leader.policy) == Combination.of(policy):
            return None
        if baseline is not None and leader.measurement.step_seconds > _SLOWER_STEP * baseline.step_seconds:
            return None
        return leader if self._fits(leader, policy, need_bytes) else None

    def steady_beside(self, policy: Policy, need_bytes: int) -> Candidate | None:
        """What a policy takes turns with instead of a baseline that other processes slow down, if there is room."""
        return self.steady if self.steady is not None and self._fits(self.steady, policy, need_bytes) else None

    def _fits(self, other: Candidate, policy: Policy, need_bytes: int) -> bool:
        if not self.wanted or other.measurement is None or policy == other.policy:
            return False
        return other.measurement.memory.peak_bytes + self._second_context_bytes + need_bytes <= self._usable_bytes

    def pace(self, outpaced_below: float | None, leader: Candidate | None) -> float | None:
        """Convert the samples per second below which a trial may stop to a speedup over its partner."""
        baseline = None if self.baseline is None else self.baseline.measurement
        if outpaced_below is None or baseline is None:
            return None
        of_leader = 1.0 if leader is None or leader.speedup is None else leader.speedup.value
        return outpaced_below / baseline.samples_per_second / of_leader

    def over_baseline(self, result: TimeResult, leader: Candidate | None) -> TimeResult:
        """Express a timed trial's result in speedups over the baseline and the times that follow from them."""
        baseline = None if self.baseline is None else self.baseline.measurement

        def over(measurement: Measurement | None, speedup: Speedup | None) -> tuple[Measurement | None, Speedup | None]:
            if speedup is not None and leader is not None and leader.speedup is not None:
                speedup = leader.speedup.times(speedup)
            return at_speed_of(baseline, measurement, speedup), speedup

        measurement, speedup = over(result.measurement, result.speedup)
        smaller, smaller_speedup = over(result.smaller, result.smaller_speedup)
        rungs = [(rung, *over(rung.measurement, rung.speedup)) for rung in result.ladder]
        return msgspec.structs.replace(
            result,
            measurement=measurement,
            speedup=speedup,
            smaller=smaller,
            smaller_speedup=smaller_speedup,
            ladder=tuple(msgspec.structs.replace(rung, measurement=one, speedup=own) for rung, one, own in rungs),
        )

    def learn(self, result: ComparedResult) -> None:
        """Remember how fast the training beside a trial was."""
        for pace in result.paces:
            self._rates.setdefault(pace.policy.key, []).append(pace.samples_per_second)
            if pace.page_faults is not None:
                self._page_faults.setdefault(pace.policy.key, []).append(pace.page_faults)

    def rates_of(self, policy: Policy) -> tuple[float, ...]:
        """Samples per second of a policy, one for each trial that it ran beside."""
        return tuple(self._rates.get(policy.key, ()))

    def page_faults_of(self, policy: Policy) -> tuple[float, ...]:
        """Pages that a step of a policy took from the system, one reading for each trial that it ran beside."""
        return tuple(self._page_faults.get(policy.key, ()))


def at_speed_of(
    baseline: Measurement | None, measurement: Measurement | None, speedup: Speedup | None
) -> Measurement | None:
    """Replace a measurement's times by the baseline's, divided by a speedup."""
    if baseline is None or measurement is None or speedup is None:
        return measurement
    samples = measurement.micro_batch * measurement.accumulation_steps
    rate = baseline.samples_per_second
    tokens = measurement.tokens_per_second
    return msgspec.structs.replace(
        measurement,
        step_seconds=samples / (rate * speedup.value),
        step_seconds_low=samples / (rate * speedup.high),
        step_seconds_high=samples / (rate * speedup.low),
        samples_per_second=rate * speedup.value,
        tokens_per_second=None if tokens is None else tokens * rate * speedup.value / measurement.samples_per_second,
    )
