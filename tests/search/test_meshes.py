"""Which meshes are feasible, and meshes as part of the search, with made-up methods."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import numpy as np
import optuna
import pytest

from advisor.goal import Fidelity
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.methods.setting import use
from advisor.search.propose.initial_trials import names_of, seeds_of
from advisor.search.space.explored import Explored
from advisor.search.space.factors import Choice, Factors
from advisor.search.space.meshes import MeshRules, find_meshes, standing_bytes
from advisor.search.space.parameters import Parameters
from advisor.search.space.space import Axis, Combination, ResolvedRecipe, ResolvedSpace
from advisor.search.study.sampler import Proposer
from advisor.text.records import decode_record, encode_record
from advisor.workload.batch_layout import BatchLayout

from .synthetic import SETTINGS, space
from .test_build_space import FACTS as TEXT_MODEL

DDP, SHARDED = use("ddp"), use("sharded", reshard=True)
SLICED, SLICED_TOKENS = use("sliced", sequence=False), use("sliced", sequence=True)
STAGES = use("stages", schedule="1f1b")
IN_PLACE = use("in_place")
EVERY = use("checkpoint", every=1)

AXES = (
    Axis(method="checkpoint", settings=SETTINGS["checkpoint"]),
    Axis(method="in_place", settings=(IN_PLACE,), one_device_only=True),
    Axis(method="ddp", settings=(DDP,), divides=MeshAxis.DATA),
    Axis(method="sharded", settings=(SHARDED,), divides=MeshAxis.DATA),
    Axis(method="sliced", settings=(SLICED, SLICED_TOKENS), divides=MeshAxis.TENSOR),
    Axis(method="stages", settings=(STAGES,), divides=MeshAxis.PIPELINE),
)

ALL_OF_FOUR = (
    DATA_ONLY,
    Mesh(tensor=2),
    Mesh(pipeline=2),
    Mesh(tensor=4),
    Mesh(tensor=2, pipeline=2),
    Mesh(pipeline=4),
)

FACTS = msgspec.structs.replace(
    TEXT_MODEL,
    staged_blocks=12,
    tensor_degrees={2: 0.6, 4: 0.6},
    tensor_refusals={8: "8 devices cannot share 12 heads"},
)


def meshed(*counts: int, recipes: tuple[ResolvedRecipe, ...] = ()) -> ResolvedSpace:
    rules = MeshRules(facts=FACTS, owned=frozenset(MeshAxis))
    return msgspec.structs.replace(
        space(fractions=(1.0, 0.5), recipes=recipes),
        axes=AXES,
        gpu_counts=counts,
        meshes=find_meshes(counts, rules).feasible,
    )


def rules(**others: object) -> MeshRules:
    return msgspec.structs.replace(MeshRules(facts=FACTS, owned=frozenset(MeshAxis)), **others)


class TestFeasibleMeshes:
    def test_the_plainest_comes_first_and_then_the_fewest_devices_to_a_model(self) -> None:
        assert find_meshes((1, 4), rules()).feasible == {1: (DATA_ONLY,), 4: ALL_OF_FOUR}

    def test_the_numbers_of_llama_70b_on_8_devices_are_a_subset_of_all(self) -> None:
        grouped = msgspec.structs.replace(FACTS, staged_blocks=80, tensor_degrees={2: 0.9, 4: 0.9, 8: 0.9})
        found = find_meshes((8,), rules(facts=grouped, global_batch=1024))
        assert len(found.feasible[8]) == 10, "of 10 with powers of two: nothing is in the way of any"

    @pytest.mark.parametrize(
        ("mesh", "count", "facts", "others", "reason"),
        [
            (Mesh(tensor=8), 8, {}, {}, "8 devices cannot share 12 heads"),
            (Mesh(tensor=3), 3, {}, {}, "has not sliced the model's layers for 3 devices"),
            (Mesh(pipeline=8), 8, {}, {}, "each of 8 stages must have 2 blocks or more, and the model has 12"),
            (Mesh(pipeline=2), 2, {"staged_blocks": 0, "staged_reason": "it has a skip"}, {}, "it has a skip"),
            (Mesh(tensor=2), 4, {}, {"global_batch": 3}, "a global batch of 3 cannot be split into 2 equal shares"),
            (Mesh(pipeline=4), 4, {}, {"global_batch": 2}, "4 stages need as many micro-batches or more"),
            (Mesh(tensor=4), 4, {}, {"machines": 2}, "must stay inside a machine"),
            (Mesh(tensor=2), 4, {"has_batchnorm": True}, {"fidelity": Fidelity.ROUNDING}, "BatchNorm"),
            (Mesh(pipeline=2), 2, {"has_batchnorm": True}, {"fidelity": Fidelity.ROUNDING}, "BatchNorm"),
            (
                Mesh(pipeline=2), 2, {"batch_layout": BatchLayout(dims={"": 0}, counted_by="", most_samples=1)}, {},
                "each of 1 shares of 1 sample has 1",
            ),
            (Mesh(tensor=2), 4, {}, {"owned": frozenset({MeshAxis.TENSOR})}, "divides the data axis"),
        ],
    )  # fmt: skip
    def test_one_that_breaks_a_rule_is_refused_with_the_rule_and_the_value(
        self, mesh: Mesh, count: int, facts: dict[str, object], others: dict[str, object], reason: str
    ) -> None:
        found = rules(facts=msgspec.structs.replace(FACTS, **facts), **others).why_not(mesh, count)
        assert reason in found

    def test_layers_may_be_divided_where_sharing_a_batch_is_beyond_the_fidelity(self) -> None:
        batchnorm = msgspec.structs.replace(FACTS, has_batchnorm=True)
        assert rules(facts=batchnorm, fidelity=Fidelity.ROUNDING).why_not(Mesh(tensor=2), 2) == ""

    def test_a_global_batch_that_devices_cannot_share_may_be_trained_on_by_dividing_the_model(self) -> None:
        assert find_meshes((2,), rules(global_batch=3)).feasible == {2: (Mesh(tensor=2), Mesh(pipeline=2))}

    def test_what_is_said_of_the_refused_names_the_axis_once(self) -> None:
        found = find_meshes((8,), rules()).refusals
        assert found["tensor axis of 8"] == "8 devices cannot share 12 heads"
        assert len(set(found.values())) == len(found)

    def test_a_deeper_cut_is_estimated_to_hold_less_on_each_device(self) -> None:
        estimates = [standing_bytes(mesh, FACTS) for mesh in ALL_OF_FOUR]
        assert estimates[0] == 4 * FACTS.parameter_bytes
        assert estimates[1] == round(4 * FACTS.parameter_bytes * 0.7), "60 % of the parameters are sliced in two"
        assert estimates[2] == 2 * FACTS.parameter_bytes


class TestCombinations:
    def test_each_axis_of_several_devices_has_one_method_and_the_others_none(self) -> None:
        of = meshed(1, 4)
        found = list(of.combinations())
        assert {(one.gpu_count, one.mesh) for one in found} == set(of.places)
        for one in found:
            divides = [
                axis.divides for axis in AXES for each in one.settings if each.name == axis.method and axis.divides
            ]
            assert sorted(map(str, divides)) == sorted(map(str, one.mesh.divided(one.gpu_count)))
            assert of.accepts(one)
            assert one.policy(2).global_batch == 2 * one.data_degree
        assert len({one.label for one in found}) == len(found)
        # checkpoint off or one of three; times in_place on one device, or the settings of each axis.
        assert len(found) == 4 * (2 + (2 + 2 * 2 + 2 * 1 + 2 + 2 * 1 + 1))

    def test_drawn_and_completed_ones_are_valid(self) -> None:
        of, generator = meshed(1, 4), random.Random(0)
        drawn = [one for one in (of.draw(generator) for _ in range(300)) if one is not None]
        assert all(of.accepts(one) for one in drawn)
        assert {one.mesh for one in drawn} == set(ALL_OF_FOUR)
        assert of.completed((IN_PLACE, SLICED_TOKENS, SLICED, EVERY), 4, Mesh(tensor=2)) == Combination(
            (EVERY, DDP, SLICED_TOKENS), 4, Mesh(tensor=2)
        )

    def test_methods_take_the_plainest_mesh_on_which_they_can_be_used(self) -> None:
        of = meshed(4)
        assert of.on_devices((), 4) == Combination((DDP,), 4)
        assert of.on_devices((STAGES,), 4) == Combination((DDP, STAGES), 4, Mesh(pipeline=2))
        assert of.on_devices((SLICED, STAGES), 4) == Combination((SLICED, STAGES), 4, Mesh(tensor=2, pipeline=2))
        assert of.on_devices((), 4, Mesh(tensor=4)) == Combination((SLICED,), 4, Mesh(tensor=4))
        assert of.on_devices((DDP,), 4, Mesh(tensor=4)) is None, "one device on the data axis"

    def test_a_setting_that_does_not_fit_a_mesh_is_no_part_of_it(self) -> None:
        of = msgspec.structs.replace(meshed(4), misfits={(SLICED_TOKENS.label, Mesh(tensor=4)): "17 tokens"})
        assert not of.accepts(Combination((SLICED_TOKENS,), 4, Mesh(tensor=4)))
        assert of.accepts(Combination((DDP, SLICED_TOKENS), 4, Mesh(tensor=2)))
        assert of.completed((SLICED_TOKENS,), 4, Mesh(tensor=4)) == Combination((SLICED,), 4, Mesh(tensor=4))
        assert Combination((SLICED_TOKENS,), 4, Mesh(tensor=4)) not in list(of.combinations())

    def test_the_label_says_how_devices_divide_the_work(self) -> None:
        assert Combination((DDP, SLICED), 4, Mesh(tensor=2)).label.endswith(" on 4 devices (2 data x 2 tensor)")
        assert Combination((SLICED,), 2, Mesh(tensor=2)).label.endswith(" on 2 devices (2 tensor)")
        assert Combination((DDP,), 4).label == "ddp on 4 devices"


class TestParameters:
    def test_without_meshes_names_and_choices_are_those_of_older_studies(self) -> None:
        of = msgspec.structs.replace(meshed(1, 4), meshes={})
        assert list(Parameters(of).choices) == [*(axis.method for axis in AXES), "gpu_count", "batch_fraction"]
        assert Parameters(of).choices["gpu_count"] == [1, 4]
        assert "gpu_count" not in Parameters(msgspec.structs.replace(of, gpu_counts=(4,))).choices

    def test_with_meshes_one_categorical_has_every_number_of_devices_with_every_mesh(self) -> None:
        choices = Parameters(meshed(1, 4)).choices
        assert "gpu_count" not in choices
        assert choices["devices"] == [
            "1", "4", "4 2 data x 2 tensor", "4 2 data x 2 pipeline", "4 4 tensor",
            "4 2 pipeline x 2 tensor", "4 4 pipeline",
        ]  # fmt: skip

    def test_every_point_is_written_in_one_way_and_read_back(self) -> None:
        of = meshed(1, 2, 4)
        parameters = Parameters(of)
        written = set()
        for combination in of.combinations():
            choice = Choice(combination, 0.5)
            assert parameters.choice_of(parameters.of(choice)) == choice
            assert parameters.are_complete(parameters.of(choice))
            written.add(tuple(parameters.of(choice).items()))
        assert len(written) == of.count


class TestFactors:
    def test_degrees_are_effects_beside_the_number_of_devices(self) -> None:
        of = meshed(1, 4)
        factors, plain = Factors(of), Factors(msgspec.structs.replace(of, meshes={}))
        places = [Choice(one, 1.0) for one in (of.on_devices((), count, mesh) for count, mesh in of.places) if one]
        effects = factors.effects(factors.levels(places))
        tensor, pipeline = effects[:, -2], effects[:, -1]
        assert np.allclose(effects[:, -3], np.log([1, 4, 4, 4, 4, 4, 4]))
        assert tensor.tolist() == [0, 0, 1, 0, 2, 1, 0]
        assert pipeline.tolist() == [0, 0, 0, 1, 0, 1, 2]
        assert factors.prior_deviation[-2:].min() >= 0.3, "weak"
        assert len(plain.prior_mean) == len(factors.prior_mean) - 2 - 5, "five meshes more, and two degrees"

    def test_levels_of_devices_have_names(self) -> None:
        factors = Factors(meshed(1, 4))
        column = factors.levels([]).shape[1] - 2
        assert factors.name(column, 0) == "1 device"
        assert factors.name(column, 2) == "4 devices (2 data x 2 tensor)"


class TestProposals:
    def test_every_combination_on_every_mesh_is_proposed_once(self, tmp_path: Path) -> None:
        of = msgspec.structs.replace(meshed(1, 2), axes=AXES[1:])
        one = Proposer(of, storage=tmp_path / "study.db", study_name="momadvise", maximize=(True,))
        seen = []
        while (proposal := one.ask()) is not None:
            seen.append(proposal)
            cut = math.log2(proposal.combination.mesh.model_degree)
            one.tell(proposal, 10.0 * proposal.combination.gpu_count - cut - len(proposal.settings), noise=0.01)
        points = {(each.combination.label, each.batch_fraction) for each in seen}
        assert len(points) == len(seen) == of.count * 2
        assert one.untried == 0
        one.close()
        again = Proposer(of, storage=tmp_path / "study.db", study_name="momadvise", maximize=(True,))
        assert again.completed == len(points), "a study with meshes is continued"
        assert again.ask() is None
        again.close()
        study = optuna.load_study(study_name="momadvise", storage=f"sqlite:///{tmp_path / 'study.db'}")
        assert {trial.params["devices"] for trial in study.trials} == {"1", "2", "2 2 tensor", "2 2 pipeline"}

    def test_a_large_space_proposes_points_of_every_mesh(self) -> None:
        of = msgspec.structs.replace(
            meshed(1, 4), axes=(*AXES, *(Axis(method=f"m{i}", settings=(use(f"m{i}"),)) for i in range(10)))
        )
        explored, generator = Explored(of), random.Random(1)
        assert explored.every_point is None
        drawn = [explored.draw(generator) for _ in range(200)]
        assert {one[0].mesh for one in drawn if one} == set(ALL_OF_FOUR)

    def test_a_recipe_for_a_place_is_tried_there_and_keeps_its_name(self) -> None:
        place = (4, Mesh(tensor=4))
        of = meshed(1, 4, recipes=(ResolvedRecipe(name="deep", hand_tuned=False, settings=(SLICED,), place=place),))
        assert dict(seeds_of(of))["deep"] == Combination((SLICED,), *place)
        assert names_of(of, Choice(Combination((SLICED,), *place), 1.0)) == ("deep", False)
        assert names_of(of, Choice(Combination((DDP, SLICED), 4, Mesh(tensor=2)), 1.0)) == (None, False)


def test_what_the_probe_found_of_each_degree_is_written_and_read_back() -> None:
    assert decode_record(encode_record(FACTS), type(FACTS)) == FACTS
