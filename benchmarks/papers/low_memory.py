"""Sohoni et al. 2019, "Low-Memory Neural Network Training": how little memory a training needs, and what it still learns.

    python -m benchmarks.papers.low_memory --size smoke
    python -m benchmarks.papers.low_memory --size paper --device cuda

Two networks climb down the paper's ladder: 32 bit, then 16 bit with recomputation, small micro-batches and sparse
weights. Memory stands by category beside the real peak; the paper's is a sum of calculated parts. What sparse weights
would take in a sparse format is calculated, here as there, and stands apart: the peak of such a row is that of dense
tensors and masks. A memory prediction is held against the peak as the paper's profiler is. What is learned is the
score of samples that were not trained on, after far fewer steps and not on the paper's data: each row says on what.
Megabytes are millions of bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.policy.policy import Policy
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialKind, TrialResult
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.learning import Learned, Learner, Lesson
from benchmarks.papers.low_memory_ladders import LADDERS, SIZES, Ladder, Rung, Size
from benchmarks.papers.runs import WORKLOADS, figure, why
from benchmarks.papers.specs import spec_of

__all__ = ["main", "run"]

_PAPER = "low_memory"
_MB = 1e6

_PEAK = "peak, MB"
"""The column that says whether a run has its figures; of live tensors, as the paper's."""

_OFF = "prediction off by, %"
_NOT_BY_IT = "not the paper's data"


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[Figure]:
    for ladder in LADDERS:
        size = SIZES[options.size][ladder.name]
        known = {(one.row, one.column): one for one in options.known(_PAPER) if one.table == ladder.table}
        known = {place: one for place, one in known.items() if one.ours is not None}
        with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
            for one in _memory(runner, options, ladder, size, known):
                known[one.row, one.column] = one
                yield one
        with Learner(size.learning_seconds) as learner:
            for rung in ladder.rungs:
                if rung.learns and (rung.name, ladder.score) not in known:
                    lesson = Lesson(
                        workload=ladder.workload,
                        model_size=size.model,
                        policy=_policy(rung, size),
                        device=options.hardware.device,
                        steps=size.steps,
                    )
                    peak = known.get((rung.name, _PEAK))
                    base = known.get((ladder.rungs[0].name, _PEAK))
                    yield from _learned(options, ladder, rung, size, learner.run(lesson), peak, base)


def _memory(
    runner: Runner, options: Options, ladder: Ladder, size: Size, known: dict[tuple[str, str], Figure]
) -> Iterator[Figure]:
    """What every rung takes, against the first one in the same run; and how near a prediction comes."""
    plain: TrialResult | None = None
    for rung in ladder.rungs:
        missing = (rung.name, _PEAK) not in known
        unpredicted = rung.predicted and (rung.name, _OFF) not in known
        if not missing and not unpredicted:
            continue
        # The prediction is held against a peak of the same run, too.
        result = _trial(TrialKind.TIME, runner, options, ladder, size, rung)
        if missing:
            plain = plain or _trial(TrialKind.TIME, runner, options, ladder, size, ladder.rungs[0])
            yield from _taken(options, ladder, rung, result, plain)
        if unpredicted:
            prediction = _trial(TrialKind.PREDICT, runner, options, ladder, size, rung)
            yield _predicted(options, ladder, rung, _policy(rung, size).micro_batch, result, prediction)


def _trial(
    kind: TrialKind, runner: Runner, options: Options, ladder: Ladder, size: Size, rung: Rung
) -> TrialResult:
    workload = WORKLOADS / f"{ladder.workload}.py"
    policy = _policy(rung, size)
    # A second call for the same trial is answered from the runner's folder.
    return runner.run(spec_of(kind, options, workload, policy, seconds=size.seconds, model_size=size.model))


