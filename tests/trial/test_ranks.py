"""Trials on several ranks: real processes that train together, on gloo."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from advisor.measure.fidelity import FidelityRecord
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import ConfirmTrial, FidelityTrial, SizeTrial, TrialSpec
from advisor.workload.workload import WorkloadKind, WorkloadSource
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

    def spec(self, count: int, *, how: str = "", who: tuple[int, ...] = (), step: int = 2, **changes: Any) -> TrialSpec:
        text = (WORKLOADS / "misbehaving.py").read_text()
        text += f"\nHOW, WHO, STEP, FOLDER = {how!r}, {who}, {step}, {str(self.folder)!r}\n"
        path = self.folder / "workload.py"
        path.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="ranks", fingerprint=digest)
        policy = Policy(methods=(use("ddp", bucket_views=True, static_graph=False),), micro_batch=4, gpu_count=count)
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


def test_ranks_serve_trial_after_trial(runner: Runner, ranks: Ranks) -> None:
    first = runner.run(ranks.spec(2))
    assert first.outcome is Outcome.OK, first
    assert not first.warm
    before = ranks.processes(2)
    sized = runner.run(ranks.spec(2, kind=SizeTrial, largest_batch=8))
    assert sized.outcome is Outcome.OK, sized
    assert sized.warm
    assert sized.sizing is not None
    assert [point.micro_batch for point in sized.sizing.points] == [4, 8]
    assert len(sized.sizing.loss_trace) == 3
    assert ranks.processes(2) == before
    assert runner.run(ranks.spec(2, repeat=1)).warm


@pytest.mark.parametrize(
    "setting",
    [use("zero_1"), use("fsdp", reshard=True, mixed_precision="none", offload=False)],
    ids=lambda one: one.name,
)
def test_ways_to_distribute_have_the_first_gradient_and_the_losses_of_ddp(
    runner: Runner, setting: MethodSetting
) -> None:
    """Sliced gradients are put together, and each rank's are averaged, before they are compared."""

    blocks = Path(__file__).parents[1] / "session" / "workloads" / "tiny.py"
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(blocks), name="blocks", fingerprint="blocks")

    def steps(settings: MethodSetting, **changes: Any) -> TrialSpec:
        policy = Policy(methods=(settings,), micro_batch=2, gpu_count=2)
        changed: dict[str, Any] = {"workload": source, "policy": policy, "fidelity_steps": 12, **changes}
        return spec(kind=FidelityTrial, **changed)

    def recorded(trial: TrialSpec) -> FidelityRecord:
        result = runner.run(trial)
        assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
        assert result.fidelity is not None
        return result.fidelity

    plain = steps(use("ddp", bucket_views=True, static_graph=False))
    gradient = str(runner.gradient_file(plain.key))
    exact = recorded(msgspec.structs.replace(plain, write_gradient_to=gradient))
    own = recorded(steps(setting, reference_gradient=gradient))
    assert own.gradient is not None, own.gradient_reason
    assert own.gradient.error < 1e-5
    assert len(own.losses) == 12
    assert own.losses == pytest.approx(exact.losses, rel=1e-3)
    by_chance = recorded(steps(setting, reference_gradient=gradient, other_chance=True))
    assert by_chance.gradient is not None
    assert own.gradient.error < by_chance.gradient.error < 1e-3, "each slice begins one rounding off"


def test_ranks_that_died_between_trials_cost_no_trial(runner: Runner, ranks: Ranks) -> None:
    """A good trial; then another one, for which new ranks must come."""
    first = runner.run(ranks.spec(2))
    assert first.outcome is Outcome.OK, first
    before = ranks.processes(2)
    os.kill(before[1], signal.SIGKILL)
    assert wait_until(lambda: my_children() == [])
    assert runner.run(ranks.spec(2, repeat=1)).outcome is Outcome.OK
    assert not set(before) & set(ranks.processes(2))


def test_ranks_are_replaced_for_another_number(runner: Runner, ranks: Ranks) -> None:
    together = runner.run(ranks.spec(2))
    assert together.outcome is Outcome.OK, together
    before = ranks.processes(2)
    alone = runner.run(spec())
    assert alone.outcome is Outcome.OK
    assert not alone.warm
    assert not any(is_running(process) for process in before)


_FAULTS = [
    ("is killed", Outcome.LOST, "rank 1: it was ended by SIGKILL without a result"),
    ("exits", Outcome.CRASHED, "rank 1: it ended with exit status 0 without a result"),
    ("calls sys.exit", Outcome.FAILED, "rank 1: the model's code called sys.exit(3)"),
    ("raises", Outcome.FAILED, "rank 1: ValueError: my mistake"),
    ("allocates", Outcome.OUT_OF_MEMORY, "rank 1: memory must stay within 100 MiB"),
    ("is stopped", Outcome.TIMEOUT, "it took longer than its limit of 8 s"),
]


