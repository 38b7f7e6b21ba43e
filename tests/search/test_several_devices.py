"""The number of devices as an axis of the search, with made-up methods."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import optuna
import pytest

from advisor.hardware.mesh import MeshAxis
from advisor.methods.setting import use
from advisor.search.propose.initial_trials import names_of, seeds_of
from advisor.search.space.factors import Choice
from advisor.search.space.space import Axis, Combination, ResolvedSpace
from advisor.search.study.sampler import Proposal, Proposer

from .synthetic import SETTINGS, recipe, space

DDP, SHARDED = use("ddp"), use("sharded", reshard=True)
HALVED = use("halved")
EVERY = use("checkpoint", every=1)
IN_PLACE = use("in_place")

AXES = (
    Axis(method="checkpoint", settings=SETTINGS["checkpoint"]),
    Axis(method="in_place", settings=(IN_PLACE,), one_device_only=True),
    Axis(method="ddp", settings=(DDP,), divides=MeshAxis.DATA),
    Axis(method="sharded", settings=(SHARDED,), divides=MeshAxis.DATA),
    Axis(method="halved", settings=(HALVED,), builds_on=("ddp",)),
)


def several(*counts: int, conflicts: bool = False, recipes: bool = False) -> ResolvedSpace:
    return msgspec.structs.replace(
        space(
            fractions=(1.0, 0.5),
            conflicts=((EVERY, DDP),) if conflicts else (),
            recipes=(recipe("checkpointing", EVERY, hand_tuned=True),) if recipes else (),
        ),
        axes=AXES,
        gpu_counts=counts,
    )


def labels(of: ResolvedSpace) -> list[str]:
    return [one.label for one in of.combinations()]


class TestCombinations:
    def test_on_one_device_nothing_distributes(self) -> None:
        assert labels(several(1)) == [
            "plain",
            "in_place",
            *(
                label
                for every in (1, 2, 4)
                for label in (f"checkpoint(every={every})", f"checkpoint(every={every}) + in_place")
            ),
        ]

    def test_on_several_devices_exactly_one_method_distributes_and_the_others_keep_their_dependencies(self) -> None:
        found = list(several(4).combinations())
        assert {one.gpu_count for one in found} == {4}
        for one in found:
            names = {each.name for each in one.settings}
            assert len(names & {"ddp", "sharded"}) == 1
            assert "in_place" not in names
            assert "halved" not in names or "ddp" in names
        assert len(found) == 4 * 3, "checkpoint off or one of three, times ddp, ddp + halved, sharded"

    def test_every_number_of_devices_begins_with_the_plainest(self) -> None:
        of = several(1, 2)
        assert labels(of)[0] == "plain"
        assert (
            next(one for one in of.combinations() if one.gpu_count == 2).label == "sharded(reshard=True) on 2 devices"
        )
        assert of.on_devices((), 2) == Combination((DDP,), 2), "the first way to distribute, in the space's order"

    def test_methods_on_several_devices_take_the_first_way_to_distribute_that_goes_with_them(self) -> None:
        assert several(2).on_devices((EVERY,), 2) == Combination((EVERY, DDP), 2)
        assert several(2, conflicts=True).on_devices((EVERY,), 2) == Combination((EVERY, SHARDED), 2)
        assert several(1, 2).on_devices((EVERY,), 1) == Combination((EVERY,), 1)
        assert several(2).on_devices((IN_PLACE,), 2) is None

    def test_a_recipe_may_name_its_own_way_to_distribute(self) -> None:
        assert several(1, 2).on_devices((EVERY, SHARDED), 2) == Combination((EVERY, SHARDED), 2)
        assert several(1, 2).on_devices((EVERY, SHARDED), 1) is None, "it is not for one device"
        assert several(2).on_devices((DDP, HALVED), 2) == Combination((DDP, HALVED), 2)
        assert several(2).on_devices((HALVED, SHARDED), 2) is None, "it works on top of ddp alone"

    def test_without_a_way_to_distribute_there_is_nothing_on_several_devices(self) -> None:
        alone = msgspec.structs.replace(several(1, 2), axes=AXES[:2])
        assert alone.on_devices((), 2) is None
        assert {one.gpu_count for one in alone.combinations()} == {1}


class TestProposals:
    def proposer(self, of: ResolvedSpace, storage: Path | None = None) -> Proposer:
        return Proposer(of, storage=storage, study_name="momadvise", maximize=(False, False))

    def test_what_an_experienced_person_does_on_one_device_comes_first_and_plain_training_on_each_number(self) -> None:
        """Seen: in 3m30s two devices with good methods were recommended, at four times the cost of one with them."""
        one = self.proposer(several(1, 2, recipes=True))
        first = [one.ask() for _ in range(4)]
        assert [(each.combination.label, each.recipe_name, each.hand_tuned) for each in first if each] == [
            ("plain", "plain", False),
            ("checkpoint(every=1)", "checkpointing", False),
            ("ddp on 2 devices", "plain", False),
            ("checkpoint(every=1) + ddp on 2 devices", "checkpointing", True),
        ]

    def test_where_numbers_of_devices_are_not_compared_plain_training_comes_on_the_fewest_alone(self) -> None:
        of = several(1, 2, recipes=True)
        assert [combination.label for _, combination in seeds_of(of)] == [
            "plain",
            "checkpoint(every=1) + ddp on 2 devices",
        ]

    def test_on_several_devices_a_recipe_goes_without_what_is_optional_in_it_and_for_one_device(self) -> None:
        """The trap: beside other programs every recipe has fewer threads, which several devices cannot have."""
        threads = Axis(method="intraop_threads", settings=(use("intraop_threads", count=1),), one_device_only=True)
        of = several(1, 2, recipes=True)
        recipe = msgspec.structs.replace(
            of.recipes[0], settings=(*of.recipes[0].settings, *threads.settings), optional=("intraop_threads",)
        )
        of = msgspec.structs.replace(of, axes=(*of.axes, threads), recipes=(recipe,))
        seeds = [combination for _, combination in seeds_of(of, compares_devices=True)]
        assert [one.label for one in seeds] == [
            "plain",
            "checkpoint(every=1) + intraop_threads(count=1)",
            "ddp on 2 devices",
            "checkpoint(every=1) + ddp on 2 devices",
        ]
        assert [names_of(of, Choice(one, 1.0)) for one in seeds[1::2]] == [
            ("checkpointing", False),
            ("checkpointing", True),
        ]

    def test_a_recipe_that_works_on_fewer_devices_alone_is_tried_there(self) -> None:
        of = msgspec.structs.replace(several(1, 2, recipes=True), axes=AXES[:2])
        assert [combination.label for _, combination in seeds_of(of)] == ["plain", "checkpoint(every=1)"]

    def test_every_combination_on_every_number_of_devices_is_proposed_once(self, tmp_path: Path) -> None:
        of = several(1, 2)
        one = self.proposer(of, tmp_path / "study.db")
        seen: list[Proposal] = []
        while (proposal := one.ask()) is not None:
            seen.append(proposal)
            latency = 8.0 / proposal.combination.gpu_count + len(proposal.settings)
            one.tell(proposal, (latency * proposal.combination.gpu_count, latency))
        points = {(each.combination.label, each.batch_fraction) for each in seen}
        assert len(points) == len(seen) == of.count * 2
        assert one.untried == 0
        one.close()
        study = optuna.load_study(study_name="momadvise", storage=f"sqlite:///{tmp_path / 'study.db'}")
        assert [direction.name for direction in study.directions] == ["MINIMIZE", "MINIMIZE"]
        assert {trial.params["gpu_count"] for trial in study.trials} == {1, 2}
        assert min(trial.values[1] for trial in study.best_trials) < min(trial.values[1] for trial in study.trials[:1])

    def test_an_outcome_without_figures_is_a_violated_constraint_with_the_worst_of_each_objective(
        self, tmp_path: Path
    ) -> None:
        one = self.proposer(several(1, 2), tmp_path / "study.db")
        first, second, third = (one.ask() for _ in range(3))
        assert first
        assert second
        assert third
        one.tell(first, None, {"memory": 1.0})
        one.tell(second, (3.0, 1.0))
        one.tell(third, None, {"outcome": 1.0})
        one.close()
        trials = optuna.load_study(study_name="momadvise", storage=f"sqlite:///{tmp_path / 'study.db'}").trials
        assert trials[first.number].values == [math.inf, math.inf]
        assert trials[third.number].values == [3.0, 1.0]

    def test_a_figure_is_needed_for_every_objective(self) -> None:
        one = self.proposer(several(1, 2))
        proposal = one.ask()
        assert proposal
        with pytest.raises(AssertionError, match="2 objectives"):
            one.tell(proposal, 3.0)
