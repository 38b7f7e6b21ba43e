"""Trials on several ranks: real processes that train together, on gloo."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from advisor.policy.policy import Policy
from advisor.problem.workload import WorkloadKind, WorkloadSource
from advisor.trial.outcome import Outcome
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialKind, TrialSpec
from tests.trial.specs import WORKLOADS, is_running, my_children, read_number, spec, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One runner, so that trials that end well share warm ranks."""
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


class Ranks:
    """Trials on several ranks, whose processes note their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spec(
        self, count: int, *, how: str = "", who: tuple[int, ...] = (), micro_batch: int = 4, **changes: Any
    ) -> TrialSpec:
        text = (
            WORKLOADS / "misbehaving.py"
        ).read_text() + f"\nHOW, WHO, FOLDER = {how!r}, {who}, {str(self.folder)!r}\n"
        path = self.folder / "workload.py"
        path.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="ranks", fingerprint=digest)
        policy = Policy(micro_batch=micro_batch, gpu_count=count)
        return msgspec.structs.replace(spec(**changes), workload=source, policy=policy)

    def processes(self, count: int) -> list[int]:
        return [read_number(self.folder / f"rank-{rank}") for rank in range(count)]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_four_ranks_are_timed_together(runner: Runner, ranks: Ranks) -> None:
    trial = ranks.spec(4)
    result = runner.run(trial)
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(trial.key))
    assert result.key == trial.key
    assert result.measurement is not None
    assert result.measurement.samples_per_second == pytest.approx(16 / result.measurement.step_seconds)
    assert len(result.measurement.loss_trace) > 4
    assert len({psutil.Process(process).pid for process in ranks.processes(4)}) == 4


def test_ranks_serve_trial_after_trial_and_are_replaced_for_another_number(runner: Runner, ranks: Ranks) -> None:
    first = runner.run(ranks.spec(2))
    assert first.outcome is Outcome.OK, first
    assert not first.warm
    before = ranks.processes(2)
    sized = runner.run(ranks.spec(2, kind=TrialKind.SIZE, largest_batch=16))
    assert sized.outcome is Outcome.OK, sized
    assert sized.warm
    assert sized.sizing is not None
    assert [point.micro_batch for point in sized.sizing.points] == [4, 8, 16]
    assert len(sized.sizing.loss_trace) == 3
    assert ranks.processes(2) == before

    assert runner.run(ranks.spec(2, repeat=1)).warm
    alone = runner.run(spec())
    assert alone.outcome is Outcome.OK
    assert not alone.warm
    assert not any(is_running(process) for process in before)


_FAULTS = [
    ("is killed", Outcome.CRASHED, "rank 1: it was ended by SIGKILL without a result"),
    ("exits", Outcome.CRASHED, "rank 1: it ended with exit status 0 without a result"),
    ("calls sys.exit", Outcome.FAILED, "rank 1: the model's code called sys.exit(3)"),
    ("raises", Outcome.FAILED, "rank 1: ValueError: my mistake"),
    ("allocates", Outcome.OUT_OF_MEMORY, "rank 1: memory must stay within 100 MiB"),
    ("is stopped", Outcome.TIMEOUT, "it took longer than its limit of 10 s"),
]


@pytest.mark.parametrize(("how", "outcome", "reason"), _FAULTS)
def test_one_ranks_fault_ends_the_trial_for_all(
    runner: Runner, ranks: Ranks, how: str, outcome: Outcome, reason: str
) -> None:
    faulty = ranks.spec(2, how=how, who=(1,), memory_limit_bytes=100 * 2**20, time_limit_seconds=10.0)
    result = runner.run(faulty)
    assert result.outcome is outcome, (result, runner.tail_of_log(faulty.key))
    assert reason in result.reason
    if how == "raises":
        assert result.traceback_text is not None
        assert 'raise ValueError("my mistake")' in result.traceback_text
    assert my_children() == []
    assert not any(is_running(process) for process in ranks.processes(2))


def test_a_good_trial_works_after_all_those_faults(runner: Runner, ranks: Ranks) -> None:
    result = runner.run(ranks.spec(2))
    assert result.outcome is Outcome.OK
    assert not result.warm
