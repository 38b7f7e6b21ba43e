"""Time a training in turn with plain training, step by step in one process.

A shared machine may be a tenth slower in one second and faster in the next; this affects both trainings alike but
hardly their ratio. Where separate measurements vary by 10 %, the ratio of two that alternate for five seconds varies by
2.5 %.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from advisor.methods.setting import MethodSetting
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.training.training import Training
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.source import resolve_source
from benchmarks.search.table_lines import Paired

__all__ = ["ratio_of", "time_in_turn"]

_GROUPS = 8
"""Groups of consecutive turns, whose medians give the standard error: single turns are not independent."""

_SHORTEST_PART_SECONDS = 0.02
"""Shortest turn of one training: the clock's resolution would matter in a few milliseconds."""

_LEAST_ERROR = 0.003
_OPTIONS = ("compute_loss", "build_optimizer", "count_targets", "linear_head", "max_grad_norm", "blocks")


def time_in_turn(
    workload: Path,
    settings: tuple[MethodSetting, ...],
    batches: Sequence[int],
    *,
    reference_batch: int,
    seconds: float,
    settled: Mapping[str, str] | None = None,
) -> list[Paired]:
    """Time a combination at some batches, each in turn with plain training at the reference batch.

    Args:
        workload: File of the model.
        settings: The combination.
        batches: Samples per step.
        reference_batch: Samples per step of plain training.
        seconds: Duration of the turns at each batch.
        settled: The methods' calibration from the combination's profiling runs.
    """
    torch.set_num_threads(1)
    known = load_workload(resolve_source(workload))
    plain = _training(known, Policy(micro_batch=reference_batch))
    own = _training(known, Policy(methods=settings, micro_batch=max(batches), settled=dict(settled or {})))
    lines = []
    reference = _stepper(plain, known.make_batch(reference_batch))
    for batch in sorted(batches, reverse=True):
        own.micro_batch = batch
        step = _stepper(own, known.make_batch(batch))
        for _ in range(2 + own.settling_steps):
            step()
        lines.append(_paired(settings, batch, step, reference, seconds))
    own.close()
    plain.close()
    return lines


def _training(workload: Workload, policy: Policy) -> Training:
    options = {name: value for name in _OPTIONS if (value := getattr(workload, name))}
    return apply_policy(policy, workload.build_model(), device="cpu", **options)


def _stepper(training: Training, batch: object) -> Callable[[], None]:
    def step() -> None:
        training.step(batch)

    return step


def _paired(
    settings: tuple[MethodSetting, ...],
    batch: int,
    step: Callable[[], None],
    reference: Callable[[], None],
    seconds: float,
) -> Paired:
    reference()
    alone, plain = _timed(step, 1), _timed(reference, 1)
    part = max(alone, plain, _SHORTEST_PART_SECONDS)
    own_steps, plain_steps = max(1, round(part / alone)), max(1, round(part / plain))
    logs: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(logs) < _GROUPS:
        if len(logs) % 2:  # Alternate who comes first, so that neither is always second.
            own = _timed(step, own_steps)
            plain = _timed(reference, plain_steps)
        else:
            plain = _timed(reference, plain_steps)
            own = _timed(step, own_steps)
        logs.append(math.log((own / own_steps) / (plain / plain_steps)))
    ratio, error = ratio_of(logs)
    return Paired(
        settings=settings,
        batch=batch,
        ratio=ratio,
        error=error,
        blocks=len(logs),
        seconds=round(time.perf_counter() - begin, 2),
    )


def ratio_of(logs: Sequence[float]) -> tuple[float, float]:
    """The ratio estimated from many log ratios, and its relative standard error.

    Args:
        logs: In the order of measurement; at least eight.
    """
    count = len(logs)
    groups = [logs[number * count // _GROUPS : (number + 1) * count // _GROUPS] for number in range(_GROUPS)]
    means = [statistics.median(group) for group in groups]
    error = statistics.stdev(means) / math.sqrt(_GROUPS)
    return math.exp(statistics.fmean(means)), max(_LEAST_ERROR, error)


def _timed(step: Callable[[], None], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - begin
