"""Start ranks on the CPU, run one function in each, and bring back what they return.

Ranks find each other through a file, and gloo takes its ports from the system. They are forked from a launcher that
has imported what all of them need, which takes seconds of each otherwise, and that did nothing else: a process that
has computed a gradient cannot be forked. It is kept for the next ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_SECONDS = 240.0
_ENDED_WELL, _ENDED_BADLY = b"well\n", b"badly\n"
_IMPORTED_ONCE = (
    "torch._dynamo",  # by every optimizer
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "transformers.models.gpt2.modeling_gpt2",
)


class Launcher:
    """A process that forks ranks, started by the first that need it; a context, which ends it.

    Args:
        folder: For what it says itself.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "launcher.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def run(self, function: Callable[[], Any], count: int, folder: Path) -> list[Any]:
        """What ``function`` (of a module, without arguments) returned in each of ``count`` ranks.

        No rank is left, whatever happens. One that fails, fails the test with its traceback.
        """
        if self._process is None:
            self._process = self._started()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wanted = json.dumps([function.__module__, function.__name__, count, str(folder)])
        answer = b""
        try:
            with contextlib.suppress(BrokenPipeError):  # the log says why it has ended
                self._process.stdin.write(f"{wanted}\n".encode())
            if select.select([self._process.stdout], [], [], _LONGEST_SECONDS)[0]:
                answer = self._process.stdout.readline()
        finally:
            if not answer:  # its ranks may still run
                self._end()
        paths = [self._log, *sorted(folder.glob("*.log"))]
        assert answer == _ENDED_WELL, "\n".join(f"--- {path.stem}\n{path.read_text()}" for path in paths)
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]

    def _started(self) -> subprocess.Popen[bytes]:
        shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with self._log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", __name__],
                env={**os.environ, **shared},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                cwd=ROOT,
                start_new_session=True,
            )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def share(samples: Any) -> Any:
    """This rank's part of a batch."""
    size = dist.get_world_size()
    return torch.utils._pytree.tree_map(lambda tensor: tensor.chunk(size)[dist.get_rank()], samples)


def _serve() -> None:
    """Launch what is asked for on standard input, line by line, and answer whether it ended well."""
    from tests.methods.tiny import import_bitsandbytes, import_torchao

    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Where what libraries print cannot be taken for an answer.
    for name in _IMPORTED_ONCE:
        importlib.import_module(name)
    import_bitsandbytes()
    import_torchao()
    torch.set_num_threads(1)
    for line in sys.stdin:
        module, function, count, folder = json.loads(line)
        run = getattr(importlib.import_module(module), function)
        os.write(answers, _ENDED_WELL if _launch(run, count, Path(folder)) else _ENDED_BADLY)


def _launch(function: Callable[[], Any], count: int, folder: Path) -> bool:
    """Fork the ranks, and wait until all have ended well or one has not; end those that still wait for it."""
    ranks = [get_context("fork").Process(target=_run, args=(function, rank, count, folder)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    running = list(ranks)
    while running and not any(rank.exitcode for rank in ranks):
        wait([rank.sentinel for rank in running])
        running = [rank for rank in ranks if rank.exitcode is None]
    if running:
        wait([rank.sentinel for rank in running], timeout=1.0)  # The others may be about to say why.
    for rank in ranks:
        rank.kill()
        rank.join()
    return all(rank.exitcode == 0 for rank in ranks)


def _run(function: Callable[[], Any], rank: int, size: int, folder: Path) -> None:
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    faulthandler.enable()  # A crash in a thread of gloo's leaves nothing else in the log.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    random.seed()  # As if it had been started by itself.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        torch.save(function(), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    _serve()
