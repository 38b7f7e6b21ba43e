"""Start ranks on the CPU, run one function in each, and bring back what they return.

Ranks find each other through a file, and gloo takes its ports from the system.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_SECONDS = 240.0


def launch(function: Callable[[], Any], count: int, folder: Path) -> list[Any]:
    """What ``function`` (of a module, without arguments) returned in each of ``count`` ranks.

    No process is left, whatever happens. A rank that fails, fails the test with its traceback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __name__, function.__module__, function.__name__, str(folder)]
    shared = {"WORLD_SIZE": str(count), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = []
    try:
        for rank in range(count):
            with (folder / f"{rank}.log").open("w") as log:
                environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT))
        deadline = time.monotonic() + _LONGEST_SECONDS
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(process.poll() for process in processes):
                time.sleep(1.0)  # The others may be about to say why.
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join(f"--- rank {rank}\n{(folder / f'{rank}.log').read_text()}" for rank in range(count))
    assert all(process.returncode == 0 for process in processes), logs
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def share(samples: Any) -> Any:
    """This rank's part of a batch."""
    size = dist.get_world_size()
    return torch.utils._pytree.tree_map(lambda tensor: tensor.chunk(size)[dist.get_rank()], samples)


def _run(module: str, function: str, folder: Path) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        answer = getattr(importlib.import_module(module), function)()
        torch.save(answer, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
