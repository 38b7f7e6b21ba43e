from __future__ import annotations

import pytest
import torch

from advisor.measure.speed import arithmetic

CPU = torch.device("cpu")


def rates_of(monkeypatch: pytest.MonkeyPatch, seconds: dict[torch.dtype, list[float]]) -> dict[str, float]:
    """Rates of products that take given times; the last repeats."""

    def timed(matrix: torch.Tensor) -> float:
        times = seconds[matrix.dtype]
        return times.pop(0) if len(times) > 1 else times[0]

    monkeypatch.setattr(arithmetic, "_timed", timed)
    return arithmetic.matmul_rates(CPU)


def test_a_first_product_that_loads_its_kernels_does_not_look_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: loading took a second, and bfloat16 would be refused on hardware made for it."""
    times = {torch.float32: [0.01], torch.bfloat16: [1.0, 0.02, 0.001], torch.float16: [1.0, 0.3]}
    rates = rates_of(monkeypatch, times)
    work = 2 * arithmetic.matrix_size(CPU) ** 3
    assert rates["bfloat16"] == pytest.approx(work / 0.001)
    assert rates["float16"] == pytest.approx(work / 0.3)


def test_what_disturbs_the_processor_for_a_while_makes_no_format_look_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: ten products of bfloat16 within two milliseconds ran at less than half its rate, and nothing tried it."""
    turns: list[torch.dtype] = []

    def timed(matrix: torch.Tensor) -> float:
        turns.append(matrix.dtype)
        return 5e-4 if len(turns) < 60 else 2e-4 if matrix.dtype == torch.float32 else 1e-4

    monkeypatch.setattr(arithmetic, "_timed", timed)
    rates = arithmetic.matmul_rates(CPU)
    assert rates["bfloat16"] == pytest.approx(2 * rates["float32"])
    assert turns.count(torch.bfloat16) == turns.count(torch.float32), "they take turns"


def test_an_emulated_format_costs_two_products(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {torch.float32: [0.01], torch.float16: [0.01], torch.bfloat16: [0.5, 0.4, 0.0]}
    assert rates_of(monkeypatch, times)["bfloat16"] == pytest.approx(2 * arithmetic.matrix_size(CPU) ** 3 / 0.4)
    assert times[torch.bfloat16] == [0.0]


def test_every_format_of_this_device_has_a_rate() -> None:
    rates = arithmetic.matmul_rates(torch.device("cpu"))
    assert {"float32", "bfloat16"} <= set(rates)
    assert rates["float32"] > 1e8
