"""Trials for tests, and the processes that they leave or do not leave."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from advisor.policy.policy import Policy
from advisor.trial.spec import SizeTrial, TimeTrial, Trial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests import quick_workers

FAKE_WORKER = (sys.executable, "-u", str(Path(__file__).with_name("fake_worker.py")))

_SERVERS = {"advisor.trial.fork_server", "tests.distributed.ranks", "tests.trial.preparing", quick_workers.__file__}
WORKLOADS = Path(__file__).with_name("workloads")


def spec(name: str = "tiny", *, kind: type[Trial[Any]] = TimeTrial, micro_batch: int = 4, **changes: Any) -> Any:
    """A trial of ``workloads/<name>.py`` (or of a behaviour of the fake worker)."""
    fields: dict[str, Any] = {
        "workload": WorkloadSource(
            kind=WorkloadKind.FILE, location=str(WORKLOADS / f"{name}.py"), name=name, fingerprint=name
        ),
        "policy": Policy(micro_batch=micro_batch),
        "device": "cpu",
        "memory_limit_bytes": 2**30,
        "max_timed_steps": 5,
        "measure_seconds": 5.0,
        "time_limit_seconds": 120.0,
    }
    return trial_of(kind, fields, **changes)


def trial_of(kind: type[Trial[Any]], fields: dict[str, Any], **changes: Any) -> Any:
    """A trial of a kind, with those of ``fields`` that it has."""
    beside = Policy(micro_batch=2)
    needed = {"wrapper_path": "wrapper.py", "reference_gradient": "gradient.pt", "beside": beside}
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    known = {name: value for name, value in fields.items() if name in kind.__struct_fields__}
    return kind(**{name: needed[name] for name in needed.keys() & required} | known | changes)


def up_to(largest_batch: int, kind: type[Trial[Any]]) -> dict[str, int]:
    """The bound of a trial that tries growing batches; nothing for others."""
    return {"largest_batch": largest_batch} if kind is SizeTrial else {}


def is_running(process: int) -> bool:
    """Whether a process exists and is more than an entry that nobody has collected."""
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def read_number(path: Path) -> int:
    """A process number that another process writes; waits for it."""
    assert wait_until(lambda: path.exists() and path.read_text().isdigit()), f"{path} was not written"
    return int(path.read_text())


def my_children() -> list[psutil.Process]:
    """Every process below this one, but for those that wait to fork workers or ranks (which look as they do)."""
    me = psutil.Process(os.getpid())
    servers = {child.pid for child in me.children() if is_running(child.pid) and _forks(child)}
    return [child for child in me.children(recursive=True) if is_running(child.pid) and child.pid not in servers]


def _forks(process: psutil.Process) -> bool:
    try:
        return not _SERVERS.isdisjoint(process.cmdline())
    except psutil.Error:
        return False
