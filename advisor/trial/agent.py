"""Starts the ranks of one node as ``torchrun`` does, by the same agent of torch.distributed.

The agent finds the other nodes, numbers the ranks and starts them, in the main thread as it demands. It never looks
after them: it would give a rank that does not end 30 s, and take an exit with status 0 for good. Others watch, and
nothing is ended here either; that is the guardian's business, which ends stopped processes as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters

from advisor.trial.fork_server import why_not_to_fork
from advisor.trial.forking import can_fork
from advisor.trial.nodes import Nodes
from advisor.trial.rank import run_forked

__all__ = ["run_agent"]

_MEETING_SECONDS = 600


def run_agent(
    ranks: int,
    run: str,
    nodes: Nodes,
    started: Callable[[Mapping[int, int]], None],
    own: Sequence[int] = (),
) -> None:
    """Start this node's ranks and stay; returns never, but an exception says that they could not be started.

    Args:
        ranks: How many on this node.
        run: Name of this launch, the same on all nodes.
        nodes: Where the others are.
        started: Hears rank -> process number of this node's ranks.
        own: Descriptors of this process that are none of a rank's business.
    """
    # As torchrun does where the user has not said otherwise: so the training will run.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # They have the libraries from here, which are loaded once; nothing has run here.
    forks = can_fork() and not why_not_to_fork()
    command = ("-P", "-u", "-m", "advisor.trial.rank", f"--launcher={os.getpid()}")
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(_rendezvous(run, nodes)),
        max_restarts=0,
        monitor_interval=1.0,
        entrypoint=run_forked if forks else sys.executable,
        args=(os.getpid(), tuple(own)) if forks else command,
        local_addr="localhost" if nodes.count == 1 else None,
    )
    _Agent(spec, started).run()


def _rendezvous(run: str, nodes: Nodes) -> RendezvousParameters:
    if nodes.count == 1:  # at a port from the system
        return RendezvousParameters("c10d", "localhost:0", run, 1, 1, local_addr="localhost", is_host=True)
    return RendezvousParameters(
        "static", nodes.endpoint, run, nodes.count, nodes.count, rank=nodes.rank, timeout=_MEETING_SECONDS
    )


class _Agent(LocalElasticAgent):
    """Starts the ranks, and leaves the rest to others.

    Args:
        spec: What to start.
        started: Hears the process numbers.
    """

    def __init__(self, spec: WorkerSpec, started: Callable[[Mapping[int, int]], None]) -> None:
        super().__init__(spec, _Inherited(), start_method="fork")
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
