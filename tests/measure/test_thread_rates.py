"""The rates of a CPU by the number of threads, and which of them other programs do not disturb."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from advisor.measure.speed.thread_rates import sharing_among, thread_rates, undisturbed_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


def test_every_smaller_power_of_two_and_the_processes_own_number_have_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.measure.speed.thread_rates._WINDOW_SECONDS", 0.001)
    rates = thread_rates(CPU)
    assert list(rates) == [1, 2, 4, 6]
    assert all(rate > 0 for rate in rates.values())
    assert torch.get_num_threads() == 6, "as it was"


def test_a_gpu_and_a_single_thread_have_none() -> None:
    assert thread_rates(torch.device("cuda")) == {}
    with sharing_among(1):
        assert thread_rates(CPU) == {}


def test_all_threads_are_undisturbed_unless_fewer_are_clearly_faster() -> None:
    assert undisturbed_threads({1: 9_000.0, 2: 17_000.0}) == 2
    assert undisturbed_threads({1: 9_000.0, 2: 8_500.0}) == 2, "small operators are not worth sharing: nobody disturbs"


def test_beside_a_program_that_keeps_a_core_busy_fewer_are() -> None:
    """Measured with two threads on two cores, one of which another process kept busy."""
    assert undisturbed_threads({1: 7_299.0, 2: 96.0}) == 1
    assert undisturbed_threads({1: 9_000.0, 2: 17_000.0, 4: 30_000.0, 8: 900.0}) == 4


def test_a_process_with_one_thread_keeps_it() -> None:
    with sharing_among(1):
        assert undisturbed_threads({}) == 1


def test_the_number_is_as_before_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), sharing_among(2):
        _ = 1 / 0
    assert torch.get_num_threads() == 6
