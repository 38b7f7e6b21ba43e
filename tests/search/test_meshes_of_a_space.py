"""From a search space file to meshes: which methods have a place on which, what is tried first, what is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.goal import Fidelity
from advisor.hardware.mesh import DATA_ONLY, Mesh
from advisor.methods.compose import judge
from advisor.methods.setting import use
from advisor.search.propose.initial_trials import seeds_of
from advisor.search.space.build_space import build_space
from advisor.search.space.requested_methods import only_methods
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import SearchSpace, load_space

from .cutting_methods import WITH_CUTS, add_cuts
from .test_build_space import CPU
from .test_meshes import ALL_OF_FOUR, FACTS

METHODS = "{checkpoint: {every: [1]}, ddp: {}, fsdp: {}, sliced: {}, stages: {}}"
SLICED, SLICED_TOKENS = use("sliced", sequence=False), use("sliced", sequence=True)


@pytest.fixture(autouse=True)
def _cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    add_cuts(monkeypatch)


def file(folder: Path, methods: str = METHODS) -> SearchSpace:
    path = folder / "mine.yaml"
    path.write_text(f"schema: 1\nname: mine\nfidelity: lossy\nmethods: {methods}\n")
    return load_space(str(path), catalogue=WITH_CUTS)


def resolved(
    folder: Path, *counts: int, methods: str = METHODS, facts: object = FACTS, **others: object
) -> ResolvedSpace:
    return build_space(file(folder, methods), facts, CPU, gpu_counts=counts, catalogue=WITH_CUTS, **others)


def test_a_space_with_ways_to_divide_the_model_has_meshes(tmp_path: Path) -> None:
    of = resolved(tmp_path, 1, 2, 4)
    assert of.meshes[4] == ALL_OF_FOUR
    assert 1 not in of.meshes
    assert resolved(tmp_path, 1, 4, methods="{ddp: {}}").meshes == {}
    assert resolved(tmp_path, 1, 4, methods="{ddp: {}, stages: {}}").meshes == {
        4: (DATA_ONLY, Mesh(pipeline=2), Mesh(pipeline=4))
    }


def test_a_way_without_any_mesh_is_left_out_and_the_reason_is_shown(tmp_path: Path) -> None:
    unsliced = msgspec.structs.replace(FACTS, tensor_degrees={}, tensor_refusals={2: "of its block only 11 % is found"})
    of = resolved(tmp_path, 2, facts=unsliced)
    assert "sliced" not in {axis.method for axis in of.axes}
    assert of.refused["tensor axis of 2"] == "of its block only 11 % is found"


def test_a_setting_is_no_part_of_meshes_that_its_method_rules_out(tmp_path: Path) -> None:
    odd = msgspec.structs.replace(FACTS, tokens_per_sample=18)
    of = resolved(tmp_path, 4, facts=odd)
    assert of.on_devices((), 4, Mesh(tensor=4)).settings == (SLICED,)
    assert SLICED_TOKENS in of.on_devices((), 4, Mesh(tensor=2)).settings
    verdict = judge((SLICED_TOKENS,), facts=odd, hardware=CPU, gpu_count=4, mesh=Mesh(tensor=4))
    assert verdict.reason == (
        "sliced sequence=True: 18 tokens cannot be divided among 4 devices; pad samples to a multiple of them"
    )


def test_every_combination_is_one_that_its_methods_accept(tmp_path: Path) -> None:
    for one in resolved(tmp_path, 1, 2, 4).combinations():
        assert judge(one.settings, facts=FACTS, hardware=CPU, gpu_count=one.gpu_count, mesh=one.mesh).applicable


def test_the_first_cuts_are_the_smallest_that_fits_and_those_inside_a_machine(tmp_path: Path) -> None:
    need = 4 * FACTS.parameter_bytes
    of = resolved(tmp_path, 1, 4, memory_limit_bytes=int(0.6 * need))
    seeds = {name: (one.mesh, [each.name for each in one.settings]) for name, one in seeds_of(of)}
    assert seeds == {
        "plain": (DATA_ONLY, []),
        "smallest cut": (Mesh(pipeline=2), ["ddp", "stages"]),
        "layers divided inside a machine": (Mesh(tensor=4), ["sliced"]),
        "sharded": (DATA_ONLY, ["fsdp"]),
        "sharded, and layers divided inside a machine": (Mesh(tensor=2), ["fsdp", "sliced"]),
    }
    assert [name for name, _ in seeds_of(of)][-1] != "plain"


def test_where_plain_training_did_not_fit_cuts_come_before_other_recipes(tmp_path: Path) -> None:
    space = msgspec.structs.replace(file(tmp_path), each_alone=True)
    fits, does_not = FACTS, msgspec.structs.replace(FACTS, first_loss=None)
    first = [
        build_space(space, facts, CPU, gpu_counts=(1, 2), catalogue=WITH_CUTS).recipes[0].name
        for facts in (fits, does_not)
    ]
    assert first == ["checkpoint alone", "smallest cut"]


def test_several_machines_keep_a_tensor_axis_inside_one(tmp_path: Path) -> None:
    of = resolved(tmp_path, 4, machines=2)
    assert {mesh.tensor for mesh in of.meshes_on(4)} == {1, 2}


def test_a_global_batch_that_devices_cannot_share_leaves_meshes_that_can_train_on_it(tmp_path: Path) -> None:
    of = resolved(tmp_path, 4, global_batch=6)
    assert of.meshes[4] == (
        Mesh(tensor=2),
        Mesh(pipeline=2),
        Mesh(tensor=4),
        Mesh(tensor=2, pipeline=2),
        Mesh(pipeline=4),
    )
    assert of.on_devices((), 4).mesh == Mesh(tensor=2)


def test_ways_to_divide_the_data_stay_beside_a_way_to_divide_the_model_that_is_asked_for(tmp_path: Path) -> None:
    asked = only_methods(file(tmp_path), ["sliced"])
    assert set(asked.methods) == {"sliced", "ddp", "fsdp"}
    assert set(only_methods(file(tmp_path), ["checkpoint"]).methods) == {"checkpoint", "ddp", "fsdp"}


def test_a_fidelity_that_forbids_sharing_a_batch_leaves_meshes_that_do_not(tmp_path: Path) -> None:
    batchnorm = msgspec.structs.replace(FACTS, has_batchnorm=True)
    of = resolved(tmp_path, 2, facts=batchnorm, fidelity=Fidelity.LOSSY)
    assert of.meshes[2] == (DATA_ONLY, Mesh(tensor=2)), "what shares only the data is left out where that is explained"