@pytest.mark.parametrize(("how", "outcome", "reason"), _FAULTS)
def test_one_ranks_fault_ends_the_trial_for_all(
    runner: Runner, ranks: Ranks, how: str, outcome: Outcome, reason: str
) -> None:
    limit = 8.0 if outcome is Outcome.TIMEOUT else 120.0
    faulty = ranks.spec(2, how=how, who=(1,), memory_limit_bytes=100 * 2**20, time_limit_seconds=limit)
    result = runner.run(faulty)
    assert result.outcome is outcome, (result, runner.tail_of_log(faulty.key))
    assert reason in result.reason
    if how == "raises":
        assert result.traceback_text is not None
        assert 'raise ValueError("my mistake")' in result.traceback_text
    assert my_children() == []
    assert not any(is_running(process) for process in ranks.processes(2))


def test_a_rank_that_loses_another_is_not_blamed(runner: Runner, ranks: Ranks) -> None:
    """Rank 0 fails as well, and perhaps earlier: its peer went away in the middle of a sum."""
    result = runner.run(ranks.spec(2, how="disconnects", who=(1,)))
    assert result.outcome is Outcome.FAILED
    assert "rank 1: ValueError: Default process group has not been initialized" in result.reason
    assert my_children() == []


def test_memory_that_runs_out_on_one_rank_at_a_larger_batch_keeps_the_smaller_ones(
    runner: Runner, ranks: Ranks
) -> None:
    growing = ranks.spec(2, how="outgrows", who=(0,), kind=SizeTrial, memory_limit_bytes=100 * 2**20)
    result = runner.run(growing)
    assert result.outcome is Outcome.OK, result
    assert result.sizing is not None
    assert [point.micro_batch for point in result.sizing.points] == [4]
    assert result.sizing.out_of_memory_at is not None
    assert result.sizing.out_of_memory_at > 4
    assert my_children() == []


def test_a_launcher_that_dies_takes_its_ranks_along(runner: Runner, ranks: Ranks) -> None:
    stopping = ranks.spec(2, how="is stopped", who=(0, 1))

    def kill_launcher() -> None:
        launcher = psutil.Process(ranks.processes(2)[0]).parent()
        assert launcher is not None
        launcher.kill()

    thread = threading.Thread(target=kill_launcher)
    thread.start()
    result = runner.run(stopping)
    thread.join()
    assert result.outcome is Outcome.LOST
    assert "the worker was ended by SIGKILL without a result" in result.reason
    assert my_children() == []
    assert not any(is_running(process) for process in ranks.processes(2))


def test_nothing_outlives_a_parent_that_is_killed(ranks: Ranks, tmp_path: Path) -> None:
    stopping = tmp_path / "spec.json"
    stopping.write_bytes(msgspec.json.encode(ranks.spec(2, how="is stopped", who=(1,))))
    code = f"""
import msgspec
from pathlib import Path
from advisor.trial.process.runner import Runner
from advisor.trial.spec import TrialSpec
Runner(Path({str(tmp_path)!r})).run(msgspec.json.decode(Path({str(stopping)!r}).read_bytes(), type=TrialSpec))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent.parent.parent)
    try:
        processes = ranks.processes(2)
        launcher = psutil.Process(processes[0]).ppid()
    finally:
        parent.kill()
        parent.wait()
    assert wait_until(lambda: not any(is_running(process) for process in [*processes, launcher]), seconds=30.0)


def test_the_emitted_wrapper_is_confirmed_on_all_ranks(runner: Runner, ranks: Ranks, tmp_path: Path) -> None:
    trial = ranks.spec(2, kind=ConfirmTrial, wrapper_path=str(tmp_path / "wrapper.py"))
    write_wrapper(trial.policy, tmp_path / "wrapper.py", headline="For a test.", details="Nothing measured.")
    result = runner.run(trial)
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(trial.key))
    assert not result.warm
    assert result.measurement is not None
    assert result.measurement.samples_per_second == pytest.approx(8 / result.measurement.step_seconds)
    assert my_children() == []


def test_a_forked_rank_takes_as_many_threads_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from advisor.trial.ranks.rank import _take_threads

    before = torch.get_num_threads()
    try:
        for said in ("2", "1"):
            monkeypatch.setenv("OMP_NUM_THREADS", said)
            _take_threads()
            assert torch.get_num_threads() == int(said)
        monkeypatch.setenv("OMP_NUM_THREADS", "several")
        _take_threads()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