def _policy(rung: Rung, size: Size) -> Policy:
    micro = size.micro_batch if rung.micro else size.batch
    return Policy(methods=rung.uses, micro_batch=micro, accumulation_steps=size.batch // micro)


def _taken(
    options: Options, ladder: Ladder, rung: Rung, result: TrialResult, plain: TrialResult
) -> Iterator[Figure]:
    """The figures of one run."""
    own, base = result.measurement, plain.measurement
    columns: dict[str, tuple[float | None, float | None]] = {
        _PEAK: (rung.megabytes, own and own.memory.peak_allocated_bytes / _MB),
        "peak that the device must have, MB": (None, own and own.memory.peak_bytes / _MB),
    }
    for part in ("parameters", "buffers", "gradients", "optimizer_state", "activations"):
        columns[f"{part.replace('_', ' ')}, MB"] = (None, own and getattr(own.memory.breakdown, part) / _MB)
    if rung is not ladder.rungs[0]:
        columns |= {
            "peak: times smaller": (
                rung.times_smaller,
                own and base and base.memory.peak_allocated_bytes / own.memory.peak_allocated_bytes,
            ),
            "activations: times smaller": (
                rung.activations_times_smaller,
                # Whatever keeps nothing at all is no ratio.
                own and base and base.memory.breakdown.activations / max(1, own.memory.breakdown.activations),
            ),
            "step time / plain": (rung.operations, own and base and own.step_seconds / base.step_seconds),
        }
    for column, (theirs, ours) in columns.items():
        reason = why(result, plain)
        if column == "step time / plain" and theirs is not None and not reason:
            reason = "the paper's is of FLOPs"
        yield figure(options, _PAPER, ladder.table, rung.name, column, ours, theirs=theirs, reason=reason)


def _predicted(
    options: Options, ladder: Ladder, rung: Rung, micro_batch: int, result: TrialResult, prediction: TrialResult
) -> Figure:
    """How far a prediction of the peak is from the peak; the paper's figure is a bound on its own profiler's."""
    theirs = ladder.profiler_within if rung is ladder.rungs[0] else None
    reason, ours = why(result), None
    if result.measurement is not None and prediction.prediction is None:
        reason = f"no prediction: {prediction.reason or prediction.outcome.value}"
    elif result.measurement is not None and prediction.prediction is not None:
        peak = result.measurement.memory.peak_allocated_bytes
        foretold = prediction.prediction.peak(micro_batch)
        ours = 100 * abs(foretold / peak - 1)
        reason = f"predicted {foretold / _MB:,.4g} MB" + ("; the paper's is a bound" if theirs else "")
    return figure(options, _PAPER, ladder.table, rung.name, _OFF, ours, theirs=theirs, reason=reason)


def _learned(
    options: Options,
    ladder: Ladder,
    rung: Rung,
    size: Size,
    learned: Learned,
    peak: Figure | None,
    base: Figure | None,
) -> Iterator[Figure]:
    """The score; of sparse weights also what they would take if they were stored as such."""
    where = f"on {learned.data}, {size.steps} steps of {size.batch}: {_NOT_BY_IT}"
    reason = learned.reason or where
    if ladder.score != ladder.their_score:
        # Another score of another task: the paper's stands beside it, without one of ours.
        missing = f"not measured: nothing is translated here; see the {ladder.score}"
        yield figure(
            options, _PAPER, ladder.table, rung.name, ladder.their_score, None, theirs=rung.score, reason=missing
        )
    theirs = rung.score if ladder.score == ladder.their_score else None
    yield figure(options, _PAPER, ladder.table, rung.name, ladder.score, learned.score, theirs=theirs, reason=reason)
    if not rung.sparse_megabytes:
        return
    stored, calculated, times = learned.stored, None, None
    if stored is not None and peak is not None and peak.ours is not None:
        calculated = peak.ours + (stored.values + stored.indices - stored.dense - stored.masks) / _MB
        reason = "calculated: the measured peak, with values and indices in the place of dense tensors and masks"
        times = base.ours / calculated if base is not None and base.ours is not None else None
    elif not learned.reason:
        reason = "the peak was not measured"
    columns = {"values": stored and stored.values / _MB, "indices": stored and stored.indices / _MB}
    for name, bytes_of_it in columns.items():
        column = f"sparse format, {name}, MB"
        yield figure(options, _PAPER, ladder.table, rung.name, column, bytes_of_it, reason=learned.reason)
    for column, theirs, ours in (
        ("peak in a sparse format (calculated), MB", rung.sparse_megabytes, calculated),
        ("peak in a sparse format (calculated): times smaller", rung.sparse_times_smaller, times),
    ):
        yield figure(options, _PAPER, ladder.table, rung.name, column, ours, theirs=theirs, reason=reason)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run(options_of("benchmarks.papers.low_memory", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
