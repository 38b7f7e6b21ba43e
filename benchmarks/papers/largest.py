"""The largest batch that trains under a memory limit, and the throughput there and at fractions of it.

Profiling runs and a memory model predict the batch, as in a session (with its margin); a run at that batch must then
succeed. Only batches that ran are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.measure.measurement import Measurement
from advisor.methods.compose import judge
from advisor.methods.setting import MethodSetting
from advisor.search.sizing.batching import choose_batch, does_not_fit
from advisor.search.sizing.memory_model import MemoryModel, round_batch
from advisor.text.units import format_bytes
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import Result, TimeResult
from advisor.trial.spec import SizeTrial, TimeTrial, Trial
from advisor.workload.source import resolve_source
from benchmarks.papers.command import Options
from benchmarks.papers.runs import completed, why
from benchmarks.papers.specs import policy_of

__all__ = ["Largest", "Search", "refusal"]

_R = TypeVar("_R", bound=Result)

_FIRST_BATCH = 2
"""First batch of the profiling runs, as in a session."""

_MOST_TRIED = 3
"""Most batches to try as the largest, including those that do not fit."""

_WORTHWHILE = 1.1
"""A run shows the remaining memory; another is made if the batch can grow by this factor."""

_LIMIT_SECONDS = 120.0


class Largest(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one combination of methods.

    Attributes:
        runs: Batch -> measurement; empty if nothing ran.
        reason: Why nothing ran, or what limited the batch besides memory.
    """

    runs: dict[int, Measurement]
    reason: str = ""

    @property
    def batch(self) -> int | None:
        """The largest batch that ran."""
        return max(self.runs, default=None)

    @property
    def fastest(self) -> float | None:
        """The highest throughput over all batches, in samples per second."""
        return max((one.samples_per_second for one in self.runs.values()), default=None)

    def rate(self, divisor: int) -> float | None:
        """Samples per second at a fraction of the largest batch; ``None`` if that was not run."""
        batch = self.batch and _part(self.batch, divisor)
        return self.runs[batch].samples_per_second if batch in self.runs else None


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """How to look for the largest batch.

    Attributes:
        limit_bytes: The memory limit.
        seconds: Most seconds of timed steps at each batch.
        longest_step_seconds: Batches whose step is expected to take longer are not tried.
        divisors: Fractions of the largest batch to time: 1 for itself, then 2 for a half, which is timed in the same
            process, and further ones in pairs.
    """

    limit_bytes: int
    seconds: float
    longest_step_seconds: float
    divisors: Sequence[int] = (1, 2)

    def run(
        self,
        runner: Runner,
        options: Options,
        workload: Path | str,
        settings: Sequence[MethodSetting],
        model_size: Mapping[str, int | float],
    ) -> Largest:
        """Find the largest batch of a combination.

        Args:
            runner: Runs the trials.
            options: Options of the command.
            workload: A model file.
            settings: The methods.
            model_size: Arguments of the model file's functions.
        """
        reason = refusal(options, settings)
        if reason:
            return Largest(runs={}, reason=reason)
        one = _Combination(self, runner, options, workload, tuple(settings), dict(model_size))
        model, reason = one.sized()
        if model is None:
            return Largest(runs={}, reason=reason)
        runs, reason = one.climbed(model)
        largest = Largest(runs=runs, reason=reason)
        if largest.batch is None:
            return largest
        for more, less in zip(self.divisors[2::2], self.divisors[3::2], strict=True):
            batch, smaller = _part(largest.batch, more), _part(largest.batch, less)
            if batch not in runs:
                one.time(batch, smaller, runs)
        return msgspec.structs.replace(largest, runs=runs)


def refusal(options: Options, settings: Sequence[MethodSetting]) -> str:
    """Why these methods cannot run on this device or not together, without starting a process; empty if they can."""
    verdict = judge(settings, facts=None, hardware=options.hardware)
    return "" if verdict.applicable else f"{Outcome.REFUSED.value}: {verdict.reason}"


