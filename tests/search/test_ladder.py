"""The climb to the largest size: the true boundary, in few measurements, whatever throughput and memory do."""

import math
from collections.abc import Callable

import pytest

from advisor.search.sizing.ladder import Climb, Reached
from advisor.search.sizing.size_ladder import Rung, chain_of, worth
from advisor.workload.sizes import CountedSize, SizeCounts

LIMIT = 10_000_000


def rungs(count: int, *, growth: float = 1.3) -> list[Rung]:
    return [Rung(size={"layers": i + 1}, parameter_count=int(1000 * growth**i)) for i in range(count)]


class Machine:
    """Runs a size: throughput and memory of its parameter count; remembers what was run."""

    def __init__(
        self, rungs: list[Rung], rate: Callable[[Rung], float], need: Callable[[Rung], float] = lambda rung: 0.0
    ) -> None:
        self.rungs, self.rate, self.need = rungs, rate, need
        self.ran: list[int] = []

    def reach(self, index: int, floor: float) -> Reached:
        self.ran.append(index)
        rung = self.rungs[index]
        need = int(self.need(rung))
        if need > LIMIT:
            return Reached(kept=False)
        rate = self.rate(rung)
        return Reached(
            kept=rate >= floor, samples_per_second=rate, need_bytes=need, fixed_bytes=int(16 * rung.parameter_count)
        )

    def climb(self, floor: float, *, own: int | None = None, above: int = -1) -> Climb:
        climb = Climb(self.rungs, floor=floor, limit_bytes=LIMIT, above=above)
        if own is not None:
            climb.tell(own, self.reach(own, floor))
        while (index := climb.next()) is not None:
            assert index not in self.ran, "no size is run twice"
            climb.tell(index, self.reach(index, floor))
        return climb


def counted(parameters: int | None, **size: int) -> CountedSize:
    return CountedSize(size=dict(size), parameter_count=parameters, error="" if parameters else "it cannot be built")


def test_the_chain_is_ordered_by_parameters_then_by_the_values_of_the_size() -> None:
    counts = SizeCounts(
        own=counted(50, layers=1, pixels=32),
        listed=(
            counted(90, layers=2, pixels=32),
            counted(50, layers=1, pixels=64),
            counted(50, layers=1, pixels=32),
            counted(None, layers=3, pixels=32),
            counted(40, layers=0, pixels=96),
        ),
    )
    assert [tuple(rung.size.values()) for rung in chain_of(counts)] == [(0, 96), (1, 32), (1, 64), (2, 32)]


def test_an_own_size_that_no_argument_tells_is_a_size_of_its_own() -> None:
    chain = chain_of(SizeCounts(own=counted(60), listed=(counted(50, layers=1), counted(90, layers=2))))
    assert [rung.size for rung in chain] == [{"layers": 1}, {}, {"layers": 2}]


@pytest.mark.parametrize("boundary", range(-1, 40))
def test_the_boundary_is_found_wherever_it_is_in_a_logarithmic_number_of_runs(boundary: int) -> None:
    """A cliff that no prediction foresees: throughput is flat, then gone."""
    machine = Machine(rungs(40), lambda rung: 100.0 if rung.size["layers"] <= boundary + 1 else 1.0)
    climb = machine.climb(50.0)
    assert climb.best == (boundary if boundary >= 0 else None)
    assert len(machine.ran) <= 4 * math.ceil(math.log2(41))


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("boundary", [5, 17, 33])
def test_where_throughput_falls_as_a_power_of_the_size_four_runs_besides_the_own_size_suffice(
    power: float, boundary: int
) -> None:
    chain = rungs(40)
    floor = 1e6 * chain[boundary].parameter_count ** -power * 0.99
    machine = Machine(chain, lambda rung: 1e6 * rung.parameter_count**-power)
    climb = machine.climb(floor, own=2)
    assert climb.best == boundary
    assert len(machine.ran) <= 1 + 4


def test_where_memory_is_the_limit_sizes_that_cannot_fit_are_never_run() -> None:
    chain = rungs(40)
    machine = Machine(chain, lambda rung: 100.0, need=lambda rung: 50_000 + 40 * rung.parameter_count)
    climb = machine.climb(1.0, own=0)
    largest = max(i for i, rung in enumerate(chain) if machine.need(rung) <= LIMIT)
    assert climb.best == largest
    assert max(machine.ran) == largest
    assert climb.screened == (largest + 1, pytest.approx(machine.need(chain[largest + 1]), rel=0.01))


