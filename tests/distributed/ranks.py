"""Start ranks on the CPU, run one function in each, and bring back what they return.

Ranks find each other through a file, and gloo takes its ports from the system. They are forked from a launcher that
has imported what all of them need, which takes seconds of each otherwise, and that did nothing else: a process that
has computed a gradient cannot be forked.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_SECONDS = 240.0
_IMPORTED_ONCE = (
    "torch._dynamo",  # by every optimizer
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "transformers.models.gpt2.modeling_gpt2",
)


def launch(function: Callable[[], Any], count: int, folder: Path) -> list[Any]:
    """What ``function`` (of a module, without arguments) returned in each of ``count`` ranks.

    No process is left, whatever happens. A rank that fails, fails the test with its traceback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __name__, function.__module__, function.__name__, str(count), str(folder)]
    shared = {"WORLD_SIZE": str(count), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "launcher.log").open("w") as log:
        launcher = subprocess.Popen(
            command, env={**os.environ, **shared}, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
        )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the logs say how far the ranks came
            launcher.wait(_LONGEST_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
    logs = "\n".join(f"--- {path.stem}\n{path.read_text()}" for path in sorted(folder.glob("*.log")))
    assert launcher.returncode == 0, logs
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def share(samples: Any) -> Any:
    """This rank's part of a batch."""
    size = dist.get_world_size()
    return torch.utils._pytree.tree_map(lambda tensor: tensor.chunk(size)[dist.get_rank()], samples)


def _launch(module: str, function: str, count: int, folder: Path) -> int:
    """Fork the ranks, and wait until all have ended well or one has not; the exit status."""
    from tests.methods.tiny import import_bitsandbytes, import_torchao

    for name in _IMPORTED_ONCE:
        importlib.import_module(name)
    import_bitsandbytes()
    import_torchao()
    run = getattr(importlib.import_module(module), function)
    torch.set_num_threads(1)
    ranks = [get_context("fork").Process(target=_run, args=(run, rank, count, folder)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    running = list(ranks)
    while running and not any(rank.exitcode for rank in ranks):
        wait([rank.sentinel for rank in running])
        running = [rank for rank in ranks if rank.exitcode is None]
    if running:
        wait([rank.sentinel for rank in running], timeout=1.0)  # The others may be about to say why.
    return 0 if all(rank.exitcode == 0 for rank in ranks) else 1


def _run(function: Callable[[], Any], rank: int, size: int, folder: Path) -> None:
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    random.seed()  # As if it had been started by itself.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        torch.save(function(), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    status = _launch(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    sys.stdout.flush()
    os._exit(status)  # Ranks that still wait for one that failed are ended with the group.
