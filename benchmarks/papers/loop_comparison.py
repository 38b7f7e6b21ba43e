"""The generated wrapper and a hand-written loop in turn, in one process: the program behind ``overhead``.

Both models start with the same parameters, see the same batches and draw the same random numbers, so their losses must
be equal. Losses and peaks are measured while only one of the two exists, before both are timed in turn.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from advisor.measure.batches.batches import make_batches, pinned, seed_everything
from advisor.measure.memory.meters import memory_meter
from advisor.measure.memory.storages import HostData
from advisor.measure.speed.warm_up import warm_up
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.training.training import Training
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.source import resolve_source
from benchmarks.papers.child import answer
from benchmarks.papers.hand_written import HandWritten
from benchmarks.papers.loop_messages import LoopComparison, LoopComparisonReply, LoopComparisonRequest, Lost

__all__ = ["compare_with_loop"]

_BATCHES = 2
_STEPS = 4
"""Number of steps whose losses are compared; memory is measured in the last one."""
_WARM_UP = 3
_ROUNDS = 8
"""How often both are rebuilt, each of them first in turn: memory placement of tensors and code changes the step time of
one and the same loop by more than the difference of interest."""
_NO_LIMIT = 2**62
_SHORTEST_PART_SECONDS = 0.02
_OPTIONS = ("compute_loss", "build_optimizer", "count_targets", "linear_head", "max_grad_norm", "blocks")


class _Trainer(Protocol):
    def step(self, batch: Any) -> torch.Tensor: ...


def compare_with_loop(request: LoopComparisonRequest) -> LoopComparisonReply:
    """Compare and time the two under every policy."""
    device = torch.device(request.device)
    warm_up(device)
    workload = load_workload(resolve_source(request.workload))
    batches = make_batches(workload.make_batch, request.batch, _BATCHES, seed=0)
    if device.type == "cuda":
        batches = [pinned(batch) for batch in batches]
    found: list[LoopComparison | Lost] = []
    for settings in request.policies:
        try:
            found.append(_compared(workload, request, settings, batches, device))
        except Exception as error:  # Any exception of a model, a method or the device: the others are still compared.
            found.append(Lost(reason=f"{type(error).__name__}: {error}"))
    return LoopComparisonReply(found=found)


def _compared(
    workload: Workload,
    request: LoopComparisonRequest,
    settings: tuple[MethodSetting, ...],
    batches: list[Any],
    device: torch.device,
) -> LoopComparison:
    def written() -> HandWritten:
        seed_everything(0)
        return HandWritten(workload, workload.build_model(), device, settings, request.block)

    policy = Policy(methods=settings, micro_batch=request.batch)
    loop_losses, loop_peak = _looked_at(written(), batches, device)
    with _wrapped(workload, policy, device) as training:
        losses, peak = _looked_at(training, batches, device)
    rounds: list[list[float]] = []
    times: list[float] = []
    for number in range(_ROUNDS):
        own, other = _round(written, workload, policy, batches, device, request.seconds / _ROUNDS, number)
        rounds.append(own)
        times += other
    ratio, error = _over(rounds)
    ratios = [one for of_round in rounds for one in of_round]
    low, _, high = statistics.quantiles(ratios, n=4)
    return LoopComparison(
        ratio=ratio,
        error=error,
        low=low,
        high=high,
        turns=len(ratios),
        loop_seconds=statistics.median(times),
        losses=losses,
        loop_losses=loop_losses,
        peak_bytes=peak,
        loop_peak_bytes=loop_peak,
    )


def _round(
    written: Callable[[], HandWritten],
    workload: Workload,
    policy: Policy,
    batches: list[Any],
    device: torch.device,
    seconds: float,
    number: int,
) -> tuple[list[float], list[float]]:
    """Rebuild and time both, one of them first; neither is left when this returns."""
    earlier = written() if number % 2 else None
    with _wrapped(workload, policy, device) as training:
        return _in_turn(training, earlier or written(), batches, device, seconds)


def _over(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean ratio over all rounds, and its relative standard error."""
    means = [statistics.median(math.log(one) for one in of_round) for of_round in rounds]
    return math.exp(statistics.fmean(means)), statistics.stdev(means) / math.sqrt(len(means))


@contextlib.contextmanager
def _wrapped(workload: Workload, policy: Policy, device: torch.device) -> Iterator[Training]:
    """The training of ``wrapper.py``, written and run as after a search."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wrapper.py"
        write_wrapper(policy, path, headline="A policy.", details="Nothing was measured.")
        names: dict[str, Any] = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    seed_everything(0)
    options = {name: value for name in _OPTIONS if (value := getattr(workload, name))}
    training: Training = names["prepare"](workload.build_model(), device=device, **options)
    try:
        yield training
    finally:
        training.close()


def _looked_at(trainer: Any, batches: list[Any], device: torch.device) -> tuple[list[float], int]:
    """Losses of the first steps, and the most live bytes in the last one."""
    gc.collect()  # Recomputed blocks hold reference cycles: the previous training may still be alive.
    waiting = HostData()
    waiting.add(batches, torch.device("cpu"))
    losses = []
    with memory_meter(device, _NO_LIMIT, waiting) as meter:
        for number in range(_STEPS - 1):
            seed_everything(number)
            losses.append(float(trainer.step(batches[number % _BATCHES])))
        seed_everything(_STEPS)
        loss, memory = meter.measured_step(trainer, batches[_STEPS % _BATCHES])
        with meter.watching() as completed:
            memory = completed(memory)
        losses.append(float(loss))
    return losses, memory.tensor_peak_bytes


def _in_turn(
    ours: _Trainer, loop: _Trainer, batches: list[Any], device: torch.device, seconds: float
) -> tuple[list[float], list[float]]:
    """Ratios of the step times, one per turn and two at least; and the loop's step times."""
    gc.collect()  # collect the previous training now, not in the middle of a turn
    for _ in range(_WARM_UP):
        ours.step(batches[0])
        loop.step(batches[0])
    alone = _timed(loop, batches, 2, device) / 2
    steps = max(1, round(_SHORTEST_PART_SECONDS / alone))
    ratios: list[float] = []
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(ratios) < 2:
        if len(ratios) % 2:  # Alternate who comes first, so that neither is always second.
            own = _timed(ours, batches, steps, device)
            other = _timed(loop, batches, steps, device)
        else:
            other = _timed(loop, batches, steps, device)
            own = _timed(ours, batches, steps, device)
        ratios.append(own / other)
        times.append(other / steps)
    return ratios, times


def _timed(trainer: _Trainer, batches: list[Any], steps: int, device: torch.device) -> float:
    _synchronize(device)
    begin = time.perf_counter()
    for number in range(steps):
        trainer.step(batches[number % _BATCHES])
    _synchronize(device)
    return time.perf_counter() - begin


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    answer(LoopComparisonRequest, compare_with_loop)
