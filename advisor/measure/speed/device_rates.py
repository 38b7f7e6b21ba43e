"""How fast this device multiplies, convolves, moves bytes and begins operators, measured in about a second.

As in :mod:`torch.utils.benchmark`, the first run does not count and the fastest of several does: what disturbs a
measurement only ever makes it slower.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from advisor.hardware.rates import Bandwidth, DeviceRates
from advisor.measure.speed.arithmetic import matmul_rates
from advisor.measure.speed.thread_rates import sharing_among, thread_rates, undisturbed_threads
from advisor.replaced import replaced
from advisor.training.out_of_memory import is_out_of_memory

__all__ = ["device_rates"]

_LEAST_SECONDS = 1e-3
"""A run repeats what it times until it takes this long: longer than reading a clock, shorter than a time slice of the
operating system, so that some runs are left undisturbed."""
_MOST_REPETITIONS = 64
_FEWEST_RUNS = 3
_MOST_RUNS = 20
_ENOUGH_SECONDS = 0.03

_MIB = 2**20
_TENSOR_BYTES = {"cuda": (64 * _MIB,), "cpu": (_MIB // 4, 4 * _MIB, 16 * _MIB, 32 * _MIB)}
"""In and out of the caches of a CPU, up to where its C library asks the system for every block. On a GPU smaller copies
take as long as their launch, and larger ones may not fit beside the training."""
_LINK_BYTES = 64 * _MIB

_CONVOLUTION = {"cuda": (32, 128, 56), "cpu": (8, 32, 28)}
"""Samples, channels in and out, height and width: a 3 x 3 layer of a residual network."""
_TINY_LAYERS = 64

_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_USELESS_BELOW = 0.25
"""A format whose products run below this share of float32's is emulated; its convolutions are not waited for."""


def device_rates(device: torch.device, threads: Mapping[int, float] | None = None) -> DeviceRates:
    """Measure the rates of a device.

    Rates by number of threads may have been measured already. The others are those of the number that nothing disturbs:
    with more, they would be those of a disturbed CPU.

    Raises:
        torch.OutOfMemoryError: The device has no room for the tensors, about 128 MiB on a GPU.
    """
    threads = thread_rates(device) if threads is None else threads
    with sharing_among(undisturbed_threads(threads)):
        return _rates(device, dict(threads))


def _rates(device: torch.device, threads: dict[int, float]) -> DeviceRates:
    products = matmul_rates(device)
    if device.type == "cuda":
        products |= _tensor_core_rates(device)
    useful = [name for name in _FORMATS if products.get(name, 0.0) >= _USELESS_BELOW * products["float32"]]
    bandwidth, fresh_bandwidth = _bandwidths(device)
    to_device, to_host = _links(device) if device.type == "cuda" else (None, None)
    return DeviceRates(
        matmul_flops_per_second=products,
        convolution_flops_per_second=_convolution_rates(useful, device, has_tf32="tf32" in products),
        bandwidth=bandwidth,
        fresh_bandwidth=fresh_bandwidth,
        function_bytes_per_second=_result_rate(torch.Tensor.tanh_, device),
        random_bytes_per_second=_result_rate(torch.Tensor.bernoulli_, device),
        to_device_bytes_per_second=to_device,
        to_host_bytes_per_second=to_host,
        launch_seconds=_launch_seconds(device),
        thread_rates=threads,
        measured=True,
    )


