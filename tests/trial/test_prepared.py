"""What a worker does once for all trials changes nothing in any of them, and is not done where it would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

from advisor.measure.measurement import MemoryMeasurement
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import SizeResult
from advisor.trial.spec import ConfirmTrial, LookTrial, ProbeTrial, SizeTrial, TimeTrial, Trial, TrialSpec
from advisor.trial.worker.prepared import _noting_threads, _users_or, wants_process_of_its_own
from advisor.trial.worker.run_trial import run_trial
from tests.trial.logged import Logged
from tests.trial.preparing import PreparingProcess
from tests.trial.specs import my_children, spec, up_to

_THREADS = "torch.set_num_threads(2)\nONES = torch.ones(1024, 1024)\nONES @ ONES\n(ONES + ONES).sum()"
_PYTHON_THREAD = """
import threading
import time

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
_UNKNOWN_THREAD = """
import _thread

ASKED, ANSWERED = _thread.allocate_lock(), _thread.allocate_lock()
ASKED.acquire(), ANSWERED.acquire()


def answer():
    while True:
        ASKED.acquire()
        ANSWERED.release()


_thread.start_new_thread(answer, ())


def make_batch(batch_size):
    ASKED.release()
    ANSWERED.acquire()
    return torch.ones(batch_size, 16), torch.zeros(batch_size, dtype=torch.long)
"""
_CHILD = """
import subprocess
import sys

CHILD = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
"""
HINDRANCES = {
    "operators": _THREADS,
    "thread": _PYTHON_THREAD,
    "a library's thread": _UNKNOWN_THREAD,
    "child": _CHILD,
}


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner(tmp_path / "study") as runner:
        yield runner
    assert my_children() == []


@pytest.fixture(scope="module")
def fresh() -> Iterator[PreparingProcess]:
    with PreparingProcess() as process:
        yield process


# ---- which trials have a process of their own


@pytest.mark.parametrize("kind", get_args(TrialSpec))
def test_trials_that_measure_on_a_cpu_want_a_process_of_their_own_but_for_a_confirmation(
    kind: type[Trial[Any]],
) -> None:
    """A confirmation has a worker to itself, and a look measures nothing."""
    assert wants_process_of_its_own(spec(kind=kind)) is (kind not in (ConfirmTrial, LookTrial))


def test_a_trial_on_a_gpu_stays_in_the_worker() -> None:
    assert not wants_process_of_its_own(spec(device="cuda:0"))


# ---- what is prepared


def test_the_workload_is_loaded_and_its_model_built_for_one_use(fresh: PreparingProcess, tmp_path: Path) -> None:
    workload = Logged(tmp_path / "workload")
    answer = fresh.prepare(workload.spec(), tmp_path)
    assert answer is not None
    assert answer["loaded"]
    assert answer["reused"]
    assert answer["taken"] == [True, False], "a process trains a model once"
    assert len(workload.processes("import")) == len(workload.processes("build")) == 1


def test_the_model_is_for_its_own_seed_and_size_alone(fresh: PreparingProcess, tmp_path: Path) -> None:
    answer = fresh.prepare(Logged(tmp_path / "workload").spec(), tmp_path)
    assert answer is not None
    assert not answer["other seed"]
    assert not answer["other size"]


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("def build_model():\n    raise SystemExit(3)", "sys.exit(3)"),
        ("def build_model():\n    raise ValueError('no')", "ValueError: no"),
    ],
)
def test_what_cannot_be_prepared_is_told_by_every_trial_and_not_tried_again(
    runner: Runner, tmp_path: Path, added: str, said: str
) -> None:
    broken = Logged(tmp_path / "workload", added)
    for repeat in range(2):
        refused = runner.run(broken.spec(repeat=repeat))
        assert refused.outcome is Outcome.FAILED
        assert said in refused.reason


def test_a_model_that_existed_before_is_left_for_a_trial_to_refuse(
    runner: Runner, fresh: PreparingProcess, tmp_path: Path
) -> None:
    old = Logged(tmp_path / "workload", "MODEL = build_model()\n\n\ndef build_model():\n    return MODEL")
    answer = fresh.prepare(old.spec(), tmp_path)
    assert answer is not None
    assert answer["taken"] == [False, False]
    refused = runner.run(old.spec())
    assert refused.outcome is Outcome.FAILED
    assert "must build a new model on every call" in refused.reason


