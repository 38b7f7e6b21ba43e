"""Sohoni et al. 2019, "Low-Memory Neural Network Training": how little memory training needs, and what it learns.

    python -m benchmarks.papers.low_memory --size smoke
    python -m benchmarks.papers.low_memory --size paper --device cuda

Two networks take the paper's steps down: 32 bits, then 16 bits with recomputation, small micro-batches and sparse
weights. The tables show memory by category and the actual peak. The paper's value is a calculated sum of the categories
and is compared with both: our sum should match it, and our peak is what training really needs. As in the paper, the
size of sparse weights in a sparse format is calculated; it is a separate value, because the peak of such a row includes
dense tensors and masks. A memory prediction is compared with the peak, like the paper's profiler. The score is measured
on samples that were not trained on, after far fewer steps than in the paper and on other data, which each row names.
Megabytes are millions of bytes. The paper's values appear only with its own networks, not with the small ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from advisor.hardware.hardware import DeviceKind
from advisor.measure.measurement import Measurement, MemoryMeasurement
from advisor.policy.policy import Policy
from advisor.trial.process.runner import Runner
from advisor.trial.result import PredictResult, Result, TimeResult
from advisor.trial.spec import PredictTrial, TimeTrial, Trial
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.lessons import Learned, Learner, Lesson
from benchmarks.papers.low_memory_ladders import LADDERS, SIZES, Ladder, Rung, Size
from benchmarks.papers.runs import WORKLOADS, completed, figure, why
from benchmarks.papers.specs import spec_of
from benchmarks.papers.units import Known, Unit, run_units

__all__ = ["main", "run"]

_R = TypeVar("_R", bound=Result)

_PAPER = "low_memory"
_MB = 1e6

_PEAK = "peak, MB"
"""The column that tells whether a run was measured; peak of live tensors, as in the paper."""
_OFF = "prediction off by, %"
_SPARSE_PEAK = "peak in a sparse format, MB"
_SPARSE_SUM = "sum of these parts in a sparse format, MB"
_FIRST_STEPS = 3

_MEMORY: dict[str, Callable[[MemoryMeasurement], int]] = {
    _PEAK: lambda memory: memory.tensor_peak_bytes,
    "peak of forward and backward, MB": lambda memory: memory.tensor_peak_of_passes_bytes,
    "what the device must have, MB": lambda memory: memory.peak_bytes,
    "parameters, MB": lambda memory: memory.breakdown.parameters,
    "buffers, MB": lambda memory: memory.breakdown.buffers,
    "gradients, MB": lambda memory: memory.breakdown.gradients,
    "optimizer state, MB": lambda memory: memory.breakdown.optimizer_state,
    "activations, MB": lambda memory: memory.breakdown.activations,
}

_PARTS = tuple(f"{part}, MB" for part in ("parameters", "buffers", "gradients", "optimizer state", "activations"))
_SUM, _SUM_RATIO = "sum of these parts, MB", "sum of these parts: times smaller"

_CALCULATED = "the paper's is the sum of the parts, without other buffers of a backward pass"

_FURTHER = "ours are kept from the forward pass, without what is recomputed of one segment at a time"

_SHORT = ("half_weights", "precision")
"""The ladders' methods that compute in 16 bits."""

_EMULATED_FROM = 4.0
"""Slowdown relative to 32 bits, including recomputation, above which 16 bits must be emulated."""

_LESSON_SECONDS = 200.0
"""Time limit of a training."""


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


