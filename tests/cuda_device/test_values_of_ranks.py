"""Two ranks on two devices: they exchange values, train as one device does, and do not wait for one that is gone."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.cuda_device import on_two_ranks
from tests.cuda_device.machine import H100, Machine
from tests.distributed.models import movement_error, transformer
from tests.methods.tiny import gpt2

Found = dict[str, dict[int, Any]]


@pytest.fixture(scope="module")
def found(only_where_it_can_be_built: None, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("ranks")
    machine = Machine(gpus=(H100, H100), values=True, time=0)
    command = [sys.executable, "-m", on_two_ranks.__name__, str(folder)]
    result = machine.run(command, {"OMP_NUM_THREADS": "1"}, capture_output=True, timeout=200)
    assert result.returncode == 0, result.stderr
    brought: Found = {}
    for path in folder.glob("*.pt"):
        name, _, rank = path.stem.rpartition("-")
        brought.setdefault(name, {})[int(rank)] = torch.load(path, weights_only=False)
    return brought


FIRST, SECOND = [0, 1, 2, 3, 4], [10, 11, 12, 13, 14]
SUM = [10, 12, 14, 16, 18]
COLLECTIVES = {
    "sum": (SUM, SUM),
    "product": ([0, 11, 24, 39, 56],) * 2,
    "max": (SECOND, SECOND),
    "min": (FIRST, FIRST),
    "avg": ([5, 6, 7, 8, 9],) * 2,
    "premul": ([5, 6, 7, 8, 9],) * 2,
    "torch.float64": (SUM, SUM),
    "torch.float16": (SUM, SUM),
    "torch.bfloat16": (SUM, SUM),
    "torch.float8_e4m3fn": (SUM, SUM),
    "torch.int32": (SUM, SUM),
    "torch.int64": (SUM, SUM),
    "torch.uint8": (SUM, SUM),
    "broadcast": (SECOND, SECOND),
    "reduce": (FIRST, SUM),
    "all-gather": ([*FIRST, *SECOND],) * 2,
    "reduce-scatter": ([10, 12], [14, 16]),
    "send and receive": (SECOND, FIRST),
    "all-to-all": ([0, 1, 10, 11], [2, 3, 12, 13]),
    "in a group of its own": (SUM, SUM),
    "large": ([3, 3], [3, 3]),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_gives_every_rank_what_nccl_would(name: str, found: Found) -> None:
    assert [found["collectives"][rank][name] for rank in range(2)] == list(COLLECTIVES[name])


@pytest.mark.parametrize("name", [name for name in on_two_ranks.TRAININGS if not name.startswith("one device")])
def test_two_devices_train_as_one(name: str, found: Found) -> None:
    alone = "one device, accumulating" if "accumulating" in name else "one device"
    expected, expected_losses = found["trainings"][0][alone]
    model, _ = found["trainings"][0][name]
    tolerance = 0.05 if "bf16" in name else 1e-4
    assert movement_error(model, expected, transformer()) < tolerance
    losses = [sum(pair) / 2 for pair in zip(*(found["trainings"][rank][name][1] for rank in range(2)), strict=True)]
    assert losses == pytest.approx(expected_losses, rel=max(tolerance, 1e-5))


@pytest.mark.parametrize("name", on_two_ranks.ON_MESHES)
def test_two_devices_that_divide_each_sample_train_as_one(name: str, found: Found) -> None:
    expected = found["alone"][0]
    model, losses = found["on_meshes"][0][name]
    assert list(model) == list(expected["model"])
    assert movement_error(model, expected["model"], gpt2(4, dropout=0.0)) < 1e-4
    assert losses == pytest.approx(expected["losses"], rel=1e-5)
    assert losses == found["on_meshes"][1][name][1]


def test_a_rank_that_is_gone_is_an_error_for_the_other(found: Found) -> None:
    (told,) = found["left_alone"].values()
    assert "rank 1 is gone" in told["said"]
    assert told["seconds"] < 30