@pytest.mark.parametrize("added", HINDRANCES.values(), ids=HINDRANCES)
def test_nothing_is_forked_where_threads_or_children_run_already(
    fresh: PreparingProcess, tmp_path: Path, added: str
) -> None:
    """Threads do not survive a fork, and what one of them has locked stays locked."""
    spec = Logged(tmp_path / "workload", added).spec()
    assert fresh.prepare(spec, tmp_path, attempt_seconds=2.0) is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_number_of_threads_that_the_user_sets_holds_in_trials(
    fresh: PreparingProcess, tmp_path: Path, count: int
) -> None:
    """None of them has started yet: nothing was computed that needs several. The trap: one is what we set ourselves."""
    answer = fresh.prepare(Logged(tmp_path / "workload", f"torch.set_num_threads({count})").spec(), tmp_path)
    assert answer is not None
    assert answer["threads"] == count


def test_code_that_sets_the_number_that_it_has_read_gets_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: while a file is loaded there is one thread, and a library that restores it asked for one."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    asked: list[int] = []
    with _noting_threads(asked, 7):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 1
        torch.set_num_threads(before)
    assert asked == [1, 7]
    assert _users_or(7, asked) == 7


# ---- trials that find it, and trials that do not


@pytest.mark.slow
@pytest.mark.parametrize("added", HINDRANCES.values(), ids=HINDRANCES)
def test_trials_of_what_cannot_be_forked_run_in_the_worker(runner: Runner, tmp_path: Path, added: str) -> None:
    workload = Logged(tmp_path / "workload", added)
    probe = runner.run(workload.spec(kind=ProbeTrial))
    (note,) = (note for note in probe.notes if "share a process" in note)
    assert "make_batch" in note, "it says what would help"
    results = [runner.run(workload.spec(repeat=repeat, beside=Policy(micro_batch=4))) for repeat in range(2)]
    assert [result.outcome for result in results] == [Outcome.OK] * 2
    assert [result.speedup for result in results] == [None] * 2, "and nobody takes turns with them"
    (stepped,) = workload.processes("first step")
    assert workload.processes("import") == [stepped]


_WITH_A_TABLE = """
plain_build = build_model
TABLES = []


def build_model():
    TABLES.append(torch.zeros(100_000))
    return plain_build()
"""

_WITH_DATA = """
DATA = torch.randn(100_000, 16, generator=torch.Generator().manual_seed(0))


def make_batch(batch_size):
    return DATA[:batch_size], torch.arange(batch_size) % 8
"""

