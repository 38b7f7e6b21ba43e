"""A space of thirty-five methods: never listed, and searched all the same."""

from __future__ import annotations

import itertools
import random

import pytest

from advisor.goal import Fidelity
from advisor.hardware.mesh import MeshAxis
from advisor.methods.setting import MethodSetting, use
from advisor.search.space.explored import Explored
from advisor.search.space.space import MOST_COUNTED, Axis, Combination, Count, ResolvedSpace, pair_of
from advisor.search.study.sampler import Proposer


def axes(count: int, settings: int = 3) -> tuple[Axis, ...]:
    names = [f"method_{number:02d}" for number in range(count)]
    return tuple(
        Axis(method=name, settings=tuple(use(name, level=level) for level in range(settings))) for name in names
    )


def space(
    of: tuple[Axis, ...],
    *,
    groups: tuple[int, ...] = (),
    single: int = 0,
    gpu_counts: tuple[int, ...] = (1,),
    fractions: tuple[float, ...] = (1.0, 0.5),
) -> ResolvedSpace:
    """Methods of which those in a group decide the same, and further conflicts between single settings."""
    conflicts = {}
    first = 0
    for size in groups:
        for one, other in itertools.combinations(of[first : first + size], 2):
            for pair in itertools.product(one.settings, other.settings):
                conflicts[pair_of(*pair)] = "both decide"
        first += size
    generator = random.Random(0)
    for _ in range(single):
        one, other = generator.sample(of, 2)
        conflicts[pair_of(generator.choice(one.settings), generator.choice(other.settings))] = "declared"
    return ResolvedSpace(
        name="many",
        fidelity=Fidelity.LOSSY,
        axes=of,
        batch_fractions=fractions,
        recipes=(),
        refused={},
        dropped_recipes={},
        conflicts=conflicts,
        gpu_counts=gpu_counts,
    )


MANY = space(axes(35), groups=(10, 6, 5), single=60)


def with_devices(gpu_counts: tuple[int, ...]) -> ResolvedSpace:
    """Two ways to distribute, a method for one of them and one for that, and one for a single device."""
    plain = axes(4, settings=2)
    ways = (
        Axis(method="way", settings=(use("way", fast=True), use("way", fast=False)), divides=MeshAxis.DATA),
        Axis(method="other_way", settings=(use("other_way"),), divides=MeshAxis.DATA),
    )
    on_top = (
        Axis(method="on_top", settings=(use("on_top"),), builds_on=("way",)),
        Axis(method="higher", settings=(use("higher"),), builds_on=("on_top", "method_00")),
        Axis(method="nowhere", settings=(use("nowhere"),), builds_on=("absent",)),
    )
    alone = Axis(method="alone", settings=(use("alone"),), one_device_only=True)
    return space((*plain, *ways, *on_top, alone), groups=(2,), single=12, gpu_counts=gpu_counts)


def listed(of: ResolvedSpace) -> set[str]:
    """Every valid combination, found by judging each possible one by itself."""
    found = set()
    for gpu_count in of.gpu_counts:
        for chosen in itertools.product(*((None, *axis.settings) for axis in of.axes)):
            settings = tuple(sorted((one for one in chosen if one is not None), key=lambda one: one.name))
            if of.accepts(Combination(settings, gpu_count)):
                found.add(Combination(settings, gpu_count).label)
    return found


@pytest.mark.parametrize(
    "of",
    [
        space(axes(0)),
        space(axes(6)),
        space(axes(6), groups=(3, 2)),
        space(axes(6), groups=(3,), single=10),
        space(axes(5), single=60),
        with_devices((1,)),
        with_devices((2,)),
        with_devices((1, 2, 8)),
    ],
)
def test_the_count_is_that_of_combinations_judged_one_by_one(of: ResolvedSpace) -> None:
    found = listed(of)
    assert of.counted() == Count(len(found), exact=True)
    assert {one.label for one in of.combinations()} == found


