"""How fast the device multiplies matrices in every number format: shows which formats it only emulates."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

__all__ = ["matmul_rates", "matrix_size"]

_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FEW_THREADS = 4
_ENOUGH_SECONDS = 0.1
"""A product that takes longer is emulated: more repetitions would cost much and change little. On others no more time
than this is spent: one of many is left undisturbed even on a busy processor."""
_ROUNDS, _REPETITIONS = 20, 10
"""The formats take turns, a few products at a time: what disturbs a processor lasts longer than ten products of a
small matrix, and would make the one format whose turn it is look emulated."""


def matmul_rates(device: torch.device, formats: Iterable[str] = tuple(_FORMATS)) -> dict[str, float]:
    """Floating-point operations per second of a large square matrix product, by number format.

    The fastest of many products counts, in turn with those of the other formats; the first, which also loads its
    kernels, never decides alone. A format that the device cannot multiply at all is left out.
    """
    size = matrix_size(device)
    times = {}
    matrices = {}
    for name in formats:
        try:
            matrix = torch.ones(size, size, dtype=_FORMATS[name], device=device)
            times[name] = _first(matrix)
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            continue
        if min(times[name]) <= _ENOUGH_SECONDS:
            matrices[name] = matrix
    for _ in range(_ROUNDS):
        for name, matrix in matrices.items():
            for _ in range(_REPETITIONS):
                if sum(times[name][1:]) < _ENOUGH_SECONDS:
                    times[name].append(_timed(matrix))
    return {name: 2 * size**3 / min(seconds) for name, seconds in times.items()}


def matrix_size(device: torch.device) -> int:
    """Rows and columns of the matrices.

    On a CPU a product is shorter than an operating system's time slice: otherwise, where other programs run, each would
    be interrupted. Many threads need more work to share.
    """
    if device.type == "cuda":
        return 4096
    return 256 if torch.get_num_threads() <= _FEW_THREADS else 512


def _first(matrix: torch.Tensor) -> list[float]:
    """Seconds of the first products: of two if the first was slow, as the kernels may have been loaded on the way."""
    times = [_timed(matrix)]
    if times[0] > _ENOUGH_SECONDS:
        times.append(_timed(matrix))
    return times


def _timed(matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    product = matrix @ matrix
    if matrix.device.type == "cuda":
        torch.cuda.synchronize(matrix.device)
    seconds = time.perf_counter() - begin
    del product
    return seconds
