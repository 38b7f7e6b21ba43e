"""Every trial begins in a process of its own, with nothing in its memory, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import SizeTrial
from advisor.trial.worker.forked_trial import end_children, end_like, run_forked
from tests.trial.logged import Logged
from tests.trial.specs import is_running, my_children, read_number, wait_until

_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner(tmp_path / "study") as runner:
        yield runner
    assert my_children() == []


# ---- one process


def _close_output() -> None:
    sys.stdout.close()


def _raise() -> None:
    raise ValueError("nobody hears of it")


@pytest.mark.parametrize(
    ("work", "status"),
    [
        (lambda: None, None),
        (_close_output, None),
        (_raise, 1),
        (sys.exit, 1),
        (lambda: os._exit(3), 3),
        (lambda: os._exit(0), 0),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
    ],
    ids=["to its end", "without output", "raises", "exits", "status 3", "status 0", "ended", "killed"],
)
def test_how_a_forked_process_ended_is_known(work: Callable[[], None], status: int | None) -> None:
    assert run_forked(work) == status


def test_it_is_a_process_of_its_own(tmp_path: Path) -> None:
    changed: list[int] = []

    def work() -> None:
        changed.append(1)
        (tmp_path / "process").write_text(str(os.getpid()))

    assert run_forked(work) is None
    assert read_number(tmp_path / "process") != os.getpid()
    assert changed == []


def test_nobody_waits_for_a_process_that_it_left_running(tmp_path: Path) -> None:
    def work() -> None:
        (tmp_path / "child").write_text(str(subprocess.Popen(_SLEEP).pid))

    assert run_forked(work) is None
    child = read_number(tmp_path / "child")
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("status", [0, 3, -signal.SIGKILL, -signal.SIGABRT])
def test_a_process_can_end_as_another_one_did(status: int) -> None:
    assert run_forked(lambda: end_like(status)) == status


def test_children_and_theirs_are_ended_but_for_the_one_that_is_to_go_on(tmp_path: Path) -> None:
    parent_of_one = f"""
import subprocess, sys, time, pathlib
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(tmp_path / "grandchild")!r}).write_text(str(child.pid))
time.sleep(600)
"""

    def work() -> None:
        kept, child = subprocess.Popen(_SLEEP), subprocess.Popen([sys.executable, "-c", parent_of_one])
        (tmp_path / "kept").write_text(str(kept.pid))
        (tmp_path / "child").write_text(str(child.pid))
        read_number(tmp_path / "grandchild")
        end_children(but=[kept.pid])

    assert run_forked(work) is None
    kept = read_number(tmp_path / "kept")
    assert is_running(kept)
    os.kill(kept, signal.SIGKILL)
    assert not is_running(read_number(tmp_path / "child"))
    assert wait_until(lambda: not is_running(read_number(tmp_path / "grandchild")))


# ---- trials


@pytest.mark.slow
def test_every_trial_has_a_process_of_its_own_and_the_worker_does_what_is_common_once(
    runner: Runner, tmp_path: Path
) -> None:
    workload = Logged(tmp_path / "workload")
    specs = [workload.spec(repeat=repeat) for repeat in range(2)] + [workload.spec(kind=SizeTrial)]
    results = [runner.run(spec) for spec in specs]
    assert [result.outcome for result in results] == [Outcome.OK] * 3
    assert [result.warm for result in results] == [False, True, True]
    stepped = workload.processes("first step")
    assert len(set(stepped)) == 3, "what one trial left at module level, no other one found"
    (imported,), (built,) = workload.processes("import"), workload.processes("build")
    assert imported == built
    assert imported not in stepped, "and the worker itself trains nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "how"),
    [
        ("os._exit(3)", "exit status 3"),
        ("os._exit(0)", "exit status 0"),
        ("os.abort()", "SIGABRT"),
        ("__import__('ctypes').string_at(0)", "SIGSEGV"),
    ],
)
def test_a_model_that_ends_its_process_is_told_with_how_and_the_next_trial_works(
    runner: Runner, tmp_path: Path, harm: str, how: str
) -> None:
    workload = Logged(
        tmp_path / "workload",
        f"def compute_loss(model, batch):\n    if len(batch[0]) == 6:\n        {harm}\n"
        "    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])",
    )
    crashed = runner.run(workload.spec(micro_batch=6))
    assert crashed.outcome is Outcome.CRASHED
    assert how in crashed.reason
    assert runner.run(workload.spec(micro_batch=4)).outcome is Outcome.OK


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "said"), [("sys.exit(0)", "sys.exit(0)"), ("raise ValueError('no')", "ValueError")])
def test_a_model_that_raises_costs_no_worker(runner: Runner, tmp_path: Path, harm: str, said: str) -> None:
    workload = Logged(
        tmp_path / "workload",
        f"import sys\n\n\ndef compute_loss(model, batch):\n    if len(batch[0]) == 6:\n        {harm}\n"
        "    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])",
    )
    failed = runner.run(workload.spec(micro_batch=6))
    assert failed.outcome is Outcome.FAILED
    assert said in failed.reason
    following = runner.run(workload.spec(micro_batch=4))
    assert following.outcome is Outcome.OK
    assert following.warm, "what failed in a process of its own has left the worker as it was"


@pytest.mark.slow
def test_what_a_model_leaves_running_ends_with_its_trial(runner: Runner, tmp_path: Path) -> None:
    workload = Logged(
        tmp_path / "workload",
        """
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
plain_loss = compute_loss


def note(name, process):
    path = Path(__file__).with_name(name)
    path.with_suffix(".new").write_text(str(process))
    path.with_suffix(".new").rename(path)


def compute_loss(model, batch):
    if not STEPPED:
        note("child", subprocess.Popen(SLEEP).pid)
        note("stranger", subprocess.Popen(SLEEP, start_new_session=True).pid)
        if os.fork() == 0:
            os.setsid()
            daemon = os.fork()
            if daemon == 0:
                time.sleep(600)
            note("daemon", daemon)
            os._exit(0)
        os.wait()
    return plain_loss(model, batch)
""",
    )
    assert runner.run(workload.spec()).outcome is Outcome.OK
    for name in ("child", "stranger", "daemon"):
        left = read_number(tmp_path / "workload" / name)
        assert wait_until(lambda left=left: not is_running(left)), name  # type: ignore[misc]
    following = runner.run(workload.spec(repeat=1))
    assert (following.outcome, following.warm) == (Outcome.OK, True)


@pytest.mark.slow
def test_a_trial_that_closes_its_output_costs_the_next_one_nothing(runner: Runner, tmp_path: Path) -> None:
    """The trap: the process ends badly after its result is written, and the worker with it, in the next trial."""
    workload = Logged(
        tmp_path / "workload",
        "import sys\n\nplain_loss = compute_loss\n\n\ndef compute_loss(model, batch):\n    sys.stdout.close()\n"
        "    return plain_loss(model, batch)",
    )
    for repeat in range(3):
        result = runner.run(workload.spec(repeat=repeat))
        assert result.outcome is Outcome.OK, result
        assert result.warm is (repeat > 0)