_LOADING = """
import time

DATA = []


def load():
    log("load")
    time.sleep(0.5)
    return torch.randn(100_000, 16, generator=torch.Generator().manual_seed(0))


def make_batch(batch_size):
    if not DATA:
        DATA.append(load())
    return DATA[0][:batch_size], torch.arange(batch_size) % 8
"""
_LOADED_BY = {
    "what it keeps": ("", 2),  # once to find out
    "every batch": ("def make_batch(batch_size):\n    return load()[:batch_size], torch.arange(batch_size) % 8", None),
    "a stream": (
        "plain = make_batch\ndef make_batch(batch_size):\n    STEPPED_ON.append(1)\n    "
        "return plain(batch_size)[0] + len(STEPPED_ON), plain(batch_size)[1]\nSTEPPED_ON = []",
        4,
    ),
    "a thread": (
        "plain = make_batch\nimport threading\ndef make_batch(batch_size):\n    "
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n    return plain(batch_size)",
        4,
    ),
    "a child": (
        "plain = make_batch\nimport subprocess\ndef make_batch(batch_size):\n    "
        "subprocess.Popen(['sleep', '600'])\n    return plain(batch_size)",
        4,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("added", "loads"), _LOADED_BY.values(), ids=_LOADED_BY)
def test_data_that_the_first_batch_loads_are_loaded_once_for_all_trials(
    runner: Runner, tmp_path: Path, added: str, loads: int | None
) -> None:
    """But not where trials would make other batches afterwards, or could no longer be forked."""
    workload = Logged(tmp_path / "workload", f"{_LOADING}\n\n{added}")
    trials = [workload.spec(repeat=repeat, measure_seconds=0.1) for repeat in range(3)]
    assert [runner.run(trial).outcome for trial in trials] == [Outcome.OK] * 3
    assert len(workload.processes("import")) == 1, "all are forked from one process"
    if loads is not None:
        assert len(workload.processes("load")) == loads


@pytest.mark.slow
@pytest.mark.parametrize(
    "added",
    [
        "",
        _WITH_A_TABLE,
        _WITH_DATA,
        _LOADING,
        "def build_model():\n    return torch.nn.Linear(16, 8).bfloat16().float()",
    ],
    ids=["plain", "a table beside the model", "a data set", "data loaded late", "two steps to build"],
)
@pytest.mark.parametrize("kind", [TimeTrial, SizeTrial])
def test_a_model_that_was_built_before_trains_and_needs_what_one_built_in_the_trial_does(
    runner: Runner, tmp_path: Path, added: str, kind: type[Trial[Any]]
) -> None:
    workload = Logged(tmp_path / "workload", added)
    trial = workload.spec(kind=kind, micro_batch=8, measure_seconds=0.2, **up_to(32, kind))
    before = runner.run(trial)
    inside, _ = run_trial(trial, lambda text: None)
    assert (before.outcome, inside.outcome) == (Outcome.OK, Outcome.OK), (before, inside)
    assert len(workload.processes("build")) <= 2, "once by the worker, once here"
    (losses, memories), (losses_inside, memories_inside) = measurements(before), measurements(inside)
    assert losses == losses_inside
    common = memories.keys() & memories_inside.keys()  # The batches of profiling runs depend on their time.
    assert 8 in common
    assert {batch: memories[batch] for batch in common} == {batch: memories_inside[batch] for batch in common}


@pytest.mark.slow
def test_parameters_that_a_method_draws_are_the_same_whenever_the_model_was_built(
    runner: Runner, tmp_path: Path
) -> None:
    policy = Policy(methods=(use("lora", rank=8),), micro_batch=8)
    trial = Logged(tmp_path / "workload").spec(policy=policy, measure_seconds=0.2)
    before = runner.run(trial)
    inside, _ = run_trial(trial, lambda text: None)
    assert measurements(before)[0] == measurements(inside)[0]


def measurements(result: Any) -> tuple[tuple[float, ...], dict[int, MemoryMeasurement]]:
    """First losses, and memory by batch but for what the whole process held."""
    if isinstance(result, SizeResult):
        losses, memories = result.sizing.loss_trace, {one.micro_batch: one.memory for one in result.sizing.points}
    else:
        assert result.measurement is not None
        losses, memories = result.measurement.loss_trace[:5], {8: result.measurement.memory}
    return losses, {
        batch: msgspec.structs.replace(memory, peak_resident_bytes=None) for batch, memory in memories.items()
    }


@pytest.mark.slow
def test_a_prepared_worker_runs_trials_of_another_seed_and_size(runner: Runner, tmp_path: Path) -> None:
    sized = (
        "SIZES = {'width': [8, 64]}\n\n\ndef build_model(width=32):\n    log('build')\n"
        "    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 8))"
    )
    workload = Logged(tmp_path / "workload", sized)
    parameters = []
    losses = set()
    for changes in ({}, {"seed": 1}, {"model_size": {"width": 64}}):
        result = runner.run(msgspec.structs.replace(workload.spec(), **changes))
        assert result.measurement is not None, result
        parameters.append(result.measurement.memory.breakdown.parameters // 4)
        losses.add(result.measurement.loss_trace[0])
    assert parameters == [16 * 32 + 32 + 32 * 8 + 8] * 2 + [16 * 64 + 64 + 64 * 8 + 8]
    assert len(losses) == 3
    worker, *trials = workload.processes("build")
    assert worker not in trials
    assert len(trials) == 2, "the first found its model built"
    assert os.getpid() not in (worker, *trials)
