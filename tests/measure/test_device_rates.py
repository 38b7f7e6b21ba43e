from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from advisor.hardware.rates import DeviceRates
from advisor.measure.speed import device_rates as measured

CPU = torch.device("cpu")


def test_every_rate_of_this_device_is_measured() -> None:
    rates = measured.device_rates(CPU)
    assert rates.measured
    assert rates.matmul("float32") > 1e8
    assert rates.convolution_flops_per_second["float32"] > 1e8
    assert all(rate > 1e7 for rate in (*rates.bandwidth.bytes_per_second, *rates.fresh_bandwidth.bytes_per_second))
    assert rates.function_bytes_per_second is not None
    assert rates.random_bytes_per_second is not None
    assert rates.launch_seconds is not None
    assert 1e-8 < rates.launch_seconds < 1e-2
    assert (rates.to_device_bytes_per_second, rates.to_host_bytes_per_second) == (None, None)
    assert msgspec.json.decode(msgspec.json.encode(rates), type=DeviceRates) == rates


def test_the_products_are_measured_once_and_emulated_formats_are_not_convolved(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def products(device: torch.device) -> dict[str, float]:
        calls.append(device)
        return {"float32": 1e11, "bfloat16": 1e9, "float16": 9e10}

    convolved: list[torch.dtype] = []
    monkeypatch.setattr(measured, "matmul_rates", products)
    monkeypatch.setattr(measured, "_convolution_rate", lambda dtype, device: convolved.append(dtype) or 1.0)
    monkeypatch.setattr(measured, "_fastest", lambda run, device: 1e-3)
    rates = measured.device_rates(CPU)
    assert calls == [CPU]
    assert rates.matmul_flops_per_second == {"float32": 1e11, "bfloat16": 1e9, "float16": 9e10}
    assert convolved == [torch.float32, torch.float16]


def test_convolutions_of_float32_and_of_tf32_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: torch lets cuDNN use TF32 where products do not, so that what looks like float32 is not."""
    convolutions: Any = torch.backends.cudnn.conv
    before = convolutions.fp32_precision

    def rate(dtype: torch.dtype, device: torch.device) -> float:
        assert dtype == torch.float32
        return {"ieee": 1.0, "tf32": 8.0}[convolutions.fp32_precision]

    monkeypatch.setattr(measured, "_convolution_rate", rate)
    rates = measured._convolution_rates(["float32"], torch.device("cuda:0"), has_tf32=True)
    assert rates == {"float32": 1.0, "tf32": 8.0}
    assert convolutions.fp32_precision == before


def test_bytes_per_second_follow_from_the_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_fastest", lambda run, device: 0.5)
    bandwidth, fresh = measured._bandwidths(CPU)
    assert bandwidth.bytes_per_second == tuple(2 * size for size in bandwidth.sizes), "a copy touches two tensors"
    assert fresh.bytes_per_second == tuple(2 * size for size in fresh.sizes)
    assert [size / 2 for size in bandwidth.sizes] == list(fresh.sizes)


def test_the_first_run_and_what_disturbs_one_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    taken = iter([0.5, 0.002, *[0.03, 0.01, 0.02]])

    def run() -> None:
        now[0] += next(taken)

    monkeypatch.setattr(measured.time, "perf_counter", lambda: now[0])
    assert measured._fastest(run, CPU) == pytest.approx(0.01)
    assert next(taken, None) is None, "a run that takes long enough by itself is neither repeated nor often taken"


def test_short_runs_are_repeated_and_taken_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, runs = [0.0], []

    def run() -> None:
        runs.append(now[0])
        now[0] += 1e-4

    monkeypatch.setattr(measured.time, "perf_counter", lambda: now[0])
    assert measured._fastest(run, CPU) == pytest.approx(1e-4)
    assert len(runs) == 1 + 1 + 20 * 10


# ---- formats that only GPUs have, without one


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU whose TF32 products are eight times as fast; what the process lets products be is looked at."""

    def products(device: torch.device, formats: tuple[str, ...]) -> dict[str, float]:
        rate = 8e11 if torch.backends.cuda.matmul.fp32_precision == "tf32" else 1e11
        return dict.fromkeys(formats, rate)

    monkeypatch.setattr(measured, "matmul_rates", products)
    monkeypatch.setattr(measured, "_float8_rate", lambda device: 16e11)
    return monkeypatch


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 0), {}), ((8, 0), {"tf32": 8e11}), ((9, 0), {"tf32": 8e11, "float8": 16e11})],
)
def test_a_gpu_is_asked_for_the_formats_of_its_generation(
    on_gpu: pytest.MonkeyPatch, capability: tuple[int, int], expected: dict[str, float]
) -> None:
    on_gpu.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    before = torch.backends.cuda.matmul.fp32_precision
    assert measured._tensor_core_rates(torch.device("cuda:0")) == expected
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_a_format_that_the_library_refuses_is_left_out(on_gpu: pytest.MonkeyPatch) -> None:
    def refuses(device: torch.device) -> float:
        raise RuntimeError("no kernel")

    on_gpu.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    on_gpu.setattr(measured, "_float8_rate", refuses)
    assert measured._tensor_core_rates(torch.device("cuda:0")) == {"tf32": 8e11}
