"""Measures every valid combination of a search space on one workload, and yields the lines of its table."""

from __future__ import annotations

import datetime
import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from advisor.errors import OptionError, WorkloadError
from advisor.hardware.hardware import Hardware
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.search.space.build_space import build_space
from advisor.search.space.space import Combination
from advisor.search.space.space_file import load_space
from advisor.session.setup.limits import memory_budget
from advisor.session.setup.versions import versions
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import Result, TimeResult
from advisor.trial.spec import ProbeTrial, SizeTrial, TimeTrial, Trial
from advisor.workload.facts import Facts
from advisor.workload.workload import WorkloadSource
from benchmarks.search.recordings import Recording
from benchmarks.search.table_lines import Header, Line, Sized, Timed
from benchmarks.search.timed_batches import first_batch, next_batch

__all__ = ["Recorder"]

_R = TypeVar("_R", bound=Result)

_BETWEEN_PLAIN = 8
"""Combinations between two measurements of plain training."""

_FIRST_BATCH = 2
"""First batch of every sizing, as in a session."""

_SIZING_SECONDS = 6.0
"""Most seconds of profiling runs: they stop by themselves once the batch determines the peak."""

_ORDER_SEED = 0
_TIME_LIMIT_SECONDS = 120.0


class Recorder:
    """Records one table.

    Args:
        recording: What to record.
        source: The workload.
        hardware: The device.
        runner: Runs the trials.
        measure_seconds: Seconds of timed steps of each measurement.
        known: Lines of earlier runs.
    """

    def __init__(
        self,
        recording: Recording,
        source: WorkloadSource,
        hardware: Hardware,
        runner: Runner,
        *,
        measure_seconds: float,
        known: Sequence[Line] = (),
    ) -> None:
        self._recording = recording
        self._source = source
        self._hardware = hardware
        self._space = load_space(str(recording.space))
        self._runner = runner
        self._measure_seconds = measure_seconds
        self._usable_bytes = memory_budget(hardware, None).usable_bytes
        self._headers = [line for line in known if isinstance(line, Header)]
        self._complete = {line.combination.label for line in known if isinstance(line, Sized | Timed) and line.last}
        runs = [line.run for line in known if isinstance(line, Timed)]
        self._run_number = 1 + max(runs, default=-1)
        self._references = 0
        self._plain_seconds: float | None = None
        self._begin = time.monotonic()

    def lines(self, count: int | None = None) -> Iterator[Line]:
        """Measure what is missing; yields each line as soon as it is known.

        Args:
            count: Most combinations; ``None`` for all.

        Raises:
            OptionError: The existing lines belong to another table.
            WorkloadError: The workload cannot be probed, or plain training does not fit at the reference batch.
        """
        if self._headers:
            header = self._headers[0]
            if any(getattr(header, name) != value for name, value in self._identity().items()):
                raise OptionError(
                    "A table must be of one workload, space, limit, device and set of versions, but the file holds one "
                    f"of {header.workload} on {header.device} that differs. Give another --output."
                )
        else:
            header = self._header()
            yield header
        combinations = list(header.space.combinations())
        random.Random(_ORDER_SEED).shuffle(combinations)
        missing = [one for one in combinations[:count] if one.label not in self._complete]
        for position, combination in enumerate(missing):
            if position % _BETWEEN_PLAIN == 0:
                yield self._reference()
            yield from self._measured(combination)
        if missing:
            yield self._reference()

    def _header(self) -> Header:
        resolved = build_space(self._space, self._facts(), self._hardware)
        for name, reason in resolved.refused.items():
            raise OptionError(
                f"A table holds every method of its space, but {name} cannot be used here: {reason}. Make it usable, "
                f"or take it out of {self._recording.space.name}."
            )
        return Header.of(resolved, date=datetime.date.today().isoformat(), **self._identity())

    def _identity(self) -> dict[str, Any]:
        """The fields that must not change while a table is recorded."""
        return {
            "workload": self._recording.name,
            "fingerprint": self._source.fingerprint,
            "space_fingerprint": hashlib.sha256(self._space.canonical_text.encode()).hexdigest()[:16],
            "limit_bytes": self._recording.limit_bytes,
            "largest_batch": self._recording.largest_batch,
            "reference_batch": self._recording.reference_batch,
            "device": self._hardware.name,
            "versions": versions(),
        }

    def _facts(self) -> Facts:
        result = self._trial(
            ProbeTrial, (), _FIRST_BATCH, limit_bytes=self._usable_bytes, libraries=self._space.libraries
        )
        if result.facts is None:
            raise WorkloadError(f"{self._recording.name}: {result.reason}", result.traceback_text)
        return result.facts

    def _measured(self, combination: Combination) -> Iterator[Line]:
        """Profiling runs, about half of the batch that they predict, then the largest that fits by that measurement.

        Where the peak moves from the optimizer step to the passes, profiling runs predict too large a batch. The
        measurement at half of it corrects them before a trial is lost; one that is lost anyway bounds the next.
        """
        sized = self._size(combination)
        half = first_batch(sized, self._recording.limit_bytes, self._recording.largest_batch)
        if half == 0:
            yield msgspec.structs.replace(sized, last=True)
            return
        yield sized
        batch, timed = half, list[Timed]()
        while batch > 0:
            line = self._time(combination.settings, batch, settled=sized.settled)
            timed.append(line)
            following = next_batch(sized, timed, self._recording.limit_bytes, self._recording.largest_batch)
            yield msgspec.structs.replace(line, last=following == 0)
            batch = following

    def _size(self, combination: Combination) -> Sized:
        result = self._trial(
            SizeTrial,
            combination.settings,
            _FIRST_BATCH,
            limit_bytes=self._usable_bytes,
            largest_batch=self._recording.largest_batch,
            limit_of_timed_bytes=self._recording.limit_bytes,
        )
        sizing = result.sizing
        return Sized(
            settings=combination.settings,
            outcome=result.outcome.value,
            reason=result.reason,
            points=() if sizing is None else sizing.points,
            out_of_memory_at=None if sizing is None else sizing.out_of_memory_at,
            prediction=result.prediction,
            settled={} if sizing is None else sizing.settled,
            wall_seconds=round(result.wall_seconds, 3),
        )

    def _reference(self) -> Timed:
        """Plain training, measured again."""
        self._references += 1
        line = self._time((), self._recording.reference_batch, repeat=self._references)
        if line.step_seconds is None:
            raise WorkloadError(
                f"Plain training of {self._recording.name} must fit at a batch of {self._recording.reference_batch}, "
                f"but it ended as {line.outcome}: {line.reason}. Raise its limit in benchmarks/search/recordings.py."
            )
        self._plain_seconds = line.step_seconds
        return line

    def _time(
        self, settings: tuple[MethodSetting, ...], batch: int, *, repeat: int = 0, settled: dict[str, str] | None = None
    ) -> Timed:
        moment = time.monotonic() - self._begin
        result = self._trial(
            TimeTrial, settings, batch, limit_bytes=self._recording.limit_bytes, repeat=repeat, settled=settled
        )
        line = Timed(
            settings=settings,
            batch=batch,
            reference=repeat > 0,
            outcome=result.outcome.value,
            reason=result.reason,
            plain_seconds=self._plain_seconds,
            run=self._run_number,
            moment=round(moment, 2),
            wall_seconds=round(result.wall_seconds, 3),
        )
        return line if result.outcome is not Outcome.OK else _with_figures(line, result)

    def _trial(
        self,
        kind: type[Trial[_R]],
        settings: tuple[MethodSetting, ...],
        batch: int,
        *,
        limit_bytes: int,
        settled: dict[str, str] | None = None,
        **asked: Any,
    ) -> _R:
        return self._runner.run(
            kind(
                workload=self._source,
                policy=Policy(methods=settings, micro_batch=batch, settled=settled or {}),
                device=self._hardware.device,
                memory_limit_bytes=limit_bytes,
                measure_seconds=(_SIZING_SECONDS if kind is SizeTrial else self._measure_seconds),
                time_limit_seconds=_TIME_LIMIT_SECONDS,
                **asked,
            )
        )


def _with_figures(line: Timed, result: TimeResult) -> Timed:
    measurement = result.measurement
    assert measurement is not None, "a timed trial that went well has figures"
    plain = measurement.step_seconds if line.reference else line.plain_seconds
    return msgspec.structs.replace(
        line,
        step_seconds=measurement.step_seconds,
        spread=round(measurement.relative_spread, 5),
        peak_bytes=measurement.memory.peak_bytes,
        forward_peak_bytes=measurement.memory.forward_peak_bytes,
        backward_peak_bytes=measurement.memory.backward_peak_bytes,
        optimizer_peak_bytes=measurement.memory.optimizer_peak_bytes,
        plain_seconds=plain,
        ratio=None if plain is None else round(measurement.step_seconds / plain, 5),
    )
