"""Peak memory and step time of one combination of methods against its micro-batch.

The peak moves between the phases of a step when the batch grows, from the optimizer step to the backward pass. A line
through peaks of different phases is far off, so the peak is the maximum of several lines.

Two profiling runs traced allocation by allocation (on a CPU) give all lines, if the traces differ in sizes alone
(:mod:`advisor.predict.trace.envelope`). What the largest profiling run took beyond them is added.

Elsewhere the lines go through the peaks of the profiling runs, one per phase. Within the passes the peak also moves
(from the end of the backward pass to its start), always to a steeper line: the two *largest* points decide, if possible
two past the regime in which the optimizer step is the peak. No line is flatter than what a sample's activations add.

Those lines are of live bytes. What the allocator holds beyond them fits no line: the largest point has its measured
value, which grows with the live bytes by the smallest share that any point showed. The margin covers the rest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import msgspec

from advisor.measure.measurement import SizePoint, Sizing
from advisor.predict.prediction import Affine, MemoryPrediction
from advisor.search.sizing.line import Line
from advisor.workload.batch_layout import ANY_SIZE, BatchLayout

__all__ = ["DEFAULT_MARGIN", "FEW", "LARGEST_BATCH", "MemoryModel", "round_batch"]

DEFAULT_MARGIN = 0.05
"""Share of the limit that stays free: fragmentation and workspace vary between runs."""

FEW = 4
"""Below so many samples, one more may be a third of the throughput, or the difference between one and none: it is tried
although it would leave less than the margin free. A trial that runs out of memory takes little time."""

_MOST_SPEED_UP = 2.0
"""Largest assumed gain in throughput beyond the largest batch that was run, when a batch must end in time: two short
steps on a busy machine may show no growth, and a line through them would promise any batch."""

_MARGIN_STEP = 0.05
_LARGEST_MARGIN = 0.3

_DIGITS = 4
"""Binary digits of a rounded batch."""

_LEAST_FIXED, _LEAST_PER_SAMPLE = 1e-3, 1e-5
"""Smallest shares of a limit that are told: what is taken whatever the batch, and by each sample."""

_OVER = 1.02
"""Share of the limit that a batch which ran out of memory is taken to need."""

LARGEST_BATCH = 65536
"""Largest batch to propose, whatever a flat line promises."""


class MemoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and time of one combination, learned from profiling runs.

    Attributes:
        lines: Bytes against the micro-batch at each moment that may be the peak; their maximum is the peak.
        time: Seconds of one optimizer step with one micro-batch, against that micro-batch.
        offset_bytes: Added to every prediction; learned from measured trials.
        calibrated_at: Micro-batch of the trial that the offset comes from, 0 without.
        margin: Share of a limit that stays free.
        out_of_memory_at: The smallest micro-batch known not to fit, if any.
        fits_at: The largest micro-batch that was really run.
        timed_at: The largest micro-batch whose step was timed, 0 without.
        timed_seconds: Seconds of that step, for one micro-batch.
        most_samples: The largest micro-batch that the data can fill, if it is limited.
        layout: How many samples a batch may have.
    """

    lines: tuple[Line, ...]
    time: Line
    offset_bytes: float = 0.0
    calibrated_at: int = 0
    margin: float = DEFAULT_MARGIN
    out_of_memory_at: int | None = None
    fits_at: int = 0
    timed_at: int = 0
    timed_seconds: float = 0.0
    most_samples: int | None = None
    layout: BatchLayout = ANY_SIZE

    @classmethod
    def fit(cls, sizing: Sizing, prediction: MemoryPrediction | None = None, *, passes: int = 1) -> MemoryModel:
        """Fit the lines to profiling runs, or to their prediction allocation by allocation, if there is one.

        With a single point (the second did not fit), parameters, buffers and optimizer state are the fixed part. That
        makes the slope too steep rather than too flat.

        Args:
            sizing: The profiling runs.
            prediction: Their prediction.
            passes: Micro-batches of each of their steps.
        """
        points = [msgspec.structs.replace(one, step_seconds=one.step_seconds / passes) for one in sizing.points]
        points.sort(key=lambda point: point.micro_batch)
        assert points, "a memory model needs a measured point; a combination without one does not fit at all"
        last = points[-1]
        past = [point for point in points if not point.memory.optimizer_is_peak]
        used = (past if len(past) >= 2 else points)[-2:]
        if len(used) == 1:
            lines, time = _lines_from_one(used[0])
        else:
            first, second = used
            lines = (
                _no_flatter_than_activations(first, second, _forward_peak),
                _no_flatter_than_activations(first, second, _backward_peak),
                _line(first, second, _optimizer_peak),
            )
            time = _time_of(first, second)
        if prediction is not None:
            used, lines = points, tuple(_rising(moment.live) for moment in prediction.moments)
        model = cls(
            lines=tuple(_with_held_back(line, used) for line in lines),
            time=time,
            out_of_memory_at=sizing.out_of_memory_at,
            fits_at=last.micro_batch,
            timed_at=last.micro_batch,
            timed_seconds=last.step_seconds,
        )
        if prediction is None:
            return model
        # What the runs took that a prediction does not see.
        offset = last.memory.peak_bytes - model._highest(last.micro_batch)
        return msgspec.structs.replace(model, offset_bytes=offset, calibrated_at=last.micro_batch)

    def predict(self, micro_batch: int) -> int:
        """Peak bytes at a micro-batch: a prediction, never to be shown as measured."""
        return math.ceil(self._highest(micro_batch) + self.offset_bytes)

    def _highest(self, micro_batch: int) -> float:
        return max(line.at(micro_batch) for line in self.lines)

    def seconds(self, micro_batch: int, accumulation_steps: int = 1) -> float:
        """Seconds of one optimizer step, taking every micro-batch to cost as much as the first."""
        return self.time.at(micro_batch) * accumulation_steps

    def largest_batch(self, limit_bytes: int, margin: float | None = None, *, rounded: bool = True) -> int:
        """The largest micro-batch that is predicted to stay below a limit, and that the data makes; 0 if none is.

        Where the margin leaves few samples, one more is counted if it is predicted to fit without a margin.

        Args:
            limit_bytes: The memory limit.
            margin: Share of it that stays free; the model's own if ``None``.
            rounded: Whether to round down to the multiples of :func:`round_batch`.
        """
        largest = self._reach(limit_bytes * (1 - (self.margin if margin is None else margin)))
        if largest < FEW:
            largest = min(largest + 1, self._reach(limit_bytes))
        if self.out_of_memory_at is not None:
            largest = min(largest, self.out_of_memory_at - 1)
        if self.most_samples is not None:
            largest = min(largest, self.most_samples)
        return round_batch(largest, self.layout) if rounded else self.layout.fitted(largest)

    def _reach(self, usable_bytes: float) -> int:
        reach = min(float(LARGEST_BATCH), *(line.reaches(usable_bytes - self.offset_bytes) for line in self.lines))
        return math.floor(reach) if reach >= 1 else 0

    def shares(self, limit_bytes: int) -> tuple[float, float]:
        """What the largest batch takes, as shares of a limit: what does not depend on the batch, and each sample.

        Both are above zero. They are of the line that is the peak there; where nothing fits, of the one that is the
        peak of a single sample. Together they exceed the limit at a batch that ran out of memory.
        """
        batch, limit_bytes = max(1, self.largest_batch(limit_bytes, rounded=False)), max(1, limit_bytes)
        line = max(self.lines, key=lambda one: one.at(batch))
        need = max(line.at(batch) + self.offset_bytes, 0.0) / limit_bytes
        slope = (line.slope if line.slope > 0 else max(one.slope for one in self.lines)) / limit_bytes
        fixed = max(need - slope * batch, _LEAST_FIXED)
        per_sample = max((need - fixed) / batch, _LEAST_PER_SAMPLE)
        if self.out_of_memory_at is not None:
            more = max(1.0, _OVER / (fixed + per_sample * self.out_of_memory_at))
            fixed, per_sample = fixed * more, per_sample * more
        return fixed, per_sample

    def largest_within_seconds(self, seconds: float) -> int:
        """The largest micro-batch whose step is predicted to take at most ``seconds``; at least 1."""
        reach = min(self.time.reaches(seconds), float(LARGEST_BATCH))
        if self.timed_seconds > 0:
            reach = min(reach, _MOST_SPEED_UP * self.timed_at * seconds / self.timed_seconds)
        return max(1, math.floor(reach))

    def calibrated(self, micro_batch: int, peak_bytes: int) -> MemoryModel:
        """Correct the model by a measured trial.

        The correction is added, not multiplied: what a real device holds beyond the model (context, workspace,
        fragmentation) hardly grows with the batch. The trial at the largest batch decides, because that is where
        the limit is met; a smaller one counts only when it shows that more is needed.
        """
        offset = peak_bytes - self._highest(micro_batch)
        fits_at = max(self.fits_at, micro_batch)
        if micro_batch < self.calibrated_at and offset <= self.offset_bytes:
            return msgspec.structs.replace(self, fits_at=fits_at)
        return msgspec.structs.replace(
            self, offset_bytes=offset, calibrated_at=max(micro_batch, self.calibrated_at), fits_at=fits_at
        )

    def timed(self, micro_batch: int, accumulation_steps: int, step_seconds: float) -> MemoryModel:
        """Correct the line of time by a measured step, which it then goes through.

        Profiling runs at small batches say little about a batch many times as large: the first trial there decides, and
        only the fixed part of the line is kept. A trial at a similar batch says nothing new about the growth: the whole
        line is scaled.
        """
        measured = step_seconds / accumulation_steps
        if micro_batch >= 2 * self.timed_at:
            fixed = min(max(0.0, self.time.at(0)), measured)
            time = Line.through((0, fixed), (micro_batch, measured))
        else:
            factor = measured / self.time.at(micro_batch) if self.time.at(micro_batch) > 0 else 1.0
            time = Line(self.time.intercept * factor, self.time.slope * factor)
        if micro_batch < self.timed_at:
            return msgspec.structs.replace(self, time=time)
        return msgspec.structs.replace(self, time=time, timed_at=micro_batch, timed_seconds=measured)

    def after_out_of_memory(self, micro_batch: int) -> MemoryModel:
        """Rule out this micro-batch and larger ones after a trial that did not fit, and widen the margin."""
        bound = micro_batch if self.out_of_memory_at is None else min(micro_batch, self.out_of_memory_at)
        return msgspec.structs.replace(
            self, out_of_memory_at=bound, margin=min(_LARGEST_MARGIN, self.margin + _MARGIN_STEP)
        )