class _Climb(msgspec.Struct, frozen=True):
    """One ladder in one size on one device."""

    options: Options
    ladder: Ladder
    size: Size

    @property
    def rungs(self) -> list[Rung]:
        """What to run of it."""
        return [one for one in self.ladder.rungs if one.name not in self.size.left_out]

    @property
    def is_the_papers(self) -> bool:
        """Whether the network is the paper's."""
        return not self.size.model

    def policy(self, rung: Rung) -> Policy:
        """The methods."""
        micro = self.size.micro_batch if rung.micro else self.size.batch
        return Policy(methods=rung.settings, micro_batch=micro, accumulation_steps=self.size.batch // micro)

    def trial(self, runner: Runner, kind: type[Trial[_R]], rung: Rung) -> _R:
        """One trial; a repeated run is answered from the runner's folder."""
        workload, size = WORKLOADS / f"{self.ladder.workload}.py", self.size
        spec = spec_of(kind, self.options, workload, self.policy(rung), seconds=size.seconds, model_size=size.model)
        return completed(runner, self.options, spec)

    def lesson(self, rung: Rung) -> Lesson:
        """The lesson."""
        return Lesson(
            workload=self.ladder.workload,
            model_size=self.size.model,
            policy=self.policy(rung),
            device=self.options.hardware.device,
            steps=self.size.steps,
        )

    def first_lesson(self, rung: Rung) -> Lesson:
        """Steps of one micro-batch until the optimizer has its state (16 bits skip some), to see what is stored."""
        policy = msgspec.structs.replace(self.policy(rung), accumulation_steps=1)
        return msgspec.structs.replace(self.lesson(rung), policy=policy, steps=_FIRST_STEPS, scored=False)

    def learned(self, learner: Learner, lesson: Lesson) -> Learned:
        """The result of a lesson.

        Raises:
            TimeIsUpError: The minutes of this call are over.
        """
        self.options.check_time()
        return learner.run(lesson, until=self.options.end)

    def figure(self, rung: Rung, column: str, ours: float | None, theirs: float | None, reason: str) -> Figure:
        """The paper has no values for smaller networks than its own."""
        theirs = theirs if self.is_the_papers else None
        return figure(self.options, _PAPER, self.ladder.table, rung.name, column, ours, theirs=theirs, reason=reason)


def _figures(options: Options) -> Iterator[list[Figure]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Runner(Path(folder)) as runner,
        Learner(options.at_most(_LESSON_SECONDS)) as learner,
    ):
        climbs = [_Climb(options, ladder, SIZES[options.size][ladder.name]) for ladder in LADDERS]
        rungs = [(climb, rung) for climb in climbs for rung in climb.rungs]
        units = [unit for climb, rung in rungs for unit in _needed(climb, rung, runner, learner)]
        # Learning takes much longer than measuring memory.
        units += [_lesson(climb, rung, learner) for climb, rung in rungs if rung.learns]
        yield from run_units(options, _PAPER, units)


def _needed(climb: _Climb, rung: Rung, runner: Runner, learner: Learner) -> list[Unit]:
    """Memory of one rung. Ratios are between runs of one call: plain training is repeated."""

    def unit(column: str, make: Callable[[Known], Iterator[Figure]]) -> Unit:
        return Unit(table=climb.ladder.table, row=rung.name, column=column, make=make)

    def taken(known: Known) -> Iterator[Figure]:
        plain = climb.ladder.rungs[0]
        results = [climb.trial(runner, TimeTrial, one) for one in (rung, plain)]
        figures = list(_taken(climb, rung, *results))
        yield from figures
        yield from _summed(climb, rung, {**known, **{(one.table, one.row, one.column): one for one in figures}})

    def sparse(known: Known) -> Iterator[Figure]:
        return _sparse(climb, rung, climb.learned(learner, climb.first_lesson(rung)), known)

    def predicted(known: Known) -> Iterator[Figure]:
        result, prediction = climb.trial(runner, TimeTrial, rung), climb.trial(runner, PredictTrial, rung)
        yield _predicted(climb, rung, result, prediction)

    units = [unit(_PEAK, taken)]
    if rung.sparse_megabytes is not None:
        units.append(unit(_SPARSE_SUM, sparse))
    if rung.name in climb.size.predicted:
        units.append(unit(_OFF, predicted))
    return units


def _summed(climb: _Climb, rung: Rung, known: Known) -> Iterator[Figure]:
    """The paper's own value: the sum of the measured categories."""
    plain = climb.ladder.rungs[0]
    own, base = (_sum_of(climb, one.name, known) for one in (rung, plain))
    if own is None:
        return  # the line of the peak says why
    yield climb.figure(rung, _SUM, own, rung.megabytes, "")
    if rung is not plain and base is not None:
        yield climb.figure(rung, _SUM_RATIO, base / own, rung.times_smaller, "")


def _sum_of(climb: _Climb, row: str, known: Known) -> float | None:
    parts = [_ours(climb, row, part, known) for part in _PARTS]
    return None if None in parts else sum(part for part in parts if part is not None)


def _ours(climb: _Climb, row: str, column: str, known: Known) -> float | None:
    one = known.get((climb.ladder.table, row, column))
    return None if one is None else one.ours


def _lesson(climb: _Climb, rung: Rung, learner: Learner) -> Unit:
    """Score of one rung."""

    def make(known: Known) -> Iterator[Figure]:
        return _scored(climb, rung, climb.learned(learner, climb.lesson(rung)))

    return Unit(table=climb.ladder.table, row=rung.name, column=climb.ladder.score, make=make)


def _taken(climb: _Climb, rung: Rung, result: TimeResult, plain: TimeResult) -> Iterator[Figure]:
    """The values of one run."""
    own, base = result.measurement, plain.measurement
    emulated = _emulated(climb, rung, own, base)
    for column, count in _MEMORY.items():
        ours = None if own is None else count(own.memory) / _MB
        reason = why(result) or (emulated if column == _PEAK else "")
        yield climb.figure(rung, column, ours, rung.megabytes if column == _PEAK else None, reason)
    if rung is climb.ladder.rungs[0]:
        return
    peak = kept = time = None
    if own is not None and base is not None:
        peak = base.memory.tensor_peak_bytes / own.memory.tensor_peak_bytes
        kept = base.memory.breakdown.activations / own.memory.breakdown.activations
        time = own.step_seconds / base.step_seconds
    reason = why(result, plain)
    calculated = _CALCULATED if rung.times_smaller is not None and climb.is_the_papers else ""
    remarks = "; ".join(filter(None, (calculated, emulated)))
    yield climb.figure(rung, "peak: times smaller", peak, rung.times_smaller, reason or remarks)
    further = _FURTHER if rung.activations_times_smaller is not None and climb.is_the_papers else ""
    yield climb.figure(rung, "activations: times smaller", kept, rung.activations_times_smaller, reason or further)
    of_flops = "the paper's is of FLOPs" if rung.operations is not None and climb.is_the_papers else ""
    yield climb.figure(rung, "step time / plain", time, rung.operations, reason or of_flops or emulated)


def _emulated(climb: _Climb, rung: Rung, own: Measurement | None, base: Measurement | None) -> str:
    """The note on 16 bits on a device that only emulates them, detected from its step times."""
    short = any(setting.name in _SHORT for setting in rung.settings)
    if own is None or base is None or not short or climb.options.hardware.kind is not DeviceKind.CPU:
        return ""
    return climb.ladder.emulated if own.step_seconds > _EMULATED_FROM * base.step_seconds else ""


def _predicted(climb: _Climb, rung: Rung, result: TimeResult, prediction: PredictResult) -> Figure:
    """Relative error of a predicted peak; the paper's value is a bound on its own profiler's."""
    own, predicted = result.measurement, prediction.prediction
    ours, reason = None, why(result)
    theirs = climb.ladder.profiler_within if rung is climb.ladder.rungs[0] else None
    if own is not None and predicted is None:
        reason = f"no prediction: {prediction.reason or prediction.outcome.value}"
    elif own is not None and predicted is not None:
        peak = predicted.peak(climb.policy(rung).micro_batch)
        ours = 100 * abs(peak / own.memory.tensor_peak_bytes - 1)
        reason = f"predicted {peak / _MB:,.4g} MB" + (
            "; the paper's is a bound" if theirs and climb.is_the_papers else ""
        )
    return climb.figure(rung, _OFF, ours, theirs, reason)


def _scored(climb: _Climb, rung: Rung, learned: Learned) -> Iterator[Figure]:
    """The score; if the paper's is of another task, its value is shown in a row of its own."""
    ladder, size = climb.ladder, climb.size
    same = ladder.score == ladder.their_score
    trained = f"on {learned.data}, {size.steps} steps of {size.batch} samples: not the paper's data"
    yield climb.figure(rung, ladder.score, learned.score, rung.score if same else None, learned.reason or trained)
    if not same:
        instead = f"not measured, for nothing is translated here; see {ladder.score}"
        yield climb.figure(rung, ladder.their_score, None, rung.score, instead)


def _sparse(climb: _Climb, rung: Rung, learned: Learned, known: Known) -> Iterator[Figure]:
    """Bytes of sparse weights in a sparse format: calculated, as in the paper."""
    stored = learned.stored
    values, indices = (None, None) if stored is None else (stored.values / _MB, stored.indices / _MB)
    yield climb.figure(rung, "sparse format, values, MB", values, None, learned.reason)
    yield climb.figure(rung, "sparse format, indices, MB", indices, None, learned.reason)
    plain = climb.ladder.rungs[0].name
    of_peak = _ours(climb, rung.name, _PEAK, known), _ours(climb, plain, _PEAK, known)
    of_sum = _sum_of(climb, rung.name, known), _sum_of(climb, plain, known)
    # Masks are not buffers of a module: they are in the peak, and in no category.
    masks = 0 if stored is None else stored.masks
    for column, (dense, base), beside in ((_SPARSE_PEAK, of_peak, masks), (_SPARSE_SUM, of_sum, 0)):
        calculated = times = None
        reason = learned.reason or "the peak was not measured"
        if stored is not None and dense is not None:
            calculated = dense + (stored.values + stored.indices - stored.dense - beside) / _MB
            times = None if base is None else base / calculated
            reason = "calculated: what was measured, with values and indices in the place of dense tensors"
            if column == _SPARSE_PEAK and climb.is_the_papers:
                reason += f"; {_CALCULATED}"
        yield climb.figure(rung, column, calculated, rung.sparse_megabytes, reason)
        smaller = column.replace(", MB", ": times smaller")
        yield climb.figure(rung, smaller, times, rung.sparse_times_smaller, reason)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.low_memory", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