def test_what_is_drawn_is_valid_and_everything_can_be_drawn() -> None:
    of = with_devices((1, 2))
    generator = random.Random(0)
    drawn = {one.label for one in (of.draw(generator) for _ in range(20_000)) if one is not None}
    assert drawn == listed(of)


def test_methods_of_which_one_is_chosen_add_up() -> None:
    assert space(axes(35), groups=(35,)).counted() == Count(1 + 35 * 3)


@pytest.mark.parametrize("position", [0, 17, 35], ids=["first", "in the middle", "last"])
def test_of_thirty_five_methods_there_are_more_than_anyone_counts(position: int) -> None:
    """The trap: with no way to distribute among them, there are trillions that are none on two devices."""
    assert MANY.counted() == Count(MOST_COUNTED, exact=False)
    way = Axis(method="way", settings=(use("way"),), divides=MeshAxis.DATA)
    both = space((*axes(35)[:position], way, *axes(35)[position:]), gpu_counts=(1, 2))
    assert both.counted() == Count(MOST_COUNTED, exact=False)
    on_two = space((*axes(35)[:position], way, *axes(35)[position:]), groups=(36,), gpu_counts=(2,))
    assert on_two.counted() == Count(1)


def rate(settings: tuple[MethodSetting, ...]) -> float:
    return 1.0 + sum(1.0 if int(one.name[-2:]) % 3 == 0 else -0.5 for one in settings)


def test_fifty_different_valid_combinations_are_proposed_and_become_better() -> None:
    one = Proposer(MANY, storage=None, study_name="many", maximize=(True,))
    seen = set()
    rates = []
    for _ in range(50):
        proposal = one.ask()
        assert proposal is not None
        assert MANY.accepts(proposal.combination)
        seen.add((proposal.combination.label, proposal.batch_fraction))
        rates.append(rate(proposal.settings))
        one.tell(proposal, rates[-1])
    assert len(seen) == one.completed == 50
    assert one.untried == 2 * MOST_COUNTED - 50, "there are more"
    generator = random.Random(1)
    drawn = [drawn for drawn in (MANY.draw(generator) for _ in range(500)) if drawn is not None]
    blind = sum(rate(each.settings) for each in drawn) / len(drawn)
    assert sum(rates[-20:]) / 20 > blind + 0.5


def test_the_last_points_of_a_space_that_is_not_listed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.search.space.explored._MOST_LISTED", 0)
    monkeypatch.setattr("advisor.search.space.explored._DRAWS", 3)
    of = with_devices((2,))
    tried = Explored(of)
    generator = random.Random(0)
    number = 0
    while (drawn := tried.draw(generator)) is not None:
        combination, fraction = drawn
        assert tried.points_left().number == 2 * of.count - number
        tried.finish(tried.point(combination, fraction), number)
        number += 1
    assert number == 2 * of.count
    assert tried.points_left() == Count(0)


def test_what_is_excluded_is_left_out_of_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    of = space(axes(3))
    for most in (10_000, 0):
        monkeypatch.setattr("advisor.search.space.explored._MOST_LISTED", most)
        tried = Explored(of)
        plain, one = Combination(), Combination((use("method_00", level=1),))
        tried.finish(tried.point(plain, 1.0), 0)
        tried.start(tried.point(one, 1.0))
        assert tried.points_left() == Count(2 * 64 - 2)
        tried.exclude(one.label)
        assert tried.points_left() == Count(2 * 64 - 3)
        invalid = Combination((use("method_00", level=1), use("method_00", level=2)))
        tried.finish(tried.point(invalid, 1.0), 1)
        assert tried.points_left() == Count(2 * 64 - 3)


def test_a_space_too_large_to_count_is_never_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Count(2, exact=False)
    monkeypatch.setattr(ResolvedSpace, "counted", lambda self: bound)
    tried = Explored(MANY)
    generator = random.Random(0)
    for number in range(5):
        drawn = tried.draw(generator)
        assert drawn is not None
        tried.finish(tried.point(*drawn), number)
        left = tried.points_left()
        assert left.number >= 1
        assert not left.exact
