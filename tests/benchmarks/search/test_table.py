"""A recorded table answers as the workload would, with the drift of the machine divided out."""

from __future__ import annotations

import gzip
import random
import statistics
from pathlib import Path

import pytest

from advisor.errors import OptionError
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome
from benchmarks.json_lines import append
from benchmarks.search.curve import Curve
from benchmarks.search.drift import Drift
from benchmarks.search.table import Table
from benchmarks.search.table_lines import Sized, Timed, compress, read

from .tables import CHECKPOINT, FUSED, PLAIN, bytes_of, complete, header, lost, seconds_of, sized, timed


def test_recordings_are_read_back_without_the_drift() -> None:
    table = Table(complete())
    # The middle of the table is the reference speed: there, plain training took the median of its repetitions.
    middle = 1.5
    for settings, batches in (
        ((), (4, 8)),
        ((CHECKPOINT,), (12, 24)),
        ((FUSED,), (4, 8)),
        ((CHECKPOINT, FUSED), (12, 24)),
    ):
        for batch in batches:
            combination = Combination(settings)
            assert table.outcome(combination, batch) is Outcome.OK
            assert table.seconds(combination, batch) == pytest.approx(middle * seconds_of(settings, batch))
            assert table.peak_bytes(combination, batch) == bytes_of(settings, batch)
    assert table.best[:2] == ("checkpoint(every=1) + fused_optimizer", 24)
    assert table.best_rate == pytest.approx(24 / 3.18 / middle)
    assert table.policies == 8


def test_time_and_memory_are_linear_between_and_beyond_recorded_batches() -> None:
    table = Table(complete())
    assert table.seconds(PLAIN, 6) == pytest.approx(1.5 * seconds_of((), 6))
    assert table.seconds(PLAIN, 1) == pytest.approx(1.5 * seconds_of((), 1))
    assert table.peak_bytes(PLAIN, 1) == 500, "the optimizer step is the peak of a small batch"
    assert table.outcome(PLAIN, 10) is Outcome.OK
    assert table.outcome(PLAIN, 11) is Outcome.OUT_OF_MEMORY
    assert table.rate(PLAIN, 11) == 0
    with pytest.raises(AssertionError, match="a batch from 1 to 40"):
        table.outcome(PLAIN, 41)


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT])
def test_a_batch_out_of_memory_bounds_what_runs(outcome: Outcome) -> None:
    table = Table([*complete(), lost(batch=10, outcome=outcome.value)])
    assert table.outcome(PLAIN, 9) is Outcome.OK
    assert table.outcome(PLAIN, 10) is outcome


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.DIVERGED])
def test_a_failed_combination_fails_the_same_way_at_every_batch(outcome: Outcome) -> None:
    own = (FUSED,)
    lines = [line for line in complete() if not (isinstance(line, Sized | Timed) and line.settings == own)]
    table = Table([*lines, Sized(settings=own, outcome=outcome.value, reason="it does not", last=True)])
    assert table.outcome(Combination(own), 1) is outcome
    assert table.rate(Combination(own), 1) == 0
    assert table.forecast(Combination(own)) is None
    timed_only = Table([*lines, sized(*own), lost(*own, batch=4, outcome=outcome.value)])
    assert timed_only.outcome(Combination(own), 1) is outcome


def test_profiling_runs_that_predict_no_batch_mean_that_none_fits() -> None:
    own = (FUSED,)
    lines = [line for line in complete() if not (isinstance(line, Sized | Timed) and line.settings == own)]
    assert Table([*lines, sized(*own)]).outcome(Combination(own), 1) is Outcome.OUT_OF_MEMORY


def test_the_forecast_comes_from_the_profiling_runs_unless_given() -> None:
    short_runs = Table(complete()).forecast(PLAIN)
    assert short_runs is not None
    assert short_runs.largest_batch(1000, margin=0.0) == 10
    other = MemoryModel(lines=(Line(0.0, 1.0),), time=Line(0.0, 0.0))
    assert Table(complete(), {PLAIN.label: other}).forecast(PLAIN) is other


def test_trials_are_as_noisy_as_the_repetitions_of_plain_training() -> None:
    factors = (1.0, 1.05, 1.0, 1.05, 1.0)
    lines = complete()[:-1] + [
        timed(batch=4, moment=10.0 * number, slower=factor, reference=True) for number, factor in enumerate(factors, 1)
    ]
    table = Table(lines)
    assert 0.02 < table.noise < 0.08
    generator = random.Random(0)
    rates = [table.run(PLAIN, 8, generator).rate for _ in range(400)]
    measured = [rate for rate in rates if rate is not None]
    assert statistics.median(measured) == pytest.approx(table.rate(PLAIN, 8), rel=table.noise)
    assert statistics.stdev(measured) / statistics.mean(measured) == pytest.approx(table.noise, rel=0.2)


def test_an_incomplete_table_is_refused() -> None:
    with pytest.raises(OptionError, match="2 of 4 are missing"):
        Table([header(), timed(batch=4, reference=True), sized(), timed(batch=8), sized(FUSED), timed(FUSED, batch=8)])
    with pytest.raises(OptionError, match="must begin with its search space"):
        Table([])


def test_a_table_survives_a_process_that_ends_while_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    lines = complete()
    for line in lines:
        append(path, line)
    path.write_bytes(path.read_bytes()[:-20])
    assert read(path) == lines[:-1]
    append(path, lines[-1])
    assert read(path) == lines
    packed = compress(path)
    assert read(packed) == lines
    assert Table.read(packed).best == Table(lines).best
    assert gzip.decompress(packed.read_bytes()) == path.read_bytes()
    first = packed.read_bytes()
    assert compress(path).read_bytes() == first


def test_drift_is_tracked_within_each_run() -> None:
    drift = Drift(
        [
            timed(batch=4, moment=0.0, slower=1.0, reference=True),
            timed(batch=4, moment=100.0, slower=4.0, reference=True),
        ]
    )
    assert drift.factor(0, 50.0) == pytest.approx(2 / 2.5), "halfway of a factor of four, over the median"
    assert drift.factor(0, -5.0) == pytest.approx(1 / 2.5)
    assert drift.factor(0, 500.0) == pytest.approx(4 / 2.5)
    assert drift.noise == pytest.approx(0.01 / 1.96), "two repetitions tell nothing but their own spread"


def test_a_steady_drift_is_not_noise() -> None:
    steady = [timed(batch=4, moment=10.0 * n, slower=1.1**n, reference=True) for n in range(6)]
    assert Drift(steady).noise == pytest.approx(0, abs=1e-9)


def test_a_curve_never_falls_and_never_shrinks_faster_than_the_batch() -> None:
    assert Curve([(4, 2.0)]).at(8) == 4.0
    falling = Curve([(4, 3.0), (8, 2.0)])
    assert falling.at(1) == 3.0
    assert falling.at(16) == 2.0
    steep = Curve([(4, 1.0), (8, 4.0)])
    assert steep.at(2) == 0.5
    assert steep.at(6) == 2.5
    assert steep.at(12) == 7.0
