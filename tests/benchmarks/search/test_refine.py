"""Possible winners of a table are timed again, in turn with plain training, until the best is known."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from advisor.methods.setting import MethodSetting
from advisor.search.space.space import Combination
from benchmarks.json_lines import append
from benchmarks.search.in_turn import ratio_of, time_in_turn
from benchmarks.search.recordings import SMOKE
from benchmarks.search.refine import contenders
from benchmarks.search.table import Estimate, Table
from benchmarks.search.table_lines import Line, Paired, read

from .tables import CHECKPOINT, FUSED, PLAIN, complete, header, sized, timed


def estimate(rate: float, error: float, batch: int = 4) -> Estimate:
    return Estimate(combination=PLAIN, batch=batch, rate=rate, error=error)


def paired(*settings: MethodSetting, batch: int, ratio: float, error: float = 0.01) -> Paired:
    return Paired(settings=settings, batch=batch, ratio=ratio, error=error, blocks=8, seconds=1.0)


def test_possible_winners_are_within_two_standard_errors_of_the_best() -> None:
    lucky, sure, far, near = estimate(120, 0.1), estimate(100, 0.01), estimate(80, 0.05), estimate(90, 0.1)
    assert contenders([sure, far, lucky, near]) == [lucky, near]


def test_nothing_is_left_once_all_possible_winners_are_precise() -> None:
    assert contenders([estimate(100, 0.01), estimate(99.5, 0.01), estimate(50, 0.1)]) == []


def test_a_ratio_and_its_error_come_from_groups_of_turns() -> None:
    generator = random.Random(0)
    logs = [math.log(1.5) + generator.gauss(0, 0.1) for _ in range(4000)]
    ratio, error = ratio_of(logs)
    assert ratio == pytest.approx(1.5, rel=0.01)
    assert 0.003 <= error < 0.01
    assert ratio_of([0.0] * 8) == (1.0, 0.003), "nothing is known to less than a third of a percent"


def test_a_table_weights_timings_in_turn_by_their_precision() -> None:
    lines: list[Line] = [
        *complete(),
        paired(CHECKPOINT, batch=24, ratio=4.0, error=0.01),
        paired(CHECKPOINT, batch=24, ratio=4.4, error=0.02),
    ]
    table, combination = Table(lines), Combination((CHECKPOINT,))
    middle = table.drift.middle_seconds
    ratio = math.exp((4 * math.log(4.0) + math.log(4.4)) / 5)
    assert table.seconds(combination, 24) == pytest.approx(ratio * middle)
    assert table.estimates[combination.label, 24].error == pytest.approx(0.01 / math.sqrt(1.25))
    assert table.estimates[PLAIN.label, 8].error == table.drift.noise, "as it was"
    assert table.seconds(PLAIN, 8) == Table(complete()).seconds(PLAIN, 8)


def test_a_replay_may_use_other_noise_than_the_recording() -> None:
    table = Table(complete(), noise=0.5)
    rates = {table.run(PLAIN, 8, random.Random(seed)).rate for seed in range(20)}
    assert max(filter(None, rates)) > 1.5 * min(filter(None, rates))


def test_a_combination_alternates_with_plain_training() -> None:
    lines = time_in_turn(SMOKE.workload, (CHECKPOINT,), [4, 8], reference_batch=2, seconds=0.1)
    assert [(line.batch, line.settings) for line in lines] == [(8, (CHECKPOINT,)), (4, (CHECKPOINT,))]
    assert all(line.blocks >= 8 and line.ratio > 1 and line.seconds >= 0.1 for line in lines)


@pytest.mark.slow
def test_the_command_extends_a_table_and_compresses_it(tmp_path: Path) -> None:
    path = tmp_path / "smoke-cpu.jsonl"
    lines: list[Line] = [
        header(workload=SMOKE.name, axes=header().axes),
        msgspec.structs.replace(timed(batch=4, reference=True), spread=0.2),
        *(line for settings in ((), (CHECKPOINT,), (FUSED,), (CHECKPOINT, FUSED)) for line in (sized(*settings),)),
        timed(CHECKPOINT, batch=4),
        msgspec.structs.replace(timed(batch=4), step_seconds=90.0),  # a hundredth of the rate: not a contender
    ]
    for line in lines:
        append(path, line)
    command = ["-m", "benchmarks.search.refine", "--model", "smoke", "--table", str(path), "--minutes", "0.01"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (added,) = read(path)[len(lines) :]
    assert isinstance(added, Paired)
    assert (added.settings, added.batch) == ((CHECKPOINT,), 4)
    assert (tmp_path / "smoke-cpu.jsonl.gz").exists()
