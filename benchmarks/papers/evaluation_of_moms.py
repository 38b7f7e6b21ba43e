"""Liu et al. 2023, "An Evaluation of Memory Optimization Methods": a larger batch is not a faster training.

    python -m benchmarks.papers.evaluation_of_moms --size smoke
    python -m benchmarks.papers.evaluation_of_moms --size paper --device cuda --minutes 8

The largest batch and the largest throughput of five models, trained exactly and with every method of the paper's
Figure 4 alone and combined; throughput at parts of the largest batch (Figure 3); deeper BERT models (Figure 5); depth
and width, at a fixed batch (Figure 2) and at the largest one (Figure 6, c to f). The first tables are measured first:
all of it takes about half an hour of a GPU, call by call. What needs several GPUs (Figures 6 a, b and 7) is left out.

The paper does not say how much memory its V100 had, nor its float format and lengths of text. Here the limit is 16 GiB,
that of the smaller V100, BERT reads 128 tokens and GPT 1,024, and matrix products of all runs, exact ones included, are
in TF32 on GPUs that have it. DTR's part is taken by the fastest plan for a quarter of the bytes, made in advance.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.methods.use import MethodUse, use
from advisor.problem.hardware import DeviceKind
from advisor.session.limits import memory_budget
from advisor.trial.outcome import Outcome
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialResult
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
from benchmarks.papers.runs import figure, settled, timed, why

__all__ = ["main", "run"]

_PAPER = "evaluation_of_moms"
_LARGEST = "Largest batch and throughput (Section 4.3, Figures 3 and 4)"
_MEANS = "Means over the methods (Section 4.3)"
_DEEPER = "Deeper BERT (Figure 5)"
_GROWN = "Largest throughput against depth and width (Figure 6, c to f)"
_FIXED = "Throughput at a fixed batch (Figure 2)"

_TELLING = "largest batch, samples"
"""The column that says whether a combination was measured."""

_FIXED_RATE = "throughput, samples/s"

_TF32_FROM = (8, 0)
_V100_BYTES = 16 * 2**30


class _Size(msgspec.Struct, frozen=True):
    """How long is measured.

    Attributes:
        seconds: Of timed steps at each batch, at most.
        longest_step_seconds: Batches with longer steps are not tried.
    """

    seconds: float
    longest_step_seconds: float


_SIZES = {"smoke": _Size(0.05, 5.0), "paper": _Size(2.0, 2.0)}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        bench = _Bench(options, runner)
        models, deeper = CASES[options.size]
        for case in models:
            yield from bench.case(_LARGEST, case)
            yield from bench.means(case)
        for case in deeper:
            yield from bench.case(_DEEPER, case)
        for (name, argument), cases in GROWN[options.size].items():
            for case in cases.values():
                yield from bench.case(_GROWN, case)
            yield bench.crossing(name, argument, cases)
        for curve in FIXED[options.size]:
            yield from bench.fixed(curve)


class _Bench:
    """Measures what is not known yet."""

    def __init__(self, options: Options, runner: Runner) -> None:
        self._options = options
        self._runner = runner
        self._known = {(one.table, one.row, one.column): one for one in options.known(_PAPER) if settled(one)}

    def case(self, table: str, case: Case) -> Iterator[Figure]:
        """The largest batch and throughput of one model with every method."""
        moms = (EXACT, *case.moms)
        missing = [mom for mom in moms if (table, f"{case.name}, {mom}", _TELLING) not in self._known]
        if not missing:
            return
        # Ratios are taken within one run: exact training is measured again beside whatever is missing.
        self._options.check_time()
        exact = self._largest(case, EXACT)
        for position, mom in enumerate(missing):
            if position > 0:  # a call measures one more at least, however short it is
                self._options.check_time()
            found = exact if mom == EXACT else self._largest(case, mom)
            yield from self._of(table, case, mom, found, exact)

    def _largest(self, case: Case, mom: str) -> Largest:
        size = _SIZES[self._options.size]
        search = Search(
            limit_bytes=self._limit(case),
            seconds=size.seconds,
            longest_step_seconds=size.longest_step_seconds,
            divisors=case.shares,
        )
        return search.run(self._runner, self._options, case.model.workload, self._uses(mom), case.size)

    def _limit(self, case: Case) -> int:
        if self._options.size == "smoke":
            return case.model.small_limit_mib * 2**20
        return memory_budget(self._options.hardware, _V100_BYTES).limit_bytes

    def _uses(self, mom: str) -> tuple[MethodUse, ...]:
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
        for share in case.shares[1:]:
            columns[f"throughput at 1/{share} of the largest batch, samples/s"] = own.rate(share)
        for column, ours in columns.items():
            theirs, remark = THEIR_FIGURES.get((case.name, mom, column), (None, ""))
            if ours is not None:
                reason = "; ".join(filter(None, (own.reason, remark)))
            elif own.batch is None:
                reason = own.reason
                if theirs is None and column != _TELLING:
                    continue  # one line says it
            else:
                reason = f"exact: {exact.reason}" if exact.batch is None else "not run"
            yield self._figure(table, f"{case.name}, {mom}", column, ours, theirs=theirs, reason=reason)

    def means(self, case: Case) -> Iterator[Figure]:
        """Over the methods that ran: what the paper's Section 4.3 sums its Figure 3 up with."""
        theirs = THEIR_MEANS.get(case.name, (None, None))
        for column, mean in zip((BATCH, RATE), theirs, strict=True):
            moms = [mom for mom in case.moms if mom in THEIR_MOMS]
            ran = [ours for mom in moms if (ours := self._ours(_LARGEST, f"{case.name}, {mom}", column))]
            reason = "" if len(ran) == len(moms) else f"over {len(ran)} of {len(moms)} methods; the others have none"
            ours = statistics.fmean(ran) if ran else None
            yield self._figure(_MEANS, case.name, column, ours, theirs=mean, reason=reason)

    def crossing(self, name: str, argument: str, cases: Mapping[int, Case]) -> Figure:
        """The smallest size at which a method is faster than exact training, or exact training does not fit."""
        row, theirs = f"{name}, {argument}", THEIR_CROSSINGS.get((name, argument))
        column = "smallest at which a method is faster"
        for value, case in cases.items():
            rows = [f"{case.name}, {mom}" for mom in case.moms]
            faster = any((self._ours(_GROWN, one, RATE) or 0.0) > 1 for one in rows)
            exact = self._known.get((_GROWN, f"{case.name}, {EXACT}", _TELLING))
            alone = exact is not None and exact.ours is None and exact.reason.startswith(Outcome.OUT_OF_MEMORY.value)
            if faster or (alone and any(self._ours(_GROWN, one, _TELLING) for one in rows)):
                return self._figure(_GROWN, row, column, value, theirs=theirs, reason="of the sizes that were run")
        sizes = ", ".join(map(str, cases))
        return self._figure(_GROWN, row, column, None, theirs=theirs, reason=f"at none of {sizes}")

    def _ours(self, table: str, row: str, column: str) -> float | None:
        one = self._known.get((table, row, column))
        return None if one is None else one.ours

    def fixed(self, curve: Fixed) -> Iterator[Figure]:
        """Throughput of growing models at one batch; what does not fit says so."""
        for value in curve.values:
            moms = (EXACT, *curve.case.moms)
            rows = {mom: f"{curve.case.name}, {value} {curve.argument}, {mom}" for mom in moms}
            missing = [mom for mom in moms if (_FIXED, rows[mom], _FIXED_RATE) not in self._known]
            exact = self._timed(curve, value, EXACT) if missing else None
            for mom in missing:
                own = exact if mom == EXACT else self._timed(curve, value, mom)
                yield from self._of_fixed(rows[mom], own, exact)

    def _timed(self, curve: Fixed, value: int, mom: str) -> TrialResult | str:
        """What was measured, or why it was refused."""
        uses = self._uses(mom)
        return refusal(self._options, uses) or timed(
            self._runner,
            self._options,
            curve.case.model.workload,
            uses,
            batch=curve.batch,
            seconds=_SIZES[self._options.size].seconds,
            model_size={**curve.case.size, curve.argument: value},
            limit_bytes=self._limit(curve.case),
        )

    def _of_fixed(self, row: str, own: TrialResult | str | None, exact: TrialResult | str | None) -> Iterator[Figure]:
        measured = None if own is None or isinstance(own, str) else own.measurement
        base = None if exact is None or isinstance(exact, str) else exact.measurement
        reason = own if isinstance(own, str) else "" if own is None else why(own)
        rate = None if measured is None else measured.samples_per_second
        yield self._figure(_FIXED, row, _FIXED_RATE, rate, reason=reason)
        peak = None if measured is None else measured.memory.peak_bytes / 2**20
        yield self._figure(_FIXED, row, "peak, MiB", peak, reason=reason)
        if own is not exact:
            ratio = rate / base.samples_per_second if rate and base else None
            unless = reason or ("" if base else "exact training has none")
            yield self._figure(_FIXED, row, "throughput / exact", ratio, reason=unless)

    def _figure(
        self, table: str, row: str, column: str, ours: float | None, *, theirs: float | None = None, reason: str = ""
    ) -> Figure:
        one = figure(self._options, _PAPER, table, row, column, ours, theirs=theirs, reason=reason)
        self._known[table, row, column] = one
        return one


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run(options_of("benchmarks.papers.evaluation_of_moms", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