def round_batch(batch: int, layout: BatchLayout = ANY_SIZE) -> int:
    """Round down to a size that kernels like, by less than an eighth: four binary digits are kept.

    That is a multiple of 8 from 64 on, of 4 from 32 on and of 2 from 16 on; where batches have a multiple of so many
    samples, the largest of these up to it. 0 if a batch cannot have so few.

    Example:
        >>> [round_batch(batch) for batch in (3, 15, 17, 23, 35, 63, 71, 255)]
        [3, 15, 16, 22, 32, 60, 64, 240]
    """
    step = 1 << max(0, batch.bit_length() - _DIGITS)
    rounded, most = layout.fitted(batch // step * step), layout.fitted(batch)
    return rounded if 8 * rounded > 7 * most else most


def _rising(live: Affine) -> Line:
    """A moment's line; one that falls with the batch is no higher than at a single sample."""
    return Line(live.fixed, live.per_sample) if live.per_sample >= 0 else Line(live.at(1), 0.0)


def _held_back(point: SizePoint) -> int:
    """Bytes that count against the limit beyond live tensors: on CUDA, reserved but unused by the allocator."""
    return max(0, point.memory.peak_bytes - point.memory.peak_allocated_bytes)


def _with_held_back(line: Line, points: Sequence[SizePoint]) -> Line:
    """Convert a line of live bytes to one of bytes that count against the limit."""
    last = points[-1]
    share = min(_held_back(point) / max(1, point.memory.peak_allocated_bytes) for point in points)
    slope = line.slope * (1 + share)
    return Line(line.at(last.micro_batch) + _held_back(last) - slope * last.micro_batch, slope)


_forward_peak = operator.attrgetter("memory.forward_peak_bytes")
_backward_peak = operator.attrgetter("memory.backward_peak_bytes")
_optimizer_peak = operator.attrgetter("memory.optimizer_peak_bytes")


def _line(first: SizePoint, second: SizePoint, of: Callable[[SizePoint], float]) -> Line:
    return Line.through((first.micro_batch, of(first)), (second.micro_batch, of(second)))


def _time_of(first: SizePoint, second: SizePoint) -> Line:
    """Line through both points; through the second alone if a disturbed first one gives a negative intercept."""
    line = _line(first, second, lambda point: point.step_seconds)
    return line if line.intercept >= 0 else Line(0.0, second.step_seconds / second.micro_batch)


def _no_flatter_than_activations(first: SizePoint, second: SizePoint, of: Callable[[SizePoint], float]) -> Line:
    """The line of a pass, or a steeper one through its second point: every sample adds at least its activations.

    When profiling runs had to stop before the batch set the peak, one of the points may lie in the flat regime where
    gradients do; a line through it would promise batches that do not fit. The forward pass may be past that regime
    while the backward pass is not, and grow faster than what it keeps, so each has its own line.
    """
    line = _line(first, second, of)
    grown = second.memory.breakdown.activations - first.memory.breakdown.activations
    slope = grown / (second.micro_batch - first.micro_batch)
    if slope <= line.slope:
        return line
    return Line(of(second) - slope * second.micro_batch, slope)


def _lines_from_one(point: SizePoint) -> tuple[tuple[Line, ...], Line]:
    """Lines of memory, and that of time."""
    breakdown = point.memory.breakdown
    fixed = float(breakdown.parameters + breakdown.buffers + breakdown.optimizer_state)
    passes = max(_forward_peak(point), _backward_peak(point))
    slope = max(0.0, passes - fixed) / point.micro_batch
    # Time through the origin: a single point cannot separate the fixed part of a step from the growing one.
    lines = Line(passes - slope * point.micro_batch, slope), Line(_optimizer_peak(point), 0.0)
    return lines, Line(0.0, point.step_seconds / point.micro_batch)
