"""What a worker does once for all trials forked from it: load the workload, build the model.

Threads do not survive a fork, and their locks stay locked. So everything here runs in a single thread, and a test fork
checks that multi-threaded operators finish in a forked process, and that so does ``make_batch`` where the user's file
has started threads that Python knows nothing of, as data frames' libraries do.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from torch.nn.parameter import is_lazy

from advisor.measure.batches.batches import seed_everything
from advisor.measure.memory.storages import HostData
from advisor.replaced import replaced
from advisor.trial.guardian import end_with_parent
from advisor.trial.spec import ConfirmTrial, CountTrial, LookTrial, PredictTrial, Trial
from advisor.trial.worker.forked_trial import end_children
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.reads import recording_reads
from advisor.workload.sizes import accepted

__all__ = ["Prepared", "cuda_is_open", "prepare", "wants_process_of_its_own"]

_SHARED_ELEMENTS = 1 << 18
"""Enough for operators to use several threads."""

_ATTEMPT_SECONDS = 20.0
"""A forked process that takes longer for a few operators is waiting for a missing thread."""

_STILL_SECONDS = 3.0
"""One that computes nothing for as long is waiting for it, too."""

_POLL_SECONDS = 0.005

_SAMPLES = 2
"""Of the batch that a test fork makes."""

_WORTH_KEEPING_SECONDS = 0.3
"""By so much longer than the next one, the first batch has loaded something that is worth keeping."""

_LOADING_SECONDS = 60.0
"""What takes longer to load is loaded by each trial: here it would be waited for twice."""


@dataclass(kw_only=True)
class Prepared:
    """The state that forked trials start from.

    Attributes:
        model: The model as built without arguments; ``None`` if that failed. A process uses it once.
        built: The storages created with the model.
        host_data: The storages that existed before it: the workload's data.
        random_state: State of torch's generator after building: methods may draw their own parameters from it.
        load_error: What loading raised; trials raise it again instead of rerunning the user's code.
        build_error: What building raised; likewise.
    """

    identity: tuple[str, int]
    threads: int
    workload: Workload | None = None
    model: torch.nn.Module | None = None
    built: HostData = field(default_factory=HostData)
    host_data: HostData = field(default_factory=HostData)
    random_state: torch.Tensor | None = None
    load_error: BaseException | None = None
    build_error: BaseException | None = None

    def loaded(self, spec: Trial[Any]) -> Workload:
        """The workload of a trial, loaded now if necessary.

        Raises:
            WorkloadError: It cannot be loaded.
        """
        if self.load_error is not None and self.identity == _identity(spec):
            raise self.load_error
        if self.workload is not None and self.identity == _identity(spec):
            return self.workload
        return load_workload(spec.workload)

    def take_model(self, spec: Trial[Any]) -> torch.nn.Module | None:
        """The model for a trial; ``None`` if it does not match or was already taken.

        Trials that build the model on fake tensors get ``None``.

        Raises:
            BaseException: What building it raised.
        """
        if spec.model_size or isinstance(spec, PredictTrial | CountTrial) or self.identity != _identity(spec):
            return None
        if self.build_error is not None:
            raise self.build_error
        if self.model is None:
            return None
        model, self.model = self.model, None
        return model


def wants_process_of_its_own(spec: Trial[Any]) -> bool:
    """Whether a trial should run in a process forked for it.

    On a CPU, memory left in the C library's allocator changes the next trial's step times. A GPU's allocator is
    emptied, and a GPU cannot be used after a fork. A confirmation has its own worker anyway, and a look measures
    nothing: before a fork, the model would be built for real.
    """
    return (
        sys.platform == "linux"
        and not isinstance(spec, ConfirmTrial | LookTrial)
        and torch.device(spec.device).type == "cpu"
    )


def prepare(spec: Trial[Any]) -> Prepared | None:
    """Load the workload and build its model; ``None`` if trials cannot be forked from this process afterwards.

    Exceptions of the user's code are raised by every trial forked from here.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prepared = Prepared(identity=_identity(spec), threads=threads)
    asked: list[int] = []
    threads_before = psutil.Process().num_threads()
    try:
        with recording_reads(), _noting_threads(asked, threads):
            prepared.workload = load_workload(spec.workload)
            if psutil.Process().num_threads() == threads_before:
                _load_data(prepared.workload, spec)
    except (Exception, SystemExit) as error:
        prepared.load_error = error
    if not _is_single():  # building would be for nothing
        torch.set_num_threads(_users_or(threads, asked))
        return None
    prepared.host_data.add_living(torch.device("cpu"))
    # Exempt everything loaded so far from garbage collection, but not the model: its memory must be found.
    gc.freeze()
    if prepared.workload is not None:
        try:
            with recording_reads(), _noting_threads(asked, threads):
                prepared.model, prepared.built = _built(prepared.workload, spec.seed, prepared.host_data)
            prepared.random_state = torch.get_rng_state()
            prepared.host_data.add(prepared.random_state, torch.device("cpu"))  # not the training's memory
        except (Exception, SystemExit) as error:
            prepared.build_error = error
    prepared.threads = _users_or(threads, asked)
    make_batch = None
    if prepared.workload is not None and psutil.Process().num_threads() > threads_before:
        make_batch = functools.partial(_make_batch, prepared.workload, spec)
    if _may_fork(prepared.threads, make_batch):
        return prepared
    torch.set_num_threads(prepared.threads)
    return None


