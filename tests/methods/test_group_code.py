"""Values in a few bits: right on the average, with exact extremes, zeros and signs where a backward pass needs them."""

from __future__ import annotations

import pytest
import torch

from advisor.measure.memory.live_storage import LiveStorages
from advisor.measure.memory.storages import HostData
from advisor.methods.activations._float8_code import Float8Coder
from advisor.methods.activations._group_code import GROUP, decode_groups, encode_groups
from advisor.methods.activations._private_random import Draws, mixed, uniform

over_bits = pytest.mark.parametrize("bits", [8, 4, 2])
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def coded(flat: torch.Tensor, bits: int, seed: int = 1) -> torch.Tensor:
    return decode_groups(encode_groups(flat, bits=bits, seed=seed), count=flat.numel(), dtype=flat.dtype, bits=bits)


def normal(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype)


def error(measured: torch.Tensor, exact: torch.Tensor) -> float:
    return float((measured - exact).norm() / exact.norm())


class TestGroups:
    @pytest.mark.parametrize(("bits", "smaller"), [(8, 3.88), (4, 7.53), (2, 14.22)])
    def test_the_size_is_that_of_the_codes_and_two_extremes_per_group(self, bits: int, smaller: float) -> None:
        flat = normal(64 * GROUP)
        assert flat.nbytes / encode_groups(flat, bits=bits, seed=1).nbytes == pytest.approx(smaller, abs=0.01)
        half = encode_groups(flat.bfloat16(), bits=bits, seed=1)
        assert half.nbytes == 64 * (GROUP * bits // 8 + 4)

    @pytest.mark.parametrize(("bits", "expected"), [(8, 0.009), (4, 0.15), (2, 0.77)])
    def test_the_error_of_one_draw_is_known_and_that_of_many_goes_to_zero(self, bits: int, expected: float) -> None:
        flat = normal(40 * GROUP)
        assert error(coded(flat, bits), flat) == pytest.approx(expected, rel=0.1)
        mean = torch.stack([coded(flat, bits, seed) for seed in range(256)]).mean(0)
        assert error(mean, flat) == pytest.approx(expected / 16, rel=0.1)

    @over_bits
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    def test_extremes_are_exact_and_everything_is_between_them(self, bits: int, dtype: torch.dtype) -> None:
        flat = normal(3 * GROUP, dtype)
        back = coded(flat, bits)
        assert back.dtype == dtype
        for group, again in zip(flat.view(-1, GROUP), back.view(-1, GROUP), strict=True):
            assert (again.min(), again.max()) == (group.min(), group.max())
            for extreme in (int(group.argmin()), int(group.argmax())):
                assert again[extreme] == group[extreme]

    @over_bits
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    def test_what_relu_returned_keeps_its_mask_and_is_right_on_the_average(self, bits: int, dtype: torch.dtype) -> None:
        """Trap: rounded to zero, a small positive value would lose its gradient, and never the other way round."""
        flat = normal(10 * GROUP, dtype).relu()
        draws = [coded(flat, bits, seed) for seed in range(64)]
        assert all(torch.equal(draw > 0, flat > 0) for draw in draws)
        mean = torch.stack(draws).double().mean(0)
        # Noise alone would leave an eighth; what comes back is rounded to the format of 16 bits besides.
        left = 0.4 if dtype.itemsize == 2 else 0.2
        assert error(mean, flat.double()) < left * error(draws[0].double(), flat.double())

    @over_bits
    def test_two_values_are_exact_whatever_they_are(self, bits: int) -> None:
        for pair in ([0.0, 1 / 0.9], [-torch.inf, 0.0], [torch.finfo().min, 0.0], [2.5, 2.5]):
            flat = torch.tensor(pair).repeat(200)
            assert torch.equal(coded(flat, bits), flat)

    @over_bits
    @pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
    def test_what_is_not_a_number_shows_in_its_group_and_nowhere_else(self, bits: int, broken: float) -> None:
        flat = normal(3 * GROUP)
        flat[GROUP + 5] = broken
        groups = coded(flat, bits).view(3, GROUP).isfinite().all(1)
        assert groups.tolist() == [True, False, True]

    @over_bits
    @pytest.mark.parametrize("count", [1, 255, 257, 4096 * GROUP + 3])
    def test_any_length_is_coded_and_chunks_do_not_show(self, bits: int, count: int) -> None:
        flat = normal(4096 * GROUP + 3)[:count]
        back = coded(flat, bits)
        assert back.shape == flat.shape
        start = (count - 1) // GROUP * GROUP
        assert flat[start:].min() <= back[start:].min() <= back[start:].max() <= flat[start:].max()
        assert error(back, flat) < 1.0


class TestFloat8:
    @pytest.mark.parametrize(("float8", "expected"), [(FLOAT8[0], 0.026), (FLOAT8[1], 0.052)])
    def test_the_size_and_the_error_are_known(self, float8: torch.dtype, expected: float) -> None:
        flat = normal(64 * GROUP + 5)
        buffer = Float8Coder(float8).encode(flat)
        assert buffer.nbytes == 65 * (GROUP + 4)
        back = Float8Coder(float8).decode(buffer, count=flat.numel(), dtype=flat.dtype)
        assert error(back, flat) == pytest.approx(expected, rel=0.1)

    @pytest.mark.parametrize("float8", FLOAT8)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_zeros_and_signs_are_exact_whatever_the_scale(self, float8: torch.dtype, dtype: torch.dtype) -> None:
        flat = (normal(4 * GROUP).relu() * torch.logspace(-3, 3, 4 * GROUP)).to(dtype)
        flat[0], flat[1] = 1e-3, 60000.0
        back = Float8Coder(float8).decode(Float8Coder(float8).encode(flat), count=flat.numel(), dtype=dtype)
        assert torch.equal(back.sign(), flat.sign())
        assert not coded_zeros(float8).count_nonzero()

    @pytest.mark.parametrize("float8", FLOAT8)
    def test_what_is_smaller_than_any_normal_number_stays_finite(self, float8: torch.dtype) -> None:
        for largest in torch.logspace(-43, -39, 50).tolist():
            flat = torch.full((GROUP,), largest)
            back = Float8Coder(float8).decode(Float8Coder(float8).encode(flat), count=GROUP, dtype=flat.dtype)
            assert back.max() <= 2 * largest


def coded_zeros(float8: torch.dtype) -> torch.Tensor:
    return Float8Coder(float8).decode(Float8Coder(float8).encode(torch.zeros(300)), count=300, dtype=torch.float32)


@pytest.mark.parametrize("code", ["groups", "float8"])
def test_what_coding_needs_beside_input_and_output_does_not_grow_with_them(code: str) -> None:
    """Trap: a method that saves memory and takes several times a tensor to do so raises the peak."""

    def extra(count: int) -> list[int]:
        flat = torch.zeros(count, dtype=torch.bfloat16)
        needed = []
        with LiveStorages(torch.device("cpu"), HostData()) as live:
            buffer = encode_groups(flat, bits=4, seed=1) if code == "groups" else Float8Coder(FLOAT8[0]).encode(flat)
            needed.append(live.peak_bytes - flat.nbytes - buffer.nbytes)  # A view of what was there counts it too.
        with LiveStorages(torch.device("cpu"), HostData()) as live:
            if code == "groups":
                back = decode_groups(buffer, count=count, dtype=flat.dtype, bits=4)
            else:
                back = Float8Coder(FLOAT8[0]).decode(buffer, count=count, dtype=flat.dtype)
            needed.append(live.peak_bytes - buffer.nbytes - back.nbytes)
        return needed

    assert extra(2**22) == extra(2**20)
    assert 0 < min(extra(2**20)) < max(extra(2**20)) < 12 * 2**20


class TestRandomNumbers:
    def test_they_are_uniform_and_torchs_generator_is_not_touched(self) -> None:
        before = torch.get_rng_state()
        numbers = uniform(100_000, seed=7, start=0, device=torch.device("cpu"))
        assert torch.equal(torch.get_rng_state(), before)
        assert float(numbers.min()) >= 0.0
        assert float(numbers.max()) < 1.0
        counts = torch.histc(numbers, 10, 0.0, 1.0)
        assert (counts - 10_000).abs().max() < 500
        assert float(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1].abs()) < 0.02

    def test_a_number_depends_on_where_it_is_alone(self) -> None:
        device = torch.device("cpu")
        whole = uniform(1000, seed=3, start=2**31 - 500, device=device)
        assert torch.equal(uniform(400, seed=3, start=2**31 + 100, device=device), whole[600:])
        assert float(whole[0]) == (mixed((2**31 - 500) ^ 3) >> 8) / 2**24
        assert not torch.equal(uniform(1000, seed=4, start=2**31 - 500, device=device).sort()[0], whole.sort()[0])

    def test_draws_differ_go_on_after_a_restart_and_differ_between_processes(self) -> None:
        first, second, other = Draws(), Draws(), Draws(stream=1)
        seeds = [first.next_seed() for _ in range(100)]
        second.from_plain({}, first.state_dict())
        assert second.next_seed() == first.next_seed()
        seeds += [other.next_seed() for _ in range(100)]
        assert len(set(seeds)) == len(seeds)
        assert all(0 <= seed < 2**32 for seed in seeds)