def test_memory_that_grows_faster_than_predicted_ends_in_an_out_of_memory_not_in_a_loop() -> None:
    chain = rungs(30)
    machine = Machine(chain, lambda rung: 100.0, need=lambda rung: 0.01 * rung.parameter_count**2)
    climb = machine.climb(1.0, own=0)
    assert climb.best == max(i for i, rung in enumerate(chain) if machine.need(rung) <= LIMIT)
    assert len(machine.ran) <= 4 * math.ceil(math.log2(31))


def test_noise_moves_the_answer_by_a_size_at_most_and_not_the_number_of_runs() -> None:
    chain = rungs(40)

    def noisy(rung: Rung) -> float:
        return 1e6 / rung.parameter_count * (1.1 if rung.parameter_count % 2 else 0.9)

    floor = 1e6 / chain[20].parameter_count
    machine = Machine(chain, noisy)
    climb = machine.climb(floor, own=3)
    assert climb.best in (19, 20)
    assert len(machine.ran) <= 4 * math.ceil(math.log2(41))


def test_a_floor_that_no_size_meets_is_found_out_from_below() -> None:
    machine = Machine(rungs(40), lambda rung: 1e3 / rung.parameter_count)
    climb = machine.climb(1e9, own=20)
    assert climb.best is None
    assert 0 in machine.ran
    assert len(machine.ran) <= 1 + 4 * math.ceil(math.log2(41))


def test_whoever_cannot_beat_the_record_by_one_size_is_done_after_that_one() -> None:
    machine = Machine(rungs(40), lambda rung: 1e6 / rung.parameter_count)
    floor = 1e6 / rungs(40)[10].parameter_count
    climb = machine.climb(floor, above=12)
    assert machine.ran == [13]
    assert climb.best is None


def test_whoever_beats_the_record_climbs_on() -> None:
    chain = rungs(40)
    machine = Machine(chain, lambda rung: 1e6 / rung.parameter_count)
    climb = machine.climb(1e6 / chain[25].parameter_count, above=12)
    assert machine.ran[0] == 13
    assert climb.best == 25
    assert len(machine.ran) <= 5


GRID = [
    Rung(size={"layers": layers, "pixels": pixels}, parameter_count=1000 * layers)
    for layers in (1, 2, 4, 8)
    for pixels in (32, 64, 128)
]


def test_the_most_parameters_come_before_larger_images() -> None:
    """The trap: along the chain a small model with large images is slower than a large one with small images."""
    machine = Machine(GRID, lambda rung: 1e6 / (rung.size["layers"] * rung.size["pixels"] ** 2))
    floor = 1e6 / (4 * 64**2) * 0.99
    climb = machine.climb(floor, own=0)
    assert climb.best is not None
    assert GRID[climb.best].size == {"layers": 8, "pixels": 32}
    assert len(machine.ran) <= 6


def test_a_deep_narrow_model_that_is_too_slow_does_not_rule_out_a_shallow_wide_one() -> None:
    shapes = [
        Rung(size={"layers": layers, "width": width}, parameter_count=layers * width**2)
        for layers in (2, 4, 8, 16)
        for width in (64, 100, 150, 225)
    ]
    shapes.sort(key=lambda rung: rung.order)
    machine = Machine(shapes, lambda rung: 1000.0 / rung.size["layers"] if rung.size["layers"] < 16 else 1.0)
    floor = 1000.0 / 4
    climb = machine.climb(floor, own=0)
    assert climb.best is not None
    assert shapes[climb.best].size == {"layers": 4, "width": 225}
    assert len(machine.ran) <= 9


def test_among_equal_parameter_counts_the_largest_image_wins() -> None:
    same = [Rung(size={"pixels": pixels}, parameter_count=5000 + pixels // 32) for pixels in (32, 48, 64, 96, 128)]
    machine = Machine(same, lambda rung: 1e6 / rung.size["pixels"] ** 2)
    climb = machine.climb(1e6 / 96**2, own=0)
    assert climb.best == 3
    assert worth(same, 3) == 4


def test_the_worth_tells_failures_apart_by_how_near_they_came_to_the_floor() -> None:
    chain = rungs(4)
    assert worth(chain, 2) == chain[2].parameter_count
    assert worth(chain, 3, 0.5) < worth(chain, 3, 0.9) < worth(chain, 3)
