"""A recorded table as a problem with known answers."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.errors import OptionError
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.trial.outcome import Outcome
from benchmarks.search.curve import Curve, PeakCurve
from benchmarks.search.drift import Drift
from benchmarks.search.problem import Trial, with_noise
from benchmarks.search.table_lines import Header, Line, Paired, Sized, Timed, read

__all__ = ["Estimate", "Table"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a combination at a batch.

    Attributes:
        combination: The methods.
        batch: Samples per step.
        rate: Samples per second.
        error: Relative standard error.
    """

    combination: Combination
    batch: int
    rate: float
    error: float


class Table:
    """A recording with the machine's drift divided out, interpolated between the recorded batches.

    Time and the peaks of the three phases are each interpolated linearly between recorded batches. A batch runs if its
    peak is below the limit; a recorded batch that failed is an upper bound. If a batch was timed in turn with plain
    training, that time counts.

    Args:
        lines: The lines of the table.
        forecasts: Label of a combination -> its memory forecast before a trial; by default from the recorded profiling
            runs, as in a session.
        noise: Relative standard deviation of one measurement; by default from the repetitions of plain training.

    Raises:
        OptionError: It is not a table, or combinations are missing from it.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        forecasts: Mapping[str, MemoryModel] | None = None,
        *,
        noise: float | None = None,
    ) -> None:
        headers = [line for line in lines if isinstance(line, Header)]
        if not headers:
            raise OptionError("A table must begin with its search space, but there is no such line.")
        self.header = headers[0]
        self._forecasts = dict(forecasts or {})
        self.space: ResolvedSpace = self.header.space
        self.drift = Drift([line for line in lines if isinstance(line, Timed) and line.reference])
        self.noise = self.drift.noise if noise is None else noise
        """Relative standard deviation of one measurement."""
        paired: dict[str, list[Paired]] = {}
        for line in lines:
            if isinstance(line, Paired):
                paired.setdefault(line.combination.label, []).append(line)
        self._recorded = {
            line.combination.label: _Recorded(
                line,
                [
                    one
                    for one in lines
                    if isinstance(one, Timed) and not one.reference and one.settings == line.settings
                ],
                self.drift,
                self.header.limit_bytes,
                paired.get(line.combination.label, ()),
            )
            for line in lines
            if isinstance(line, Sized)
        }
        missing = [one for one in self.space.combinations() if one.label not in self._recorded]
        if missing:
            raise OptionError(
                f"A table must hold every combination of its space, but {len(missing)} of {self.space.count} are "
                f"missing from {self.name}. Record on: python -m benchmarks.search.record."
            )
        if not any(recorded.rates for recorded in self._recorded.values()):
            raise OptionError(f"A table must hold a combination that ran, but in {self.name} none did.")

    @classmethod
    def read(cls, path: Path, *, noise: float | None = None) -> Table:
        """The table in a file.

        Args:
            path: The file.
            noise: Noise of one measurement; by default as recorded.

        Raises:
            OptionError: The file is missing or incomplete.
        """
        return cls(read(path), noise=noise)

    @property
    def name(self) -> str:
        """The workload."""
        return self.header.workload

    @property
    def limit_bytes(self) -> int:
        """The memory limit of the recording."""
        return self.header.limit_bytes

    @property
    def largest_batch(self) -> int:
        """The largest recorded batch."""
        return self.header.largest_batch

    @property
    def policies(self) -> int:
        """Number of policies (a combination at one batch) that ran and were timed."""
        return sum(len(recorded.rates) for recorded in self._recorded.values())

    @property
    def best(self) -> tuple[str, int, float]:
        """Label, batch and samples per second of the best recorded one."""
        return max(
            ((label, batch, rate) for label, one in self._recorded.items() for batch, rate in one.rates.items()),
            key=lambda found: found[2],
        )

    @property
    def best_rate(self) -> float:
        """Samples per second of the best recorded one."""
        return self.best[2]

    @property
    def estimates(self) -> dict[tuple[str, int], Estimate]:
        """Label and batch of everything that ran -> its speed and standard error."""
        return {
            (label, batch): Estimate(
                combination=one.combination,
                batch=batch,
                rate=rate,
                error=one.errors.get(batch, self.drift.noise),
            )
            for label, one in self._recorded.items()
            for batch, rate in one.rates.items()
        }

    def outcome(self, combination: Combination, batch: int) -> Outcome:
        """The outcome of a trial."""
        assert 1 <= batch <= self.largest_batch, f"a batch from 1 to {self.largest_batch}, got {batch}"
        return self._recorded[combination.label].outcome(batch)

    def seconds(self, combination: Combination, batch: int) -> float:
        """Step time without noise."""
        return self._recorded[combination.label].seconds(batch)

    def peak_bytes(self, combination: Combination, batch: int) -> int:
        """Peak memory of a step."""
        return self._recorded[combination.label].peak_bytes(batch)

    def rate(self, combination: Combination, batch: int) -> float:
        """Samples per second without noise; 0 if it does not run."""
        if self.outcome(combination, batch) is not Outcome.OK:
            return 0.0
        return batch / self.seconds(combination, batch)

    def run(self, combination: Combination, batch: int, generator: random.Random) -> Trial:
        """One trial, with as much noise as the recording had."""
        outcome = self.outcome(combination, batch)
        if outcome is not Outcome.OK:
            return Trial(combination=combination, batch=batch, outcome=outcome)
        return Trial(
            combination=combination,
            batch=batch,
            outcome=outcome,
            seconds=with_noise(self.seconds(combination, batch), self.noise, generator),
            peak_bytes=self.peak_bytes(combination, batch),
        )

    def forecast(self, combination: Combination) -> MemoryModel | None:
        """The memory forecast of a combination before a trial; ``None`` if it does not run at all."""
        return self._forecasts.get(combination.label) or self._recorded[combination.label].forecast


class _Recorded:
    """One combination."""

    def __init__(
        self, sized: Sized, timed: Sequence[Timed], drift: Drift, limit_bytes: int, paired: Sequence[Paired]
    ) -> None:
        self.combination = sized.combination
        self.errors: dict[int, float] = {}
        ran = [line for line in timed if line.step_seconds is not None]
        self._limit_bytes = limit_bytes
        self._failed = _failure(sized, timed) if not ran else None
        self._ran_at = max((line.batch for line in ran), default=0)
        self._lost = min(((line.batch, line.outcome) for line in timed if line.step_seconds is None), default=None)
        self.forecast = sized.forecast
        self.rates: dict[int, float] = {}
        if not ran:
            return
        seconds = {
            line.batch: line.step_seconds / drift.factor(line.run, line.moment)
            for line in ran
            if line.step_seconds is not None
        }
        for batch in {line.batch for line in paired} & seconds.keys():
            ratio, self.errors[batch] = _combined([line for line in paired if line.batch == batch])
            seconds[batch] = ratio * drift.middle_seconds
        self.rates = {batch: batch / taken for batch, taken in seconds.items()}
        self._seconds = Curve(seconds.items())
        self._peak = PeakCurve(sized, ran)

    def outcome(self, batch: int) -> Outcome:
        if self._failed is not None:
            return self._failed
        if batch <= self._ran_at:
            return Outcome.OK
        if self._lost is not None and batch >= self._lost[0]:
            return Outcome(self._lost[1])
        return Outcome.OUT_OF_MEMORY if self.peak_bytes(batch) > self._limit_bytes else Outcome.OK

    def seconds(self, batch: int) -> float:
        return self._seconds.at(batch)

    def peak_bytes(self, batch: int) -> int:
        return self._peak.at(batch)


def _combined(paired: Sequence[Paired]) -> tuple[float, float]:
    """The ratio and its relative standard error: lines are weighted by their precision."""
    weights = [line.error**-2 for line in paired]
    mean = sum(weight * math.log(line.ratio) for weight, line in zip(weights, paired, strict=True)) / sum(weights)
    return math.exp(mean), sum(weights) ** -0.5


def _failure(sized: Sized, timed: Sequence[Timed]) -> Outcome:
    """Why no batch of a combination ran."""
    ended = [Outcome(line.outcome) for line in timed] or [Outcome(sized.outcome)]
    # The profiling runs succeeded but predict no batch below the limit: not even one sample fits.
    return Outcome.OUT_OF_MEMORY if ended[0] is Outcome.OK else ended[0]