class _Combination:
    """The trials of one combination at one size of the model."""

    def __init__(
        self,
        search: Search,
        runner: Runner,
        options: Options,
        workload: Path | str,
        settings: tuple[MethodSetting, ...],
        model_size: dict[str, int | float],
    ) -> None:
        self._search = search
        self._runner = runner
        self._options = options
        self._source = resolve_source(workload)
        self._settings = settings
        self._model_size = model_size
        self._settled: dict[str, str] = {}

    def sized(self) -> tuple[MemoryModel | None, str]:
        """Memory and time at every batch according to the profiling runs, or why there are none."""
        result = self._trial(SizeTrial, _FIRST_BATCH, limit_of_timed_bytes=self._search.limit_bytes)
        if result.outcome is Outcome.OUT_OF_MEMORY:
            # The reason why the first batch did not run; a single sample may fail for others (BatchNorm needs two).
            one = self._trial(SizeTrial, 1, largest_batch=1, limit_of_timed_bytes=self._search.limit_bytes)
            result = one if one.sizing is not None else result
        if result.sizing is None:
            return None, why(result)
        self._settled = result.sizing.settled
        return MemoryModel.fit(result.sizing, result.prediction), ""

    def climbed(self, model: MemoryModel) -> tuple[dict[int, Measurement], str]:
        """Run the predicted batch, and a second one if the runs allow a better prediction."""
        limit = self._search.limit_bytes
        runs: dict[int, Measurement] = {}
        reason = ""
        for _ in range(_MOST_TRIED):
            fits = model.largest_batch(limit)
            batch = min(fits, round_batch(model.largest_within_seconds(self._search.longest_step_seconds)))
            if batch < 1 and not runs:
                return runs, f"{Outcome.OUT_OF_MEMORY.value}: " + does_not_fit(
                    need_bytes=model.predict(1), limit_bytes=limit
                )
            if batch <= _WORTHWHILE * max(runs, default=0):
                break
            reason = f"kept below {self._search.longest_step_seconds:g} s per step" if batch < fits else ""
            smaller = _part(batch, self._search.divisors[1]) if len(self._search.divisors) > 1 else batch
            result = self.time(batch, smaller, runs)
            if result.measurement is not None:
                model = model.calibrated(batch, result.measurement.memory.peak_bytes)
                model = model.timed(batch, 1, result.measurement.step_seconds)
            elif result.outcome is Outcome.OUT_OF_MEMORY:
                model = model.after_out_of_memory(batch)
            if result.outcome not in (Outcome.OK, Outcome.OUT_OF_MEMORY):
                return runs, why(result)
        if not runs:
            reason = f"{Outcome.OUT_OF_MEMORY.value}: {_MOST_TRIED} batches did not fit below {format_bytes(limit)}"
        return runs, reason

    def time(self, batch: int, smaller: int, runs: dict[int, Measurement]) -> TimeResult:
        """Time a batch, and a smaller one in the same process; successful runs are added to ``runs``."""
        result = self._trial(
            TimeTrial,
            batch,
            smaller=policy_of(self._settings, smaller, self._settled) if smaller < batch else None,
        )
        for one in (result.measurement, result.smaller):
            if one is not None:
                runs[one.micro_batch] = one
        return result

    def _trial(self, kind: type[Trial[_R]], batch: int, **asked: Any) -> _R:
        return completed(
            self._runner,
            self._options,
            kind(
                workload=self._source,
                model_size=self._model_size,
                policy=policy_of(self._settings, batch, self._settled),
                device=self._options.hardware.device,
                memory_limit_bytes=self._search.limit_bytes,
                measure_seconds=self._search.seconds,
                time_limit_seconds=self._options.at_most(_LIMIT_SECONDS),
                **asked,
            ),
        )


def _part(batch: int, divisor: int) -> int:
    chosen = choose_batch(largest=batch, fraction=1 / divisor)
    assert chosen is not None, "a batch that ran has at least one sample"
    return chosen.micro_batch
