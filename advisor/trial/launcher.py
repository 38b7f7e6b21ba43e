"""The worker of a trial on several ranks: starts them as ``torchrun`` does, hands them requests, merges their results.

The agent of torch.distributed finds the other nodes, numbers the ranks and starts them, in the main thread as it
demands. It never looks after them: it would give a rank that does not end 30 s, and take an exit with status 0 for
good. A second thread watches instead. Nothing is ended here either; that is the guardian's business, which ends
stopped processes as well, once the parent has the answer.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters

from advisor.errors import OutputFolderError
from advisor.trial.folder import TrialFolder
from advisor.trial.gathering import Gathering
from advisor.trial.host_memory import OutOfMemoryEvidence
from advisor.trial.protocol import Finished, LineReader, Progress, Ready, Reported, Request, Unwritten, encode_line
from advisor.trial.rank_group import ADDRESS_VARIABLE, TOKEN_VARIABLE, Death, RankGroup
from advisor.trial.spec import TrialKind

__all__ = ["launch"]


def launch(requests: int, answers: int, ranks: int) -> None:
    """Start ranks, and run trials on them until the other end of ``requests`` is closed; does not return.

    Args:
        requests: Descriptor to read requests from.
        answers: Descriptor to write answers to.
        ranks: How many.
    """
    # As torchrun does where the user has not said otherwise: so the training will run.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    listener = socket.create_server(("127.0.0.1", 0))
    token = secrets.token_hex(16)
    os.environ[ADDRESS_VARIABLE] = f"127.0.0.1:{listener.getsockname()[1]}"
    os.environ[TOKEN_VARIABLE] = token

    def started(processes: Mapping[int, int]) -> None:
        group = RankGroup(listener, token, processes, requests)
        threading.Thread(target=_watch, args=(group, ranks, requests, answers), daemon=True).start()

    rendezvous = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        local_addr="localhost",
        is_host=True,
    )
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(rendezvous),
        max_restarts=0,
        monitor_interval=1.0,
        entrypoint=sys.executable,
        args=("-P", "-u", "-m", "advisor.trial.rank", f"--launcher={os.getpid()}"),
        local_addr="localhost",
    )
    _Agent(spec, started).run()


class _Agent(LocalElasticAgent):
    """Starts the ranks, and leaves the rest to others.

    Args:
        spec: What to start.
        started: Hears the process numbers of this node's ranks.
    """

    def __init__(self, spec: WorkerSpec, started: Callable[[Mapping[int, int]], None]) -> None:
        super().__init__(spec, _Inherited())
        self._started = started

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        processes: dict[int, int] = super()._start_workers(worker_group)
        self._started({worker.global_rank: processes[worker.local_rank] for worker in worker_group.workers})
        return processes

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        return RunResult(state=WorkerState.HEALTHY)


class _Inherited(LogsSpecs):
    """Ranks print where their launcher prints, until a trial begins."""

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        inherited = dict.fromkeys(envs, "")
        return LogsDest(stdouts=inherited, stderrs=inherited, error_files=inherited)


def _watch(group: RankGroup, size: int, requests: int, answers: int) -> None:
    """Serve, then end the process; whatever goes wrong here must not leave a launcher that nobody hears of."""
    status = 1
    try:
        status = _serve(group, size, requests, answers)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(group: RankGroup, size: int, requests: int, answers: int) -> int:
    """Run trials; the exit status when there is nothing more to do."""
    while group.joined < size:
        news, closed = group.receive()
        if closed or any(isinstance(message, Death) for _, message in news):
            return 1  # what it printed is in the log
    os.write(answers, encode_line(Ready()))
    reader = LineReader(requests)
    while True:
        news, readable = group.receive()
        if any(isinstance(message, Death) for _, message in news):
            return 1  # between trials: the parent finds out when it asks for the next one
        if not readable:
            continue
        lines = reader.read()
        if lines is None:
            return 0
        for line in lines:
            _run(group, size, msgspec.json.decode(line, type=Request), answers)


def _run(group: RankGroup, size: int, request: Request, answers: int) -> None:
    spec = request.spec
    assert spec.kind is not TrialKind.PROBE, "facts are learned by one process alone"
    assert spec.policy.gpu_count == size, f"{size} ranks cannot run a trial of {spec.policy.gpu_count}"
    evidence = OutOfMemoryEvidence()
    gathering = Gathering(spec.key, size, evidence.found)
    group.send(request)
    while (verdict := gathering.verdict(time.monotonic())) is None:
        evidence.look()
        news, _ = group.receive(gathering.deadline)
        for rank, message in news:
            match message:
                case Progress():
                    os.write(answers, encode_line(message))
                case Reported():
                    gathering.report(rank, message, time.monotonic())
                case Death(status=status):
                    gathering.death(rank, status, time.monotonic())
                case Unwritten():
                    os.write(answers, encode_line(message))
                    return
                case _:
                    raise AssertionError(f"a rank at work on {spec.key} must not say {message}")
    try:
        TrialFolder(Path(request.folder)).write_result(verdict.result)
    except OutputFolderError as error:
        os.write(answers, encode_line(Unwritten(reason=str(error))))
        return
    os.write(answers, encode_line(Finished(key=spec.key, clean=not verdict.why, why=verdict.why)))