@contextlib.contextmanager
def _noting_threads(asked: list[int], threads: int) -> Generator[None, None, None]:
    """Note the numbers of threads that the user's code sets: one is not told from ours by looking.

    Code that reads the number to set it again must not take ours for its own.
    """
    real = torch.set_num_threads

    def set_num_threads(count: int) -> None:
        real(count)
        asked.append(count)

    def get_num_threads() -> int:
        return asked[-1] if asked else threads

    with replaced(torch, set_num_threads=set_num_threads, get_num_threads=get_num_threads):
        yield


def _users_or(threads: int, asked: Sequence[int]) -> int:
    """The number of threads that the user's code has set, or this one."""
    if asked:
        return asked[-1]
    return threads if torch.get_num_threads() == 1 else torch.get_num_threads()


def cuda_is_open() -> bool:
    """Whether this process has opened a GPU, which processes forked from it cannot use."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _identity(spec: Trial[Any]) -> tuple[str, int]:
    return spec.workload.fingerprint, spec.seed


def _built(workload: Workload, seed: int, before: HostData) -> tuple[torch.nn.Module | None, HostData]:
    """The user's model and its storages; ``None`` if it is not a new one, which the trial itself rejects."""
    built = HostData()
    seed_everything(seed)
    model = workload.build_model()
    built.add_living(torch.device("cpu"))
    there = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    old = any(parameter.untyped_storage() in before for parameter in there)
    return (None if old else model), built.without(before)


def _is_single() -> bool:
    """Whether there is nothing that a forked process would not have: threads, children, an open GPU."""
    return threading.active_count() == 1 and not cuda_is_open() and not psutil.Process().children()


def _make_batch(workload: Workload, spec: Trial[Any]) -> None:
    """Make a batch; what the user's code raises is for a trial to tell."""
    with contextlib.suppress(Exception, SystemExit):
        workload.make_batch(_SAMPLES, **accepted(workload.make_batch, spec.model_size))


def _load_data(workload: Workload, spec: Trial[Any]) -> None:
    """Have ``make_batch`` load what it keeps for later batches, if it does: each trial would load it anew.

    A forked process tells. Nothing is loaded here if equal seeds do not give equal batches, which trials would then
    make differently, or if loading leaves threads or processes behind.
    """
    if not _is_single():
        return
    make = functools.partial(workload.make_batch, _SAMPLES, **accepted(workload.make_batch, spec.model_size))

    def made() -> tuple[Any, float]:
        seed_everything(spec.seed)
        begin = time.perf_counter()
        return make(), time.perf_counter() - begin

    def keeps() -> bool:
        threads = psutil.Process().num_threads()
        (first, seconds), (again, later) = made(), made()
        keeps_something = seconds - later > _WORTH_KEEPING_SECONDS and _are_equal(first, again)
        return keeps_something and _is_single() and psutil.Process().num_threads() == threads

    is_worth_it = _in_fork(keeps, _LOADING_SECONDS)
    end_children()  # of a loader, say
    if is_worth_it:
        with contextlib.suppress(Exception, SystemExit):  # a trial tells
            made()


def _are_equal(batch: Any, other: Any) -> bool:
    leaves, others = (torch.utils._pytree.tree_leaves(one) for one in (batch, other))
    return len(leaves) == len(others) and all(
        torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one == two)
        for one, two in zip(leaves, others, strict=True)
    )


def _may_fork(threads: int, also: Callable[[], None] | None) -> bool:
    """Whether a forked process works like a new one, which does something that the workload needs as well."""

    def works() -> bool:
        torch.set_num_threads(threads)
        some = torch.ones(_SHARED_ELEMENTS)
        (some + some).sum()
        matrix = some.view(512, -1)
        matrix @ matrix.t()
        if also is not None:
            also()
        return True

    return _is_single() and _in_fork(works, _ATTEMPT_SECONDS)


def _in_fork(find: Callable[[], bool], seconds: float) -> bool:
    """Whether something is so in a forked process; not if that raises, or takes or waits for too long."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    worker = os.getpid()
    try:
        process = os.fork()
    except OSError:
        return False
    if process == 0:
        try:
            end_with_parent(worker)
            os._exit(0 if find() else 1)
        except BaseException:
            os._exit(1)
    return _ended_well(process, seconds)


def _ended_well(process: int, seconds: float) -> bool:
    child = psutil.Process(process)
    computed, still_until = -1.0, 0.0
    deadline = time.monotonic() + seconds
    while (now := time.monotonic()) < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status == 0
        times = child.cpu_times()
        if times.user + times.system > computed or child.status() == psutil.STATUS_DISK_SLEEP:
            computed, still_until = times.user + times.system, now + _STILL_SECONDS
        elif now > still_until:
            break
        time.sleep(_POLL_SECONDS)
    os.kill(process, signal.SIGKILL)  # not reaped yet, so the ID is still valid
    os.waitpid(process, 0)
    return False
