"""One arm of a comparison: a training in its own process that makes steps on request.

It is a plain Python process that imports the user's file. A hand-written arm uses nothing of momadvise; the advice
imports the generated wrapper, which imports what it needs.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol

import msgspec
import torch

from benchmarks.minutes.by_hand import Loop, NotApplicableError, executable_loop, users_module
from benchmarks.minutes.protocol import ArmRequest, Lost, Ready, Reply, Turned

__all__ = ["main", "serve"]

_BATCHES = 4
_WARM_UP_STEPS = 1
_WARM_UP_SECONDS = 1.0
"""How long to warm up after the first step, which does the setup; at least one step."""

_OPTIONS = {
    "compute_loss": "compute_loss",
    "build_optimizer": "build_optimizer",
    "count_targets": "count_targets",
    "linear_head": "linear_head",
    "max_grad_norm": "MAX_GRAD_NORM",
    "blocks": "BLOCKS",
}
"""Option of the wrapper's ``prepare`` -> its name in the user's file."""


class _Trainer(Protocol):
    def step(self, batch: Any) -> torch.Tensor: ...


def main() -> None:
    """Run the program: output of the user's model goes to standard error, only replies go to standard output."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Build the training, warm it up, and make steps on request until there are no more requests."""

    def tell(reply: Reply) -> None:
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()

    try:
        request = msgspec.json.decode(requests.readline(), type=ArmRequest)
        turn, ready = _warmed_up(request)
        tell(ready)
        for line in requests:
            tell(Turned(seconds=turn(msgspec.json.decode(line, type=int))))
    except NotApplicableError as reason:
        tell(Lost(reason=str(reason)))
    except BrokenPipeError:
        return  # nobody waits for the reply any more
    except Exception as error:  # Any exception of the model, a library or the device becomes a row with its reason.
        first = (str(error).strip().splitlines() or [""])[0]
        tell(Lost(reason=f"{type(error).__name__}: {first}"))


def _warmed_up(request: ArmRequest) -> tuple[Callable[[int], float], Ready]:
    """The function that makes some steps and returns their seconds, and the message that it is ready."""
    device = torch.device(request.device)
    if request.memory_bytes is not None and device.type == "cpu":
        _limit_memory(request.memory_bytes)
    torch.manual_seed(request.seed)
    module = users_module(Path(request.workload))
    trainer, batch_size, settling = _trainer(request, module, device)
    torch.manual_seed(request.seed)
    batches = [module.make_batch(batch_size) for _ in range(_BATCHES)]

    def turn(steps: int) -> float:
        _synchronize(device)
        begin = time.perf_counter()
        for number in range(steps):
            trainer.step(batches[number % _BATCHES])
        _synchronize(device)
        return time.perf_counter() - begin

    turn(1)  # setup, compilation and calibration belong to the first step
    begin, seconds = time.perf_counter(), math.inf
    for number in itertools.count(1):
        seconds = min(seconds, turn(1))
        if number >= _WARM_UP_STEPS + settling and time.perf_counter() + seconds > begin + _WARM_UP_SECONDS:
            break
    return turn, Ready(batch=batch_size, step_seconds=seconds)


def _trainer(request: ArmRequest, module: ModuleType, device: torch.device) -> tuple[_Trainer, int, int]:
    """The training, the samples per step, and how many more steps it needs until all take equally long."""
    if request.wrapper is not None:
        specification = importlib.util.spec_from_file_location("wrapper", request.wrapper)
        assert specification is not None
        assert specification.loader is not None
        wrapper = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(wrapper)
        options = {name: getattr(module, theirs) for name, theirs in _OPTIONS.items() if hasattr(module, theirs)}
        training = wrapper.prepare(module.build_model(), device=device, **options)
        return training, request.batch, training.settling_steps
    if request.setting.executable:
        loop = executable_loop(module, request.setting, device)
    else:
        loop = Loop(module, request.setting, request.batch, device)
    assert "advisor" not in sys.modules, "what is written by hand must not import momadvise"
    return loop, loop.batch, 0


def _limit_memory(memory_bytes: int) -> None:
    """Make allocations fail at the limit, as if memory were exhausted, before the kernel kills something."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
