"""Liu et al. 2023, "An Evaluation of Memory Optimization Methods": a larger batch does not mean faster training.

    python -m benchmarks.papers.evaluation_of_moms --size smoke
    python -m benchmarks.papers.evaluation_of_moms --size paper --device cuda --minutes 8

The largest batch and the highest throughput of five models, trained exactly and with every method of the paper's Figure
4, alone and combined; throughput at fractions of the largest batch (Figure 3); deeper BERT models (Figure 5); depth and
width, at a fixed batch (Figure 2) and at the largest one (Figure 6, c to f). Tables are measured in order of
importance; all of them take about half an hour on a GPU, over several calls. Results that need several GPUs (Figures 6
a, b and 7) are left out; what one block keeps on each of several ranks, under tensor and sequence parallelism and
recomputation, is measured by ``python -m benchmarks.block_activations``.

The paper does not state the memory of its V100, the float format or the sequence lengths. Here the limit is 16 GiB,
that of the smaller V100; BERT reads 128 tokens and GPT 1,024; and the matrix products of all runs, including exact
ones, use TF32 on GPUs that support it. The fastest plan for a quarter of the bytes, computed in advance, stands in for
DTR.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.hardware.hardware import DeviceKind
from advisor.methods.setting import MethodSetting, use
from advisor.session.setup.limits import memory_budget
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import TimeResult
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.largest import Largest, Search, refusal
from benchmarks.papers.moms_cases import (
    AT_LARGEST,
    BATCH,
    CASES,
    EXACT,
    FIXED,
    GROWN,
    MOMS,
    RATE,
    THEIR_CROSSINGS,
    THEIR_FIGURES,
    THEIR_MEANS,
    THEIR_MOMS,
    Case,
    Fixed,
)
from benchmarks.papers.runs import figure, timed, why
from benchmarks.papers.units import Known, Unit, run_units

__all__ = ["main", "run"]

_PAPER = "evaluation_of_moms"
_LARGEST = "Largest batch and throughput (Section 4.3, Figures 3 and 4)"
_MEANS = "Means over the methods (Section 4.3)"
_DEEPER = "Deeper BERT (Figure 5)"
_GROWN = "Largest throughput against depth and width (Figure 6, c to f)"
_FIXED = "Throughput at a fixed batch (Figure 2)"

_TELLING = "largest batch, samples"
"""The column that tells whether a combination was measured."""

_FIXED_RATE = "throughput, samples/s"

_TF32_FROM = (8, 0)
_V100_BYTES = 16 * 2**30


class _Size(msgspec.Struct, frozen=True):
    """How long to measure.

    Attributes:
        seconds: Most seconds of timed steps at each batch.
        longest_step_seconds: Batches with longer steps are not tried.
    """

    seconds: float
    longest_step_seconds: float


_SIZES = {"smoke": _Size(0.05, 5.0), "paper": _Size(2.0, 2.0)}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[list[Figure]]:
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        bench = _Bench(options, runner)
        models, deeper = CASES[options.size]
        units = [unit for case in models for unit in bench.case(_LARGEST, case)]
        units += [unit for case in deeper for unit in bench.case(_DEEPER, case)]
        grown = GROWN[options.size]
        units += [unit for cases in grown.values() for case in cases.values() for unit in bench.case(_GROWN, case)]
        units += [unit for curve in FIXED[options.size] for unit in bench.fixed(curve)]

        def finish(known: Known) -> Iterator[Figure]:
            for case in models:
                yield from bench.means(known, case)
            for (name, argument), cases in grown.items():
                yield from bench.crossing(known, name, argument, cases)

        yield from run_units(options, _PAPER, units, finish)


class _Bench:
    """Measures one combination of methods on one model."""

    def __init__(self, options: Options, runner: Runner) -> None:
        self._options = options
        self._runner = runner
        self._found: dict[tuple[str, tuple[int, ...], str], Largest] = {}

    def case(self, table: str, case: Case) -> list[Unit]:
        """The largest batch and throughput of one model with every method."""

        def unit(mom: str) -> Unit:
            def make(known: Known) -> Iterator[Figure]:
                # Ratios are between runs of one call: exact training is repeated in every call.
                exact, own = (self._largest(case, one) for one in (EXACT, mom))
                return self._of(table, case, mom, own, exact)

            return Unit(table=table, row=f"{case.name}, {mom}", column=_TELLING, make=make)

        return [unit(mom) for mom in (EXACT, *case.moms)]

    def _largest(self, case: Case, mom: str) -> Largest:
        size = _SIZES[self._options.size]
        search = Search(
            limit_bytes=self._limit(case),
            seconds=size.seconds,
            longest_step_seconds=size.longest_step_seconds,
            divisors=case.fractions,
        )
        key = case.name, tuple(case.fractions), mom
        if key not in self._found:
            settings = self._settings(mom)
            found = search.run(self._runner, self._options, case.model.workload, settings, case.size)
            self._found[key] = found
        return self._found[key]

    def _limit(self, case: Case) -> int:
        if self._options.size == "smoke":
            return case.model.small_limit_mib * 2**20
        return memory_budget(self._options.hardware, _V100_BYTES).limit_bytes

    def _settings(self, mom: str) -> tuple[MethodSetting, ...]:
        """The methods, in the float format that all runs share."""
        capability = self._options.hardware.compute_capability
        has_tf32 = self._options.hardware.kind is DeviceKind.CUDA and (capability or (0, 0)) >= _TF32_FROM
        return (*MOMS[mom], *([use("precision", dtype="tf32")] if has_tf32 else []))

    def _of(self, table: str, case: Case, mom: str, own: Largest, exact: Largest) -> Iterator[Figure]:
        columns: dict[str, float | None] = {_TELLING: own.batch}
        if mom != EXACT:
            columns[BATCH] = own.batch / exact.batch if own.batch and exact.batch else None
            columns[RATE] = own.fastest / exact.fastest if own.fastest and exact.fastest else None
        columns["largest throughput, samples/s"] = own.fastest
        at_largest = own.rate(1)
        columns[AT_LARGEST] = at_largest / own.fastest if at_largest and own.fastest else None
        for share in case.fractions[1:]:
            columns[f"throughput at 1/{share} of the largest batch, samples/s"] = own.rate(share)
        for column, ours in columns.items():
            theirs, remark = THEIR_FIGURES.get((case.name, mom, column), (None, ""))
            if ours is not None:
                reason = "; ".join(filter(None, (own.reason, remark)))
            elif own.batch is None:
                reason = own.reason
                if theirs is None and column != _TELLING:
                    continue  # one line says why
            else:
                reason = f"exact: {exact.reason}" if exact.batch is None else "not run"
            yield self._figure(table, f"{case.name}, {mom}", column, ours, theirs=theirs, reason=reason)

    def means(self, known: Known, case: Case) -> Iterator[Figure]:
        """Means over the methods that ran, as in the paper's Section 4.3, which summarizes its Figure 3."""
        theirs = THEIR_MEANS.get(case.name, (None, None))
        moms = [mom for mom in case.moms if mom in THEIR_MOMS]
        if not any((_LARGEST, f"{case.name}, {mom}", _TELLING) in known for mom in moms):
            return
        for column, mean in zip((BATCH, RATE), theirs, strict=True):
            ran = [ours for mom in moms if (ours := _ours(known, _LARGEST, f"{case.name}, {mom}", column))]
            reason = "" if len(ran) == len(moms) else f"over {len(ran)} of {len(moms)} methods; the others have none"
            ours = statistics.fmean(ran) if ran else None
            yield self._figure(_MEANS, case.name, column, ours, theirs=mean, reason=reason)

    def crossing(self, known: Known, name: str, argument: str, cases: Mapping[int, Case]) -> Iterator[Figure]:
        """The smallest size at which a method is faster than exact training, or exact training does not fit."""
        row, theirs = f"{name}, {argument}", THEIR_CROSSINGS.get((name, argument))
        column = "smallest at which a method is faster"
        ran = []
        for value, case in cases.items():
            rows = [f"{case.name}, {mom}" for mom in case.moms]
            if not all((_GROWN, one, _TELLING) in known for one in (f"{case.name}, {EXACT}", *rows)):
                continue
            ran.append(value)
            faster = any((_ours(known, _GROWN, one, RATE) or 0.0) > 1 for one in rows)
            exact = known[_GROWN, f"{case.name}, {EXACT}", _TELLING]
            alone = exact.ours is None and exact.reason.startswith(Outcome.OUT_OF_MEMORY.value)
            if faster or (alone and any(_ours(known, _GROWN, one, _TELLING) for one in rows)):
                yield self._figure(_GROWN, row, column, value, theirs=theirs, reason="of the sizes that were run")
                return
        if ran:
            reason = f"at none of {', '.join(map(str, ran))}"
            yield self._figure(_GROWN, row, column, None, theirs=theirs, reason=reason)

    def fixed(self, curve: Fixed) -> list[Unit]:
        """Throughput of growing models at a fixed batch; a model that does not fit says so."""

        def unit(value: int, mom: str) -> Unit:
            row = f"{curve.case.name}, {value} {curve.argument}, {mom}"

            def make(known: Known) -> Iterator[Figure]:
                exact, own = (self._timed(curve, value, one) for one in (EXACT, mom))
                return self._of_fixed(row, own, None if mom == EXACT else exact)

            return Unit(table=_FIXED, row=row, column=_FIXED_RATE, make=make)

        return [unit(value, mom) for value in curve.values for mom in (EXACT, *curve.case.moms)]

    def _timed(self, curve: Fixed, value: int, mom: str) -> TimeResult | str:
        """The measurement, or why it was refused."""
        settings = self._settings(mom)
        return refusal(self._options, settings) or timed(
            self._runner,
            self._options,
            curve.case.model.workload,
            settings,
            batch=curve.batch,
            seconds=_SIZES[self._options.size].seconds,
            model_size={**curve.case.size, curve.argument: value},
            limit_bytes=self._limit(curve.case),
        )

    def _of_fixed(self, row: str, own: TimeResult | str, exact: TimeResult | str | None) -> Iterator[Figure]:
        """Values of one run, and relative to exact training unless it is that."""
        measured = None if isinstance(own, str) else own.measurement
        reason = own if isinstance(own, str) else why(own)
        rate = None if measured is None else measured.samples_per_second
        yield self._figure(_FIXED, row, _FIXED_RATE, rate, reason=reason)
        peak = None if measured is None else measured.memory.peak_bytes / 2**20
        yield self._figure(_FIXED, row, "peak, MiB", peak, reason=reason)
        if exact is not None:
            base = None if isinstance(exact, str) else exact.measurement
            ratio = rate / base.samples_per_second if rate and base else None
            unless = reason or ("" if base else "exact training has none")
            yield self._figure(_FIXED, row, "throughput / exact", ratio, reason=unless)

    def _figure(
        self, table: str, row: str, column: str, ours: float | None, *, theirs: float | None = None, reason: str = ""
    ) -> Figure:
        return figure(self._options, _PAPER, table, row, column, ours, theirs=theirs, reason=reason)


def _ours(known: Known, table: str, row: str, column: str) -> float | None:
    one = known.get((table, row, column))
    return None if one is None else one.ours


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.evaluation_of_moms", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
