"""Splits steps on several devices into phases, and these into computing and communicating, with torch's profiler.

A collective is seen where it is under way: on a CPU by gloo's own record of it, on a GPU by NCCL's kernel. What of it
no operator hides is what faster links would save, and what waiting for a slower device takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from advisor.measure.step_split import PhaseSplit, StepSplit
from advisor.phase import Phase
from advisor.replaced import replaced
from advisor.training.training import Training

__all__ = ["Span", "split_steps", "without"]

Span = tuple[float, float]
"""Begin and end."""

_MARK = "momadvise: "
_ON_HOST = ("gloo:", "c10d::", "_c10d_functional::")
_OPERATORS = ("aten::", "torch::")
_PER_SECOND = 1e6
"""A profiler counts microseconds."""


def split_steps(training: Training, step: Callable[[int], None], count: int, device: torch.device) -> StepSplit | None:
    """Split some steps; ``None`` if no communication was seen, so that nothing can be told apart.

    Args:
        training: Of several devices, its optimizer's state in place.
        step: Makes a step, given its number.
        count: How many.
        device: Where this process trains.
    """
    on_gpu = device.type == "cuda"

    def mark(name: str) -> None:
        if on_gpu:
            torch.cuda.synchronize(device)  # or the kernels of a phase would run in the next
        with record_function(_MARK + name):
            pass

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with (
        profile(activities=activities, acc_events=True) as profiler,
        replaced(training, phase_listener=lambda phase: mark(phase.value)),
    ):
        for index in range(count):
            step(index)
            mark(Phase.IDLE.value)
    marks: list[tuple[float, Phase]] = []
    communicating: list[Span] = []
    computing: list[Span] = []
    for event in profiler.events():
        span, on_host = (event.time_range.start, event.time_range.end), event.device_type.name == "CPU"
        if event.name.startswith(_MARK):
            if on_host:
                marks.append((span[0], Phase(event.name.removeprefix(_MARK))))
        elif on_host == on_gpu or (event.is_user_annotation and not on_host):
            continue  # what launched a kernel, or a name that spans several
        elif event.name.startswith(_ON_HOST) if on_host else "nccl" in event.name.lower():
            communicating.append(span)
        elif not on_host or event.name.startswith(_OPERATORS):
            computing.append(span)
    return _split(sorted(marks, key=lambda one: one[0]), communicating, computing, count) if communicating else None


def _split(marks: list[tuple[float, Phase]], communicating: list[Span], computing: list[Span], count: int) -> StepSplit:
    communicating, computing = _merged(communicating), _merged(computing)
    exposed = without(communicating, computing)
    busy = _merged((*communicating, *computing))
    spans_of: dict[Phase, list[Span]] = {}
    for (begin, phase), (end, _) in itertools.pairwise(marks):
        if phase is not Phase.IDLE:
            spans_of.setdefault(phase, []).append((begin, end))

    def seconds(spans: list[Span]) -> float:
        return sum(end - begin for begin, end in spans) / count / _PER_SECOND

    phases = [
        PhaseSplit(
            phase=phase,
            seconds=seconds(spans),
            communication_seconds=seconds(_common(spans, communicating)),
            exposed_seconds=seconds(_common(spans, exposed)),
            idle_seconds=seconds(without(spans, busy)),
        )
        for phase, spans in sorted(spans_of.items(), key=lambda one: list(Phase).index(one[0]))
    ]
    return StepSplit(phases=tuple(phases), steps=count)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The same time, in spans that do not touch, in order."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _common(spans: list[Span], others: list[Span]) -> list[Span]:
    return without(spans, without(spans, others))


def without(spans: list[Span], others: list[Span]) -> list[Span]:
    """What of some spans is in none of the others; both in order, and none touches another of its own."""
    left: list[Span] = []
    first = 0
    for begin, end in spans:
        while first < len(others) and others[first][1] <= begin:
            first += 1
        at = first
        while at < len(others) and others[at][0] < end:
            if others[at][0] > begin:
                left.append((begin, others[at][0]))
            begin = max(begin, others[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left
