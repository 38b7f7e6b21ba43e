"""Rounding to 16 bits: exact where it can be, right on the average where it cannot."""

from __future__ import annotations

import pytest
import torch

from advisor.methods.formats._rounding import Rounding

SHORT = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("number", [1.001, -1.001, 3.1416, -0.007])
def test_a_number_goes_to_one_of_the_two_around_it_so_that_the_mean_is_right(dtype: torch.dtype, number: float) -> None:
    rounded = Rounding(stochastic=True).round(torch.full((100_000,), number), dtype).double()
    around = rounded.unique()
    assert len(around) == 2
    assert around[0] < number < around[1]
    assert abs(float(rounded.mean()) - number) < 0.01 * float(around[1] - around[0])


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("stochastic", [True, False])
def test_a_number_that_the_format_has_stays(dtype: torch.dtype, stochastic: bool) -> None:
    source = torch.tensor([0.0, -0.0, 1.0, -1.5, 0.25, float("inf"), -float("inf")])
    assert torch.equal(Rounding(stochastic=stochastic).round(source, dtype).float(), source)


@pytest.mark.parametrize("dtype", SHORT)
def test_nothing_that_is_no_number_becomes_one(dtype: torch.dtype) -> None:
    """Trap: GPUs write a NaN with all bits set, which with anything added to it is minus zero."""
    source = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert source.isnan().all()
    assert Rounding(stochastic=True).round(source, dtype).isnan().all()


def test_float16_below_its_normal_numbers_is_rounded_to_the_nearest() -> None:
    source = torch.full((1000,), 2.2 * 2.0**-24)
    assert set(Rounding(stochastic=True).round(source, torch.float16).double().tolist()) == {2.0**-23}


def test_random_numbers_go_on_from_a_saved_state_and_touch_no_others() -> None:
    source = torch.full((100,), 1.001)
    first, second = Rounding(stochastic=True), Rounding(stochastic=True)
    before = torch.random.get_rng_state()
    one = first.round(source, torch.bfloat16)
    second.from_plain({}, first.state_dict())
    two = first.round(source, torch.bfloat16)
    assert not torch.equal(one, two)
    assert torch.equal(second.round(source, torch.bfloat16), two)
    assert torch.equal(torch.random.get_rng_state(), before)
