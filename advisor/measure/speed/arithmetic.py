"""How fast the device multiplies matrices in every number format: shows which formats it only emulates."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

__all__ = ["matmul_rates", "matrix_size"]

_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FEW_THREADS = 4
_REPETITIONS = 10
_ENOUGH_SECONDS = 0.1
"""A product that takes longer is emulated: more repetitions would cost much and change little. On others no more time
than this is spent: one of many is left undisturbed even on a busy processor."""


def matmul_rates(device: torch.device, formats: Iterable[str] = tuple(_FORMATS)) -> dict[str, float]:
    """Floating-point operations per second of a large square matrix product, by number format.

    The fastest of a few products counts; the first, which also loads its kernels, never decides alone. A format that
    the device cannot multiply at all is left out.
    """
    size = matrix_size(device)
    rates = {}
    for name in formats:
        try:
            seconds = _fastest(size, _FORMATS[name], device)
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            continue
        rates[name] = 2 * size**3 / seconds
    return rates


def matrix_size(device: torch.device) -> int:
    """Rows and columns of the matrices.

    On a CPU a product is shorter than an operating system's time slice: otherwise, where other programs run, each would
    be interrupted. Many threads need more work to share.
    """
    if device.type == "cuda":
        return 4096
    return 256 if torch.get_num_threads() <= _FEW_THREADS else 512


def _fastest(size: int, dtype: torch.dtype, device: torch.device) -> float:
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    fastest = _timed(matrix)
    if fastest > _ENOUGH_SECONDS:  # emulated, or the kernels were loaded on the way: a second product tells
        fastest = min(fastest, _timed(matrix))
    if fastest > _ENOUGH_SECONDS:
        return fastest
    times = [_timed(matrix)]
    while len(times) < _REPETITIONS and sum(times) < _ENOUGH_SECONDS:
        times.append(_timed(matrix))
    return min(times)


def _timed(matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    product = matrix @ matrix
    if matrix.device.type == "cuda":
        torch.cuda.synchronize(matrix.device)
    seconds = time.perf_counter() - begin
    del product
    return seconds