def _fastest(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one ``run``, the least of several; the first is not timed."""

    def timed(repetitions: int) -> float:
        _synchronize(device)
        begin = time.perf_counter()
        for _ in range(repetitions):
            run()
        _synchronize(device)
        return (time.perf_counter() - begin) / repetitions

    timed(1)
    repetitions = min(_MOST_REPETITIONS, max(1, round(_LEAST_SECONDS / max(timed(1), 1e-9))))
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _FEWEST_RUNS or (len(times) < _MOST_RUNS and time.perf_counter() - begin < _ENOUGH_SECONDS):
        times.append(timed(repetitions))
    return min(times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _bandwidths(device: torch.device) -> tuple[Bandwidth, Bandwidth]:
    """Of copies between tensors that exist, and of the writing of new ones; by the bytes touched."""
    sizes = _TENSOR_BYTES.get(device.type, _TENSOR_BYTES["cpu"])
    copying, writing = [], []
    for size in sizes:
        source, target = (torch.ones(size // 4, device=device) for _ in range(2))
        copying.append(2 * size / _fastest(functools.partial(target.copy_, source), device))
        del target
        writing.append(size / _fastest(functools.partial(torch.ones_like, source), device))
    return (
        Bandwidth(sizes=tuple(2.0 * size for size in sizes), bytes_per_second=tuple(copying)),
        Bandwidth(sizes=tuple(float(size) for size in sizes), bytes_per_second=tuple(writing)),
    )


def _result_rate(operator: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> float:
    """Bytes per second of the results of an in-place operator on a tensor that lies in a CPU's cache."""
    size = _TENSOR_BYTES.get(device.type, _TENSOR_BYTES["cpu"])[0]
    tensor = torch.ones(size // 4, device=device)
    return size / _fastest(lambda: operator(tensor), device)


def _links(device: torch.device) -> tuple[float, float]:
    """Of copies from pinned host memory to the device, and back."""
    host = torch.ones(_LINK_BYTES // 4, pin_memory=True)
    target = torch.empty_like(host, device=device)
    there = _fastest(lambda: target.copy_(host, non_blocking=True), device)
    back = _fastest(lambda: host.copy_(target, non_blocking=True), device)
    return _LINK_BYTES / there, _LINK_BYTES / back


def _convolution_rates(formats: Iterable[str], device: torch.device, *, has_tf32: bool) -> dict[str, float]:
    """By format. On a GPU that has TF32, torch's own setting lets convolutions of float32 use it."""
    rates = {}
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    for name in (*formats, *(["tf32"] if has_tf32 else [])):
        precision = {"fp32_precision": "tf32" if name == "tf32" else "ieee"} if has_tf32 else {}
        with replaced(convolutions, **precision):
            rates[name] = _convolution_rate(_FORMATS.get(name, torch.float32), device)
    return rates


def _convolution_rate(dtype: torch.dtype, device: torch.device) -> float:
    samples, channels, side = _CONVOLUTION.get(device.type, _CONVOLUTION["cpu"])
    images = torch.ones(samples, channels, side, side, dtype=dtype, device=device)
    weight = torch.ones(channels, channels, 3, 3, dtype=dtype, device=device)
    seconds = _fastest(lambda: torch.nn.functional.conv2d(images, weight, padding=1), device)
    return 2 * 9 * channels**2 * samples * side**2 / seconds


def _launch_seconds(device: torch.device) -> float:
    """Per operator of a training whose tensors are tiny: what Python, autograd and the device's queue take."""
    layers = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(_TINY_LAYERS)))
    weight = torch.ones(8, device=device, requires_grad=True)

    def step() -> None:
        torch.autograd.grad(layers(weight).sum(), weight)

    return _fastest(step, device) / (2 * _TINY_LAYERS)


def _tensor_core_rates(device: torch.device) -> dict[str, float]:
    """Of the formats that only GPUs have, as far as this one has them: float32 products in TF32, and float8."""
    capability = torch.cuda.get_device_capability(device)
    rates = {}
    if capability >= (8, 0):
        with replaced(torch.backends.cuda.matmul, fp32_precision="tf32"):
            rates["tf32"] = matmul_rates(device, ("float32",))["float32"]
    if capability >= (8, 9):
        try:
            rates["float8"] = _float8_rate(device)
        except RuntimeError as error:  # this build's library has no such kernel: nothing multiplies in float8 here
            if is_out_of_memory(error):
                raise
    return rates


def _float8_rate(device: torch.device, size: int = 4096) -> float:
    matrix = torch.ones(size, size, device=device).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)

    def product() -> torch.Tensor:  # the kernel wants its second matrix stored by columns
        return torch._scaled_mm(matrix, matrix.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return 2 * size**3 / _fastest(product, device)
