"""How fast a CPU works through small operators by the number of threads that share each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

__all__ = ["sharing_among", "thread_rates", "undisturbed_threads"]

_ROUNDS = 4
_WINDOW_SECONDS = 0.03
"""Several of an operating system's time slices, so that waiting counts as it does in a training: the mean, not the
fastest."""

_SIDE = 256
_ELEMENTS = 2**18
_CLEARLY = 1.25
"""Speedup by fewer threads that only other programs or a quota of cores explain."""


def thread_rates(device: torch.device) -> dict[int, float]:
    """Operators per second with torch's default number of threads, and with each smaller power of two.

    Empty for anything but a CPU, and for a single thread.
    """
    most = torch.get_num_threads()
    if device.type != "cpu" or most == 1:
        return {}
    counts = [count for count in (2**power for power in range(most.bit_length())) if count < most] + [most]
    matrix, vector = torch.ones(_SIDE, _SIDE), torch.ones(_ELEMENTS)
    done, seconds = dict.fromkeys(counts, 0), dict.fromkeys(counts, 0.0)
    for turn in range(1 + _ROUNDS):
        for count in counts:
            with sharing_among(count):
                begin = time.perf_counter()
                repetitions = 0
                while (elapsed := time.perf_counter() - begin) < _WINDOW_SECONDS:
                    _ = matrix @ matrix
                    vector.add_(1.0).mul_(0.5)
                    repetitions += 1
            if turn > 0:  # in the first one threads are started and kernels loaded
                done[count] += 3 * repetitions
                seconds[count] += elapsed
    return {count: done[count] / seconds[count] for count in counts}


def undisturbed_threads(rates: Mapping[int, float]) -> int:
    """The number of threads at which other rates of the device are not those of whatever disturbs it."""
    if not rates:
        return torch.get_num_threads()
    fastest = max(rates, key=lambda count: rates[count])
    most = max(rates)
    return fastest if rates[fastest] > _CLEARLY * rates[most] else most


@contextmanager
def sharing_among(count: int) -> Iterator[None]:
    """So many threads share an operator inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
