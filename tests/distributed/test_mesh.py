"""The axes of a world: who divides what with whom."""

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.hardware.mesh import Mesh
from tests.distributed.on_mesh import MESHES, NORM, clipped, places
from tests.distributed.ranks import Launcher

_RANKS = 4


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of four ranks knows of each mesh."""
    return launcher.run(places, _RANKS, tmp_path_factory.mktemp("mesh"))


def _rows(found: list[Any], mesh: Mesh, axis: str) -> set[tuple[int, ...]]:
    return {tuple(rank[MESHES.index(mesh)]["members"][axis]) for rank in found}


def test_without_a_mesh_all_processes_divide_the_data(found: list[Any]) -> None:
    assert _rows(found, Mesh(), "data") == {(0, 1, 2, 3)}
    assert _rows(found, Mesh(), "tensor") == _rows(found, Mesh(), "pipeline") == {(0,), (1,), (2,), (3,)}


def test_processes_of_a_tensor_axis_are_next_to_each_other(found: list[Any]) -> None:
    assert _rows(found, Mesh(tensor=2), "tensor") == {(0, 1), (2, 3)}
    assert _rows(found, Mesh(tensor=2), "data") == {(0, 2), (1, 3)}
    assert _rows(found, Mesh(tensor=4), "tensor") == {(0, 1, 2, 3)}


def test_stages_of_a_pipeline_are_furthest_apart(found: list[Any]) -> None:
    assert _rows(found, Mesh(pipeline=2), "pipeline") == {(0, 2), (1, 3)}
    assert _rows(found, Mesh(pipeline=2), "data") == {(0, 1), (2, 3)}
    assert _rows(found, Mesh(tensor=2, pipeline=2), "pipeline") == {(0, 2), (1, 3)}
    assert _rows(found, Mesh(tensor=2, pipeline=2), "data") == {(0,), (1,), (2,), (3,)}


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_each_row_follows_its_first_process(found: list[Any], mesh: Mesh) -> None:
    for rank in found:
        one = rank[MESHES.index(mesh)]
        for axis, members in one["members"].items():
            assert one["first"][axis] == members[0]
            assert one["place"][axis][1] == len(members)


def test_a_norm_counts_slices_once_each_and_copies_once(launcher: Launcher, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 6), torch.randn(4)
    norm = float(torch.cat([weight.flatten(), bias]).norm())
    for one in launcher.run(clipped, _RANKS, tmp_path):
        assert float(one["norm"]) == pytest.approx(norm, rel=1e-6)
        scale = NORM / norm
        torch.testing.assert_close(one["weight"], weight.chunk(2)[one["rank"]] * scale, rtol=1e-5, atol=0)
        torch.testing.assert_close(one["bias"], bias * scale, rtol=1e-5, atol=0)
