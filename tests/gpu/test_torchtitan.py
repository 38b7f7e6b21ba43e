"""torchtitan's Trainer reaches the wrapper's parameters with exported arguments, where it is installed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.ranks import ROOT
from tests.exports.cells import BY_TORCHTITAN, NOT_SEEN_BY_TORCHTITAN, Cell
from tests.exports.policies import file_of
from tests.gpu.conftest import skip_unless_triton_runs

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("values"), pytest.mark.timeout(900)]

PORT = 29700
EVERY_CELL = (*BY_TORCHTITAN, *NOT_SEEN_BY_TORCHTITAN)


def trained(cell: Cell, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The parameters at the start, torchtitan's after two steps, and the wrapper's."""
    pytest.importorskip("torchtitan")
    if any(setting.name == "compile" for setting in cell.settings):
        skip_unless_triton_runs()
    count = file_of(*cell.settings).policy.gpu_count
    if torch.cuda.device_count() < count:
        pytest.skip("one device")
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
    }
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    command = [sys.executable, "-m", "tests.exports.by_torchtitan", str(folder), str(EVERY_CELL.index(cell))]
    ranks = []
    for rank in map(str, range(count)):
        own = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen(command, env=own, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), said
    found: list[dict[str, torch.Tensor]] = torch.load(folder / "trained.pt")
    return found


@pytest.mark.parametrize("cell", EVERY_CELL, ids=str)
def test_torchtitan_reaches_the_wrappers_parameters(cell: Cell, tmp_path: Path) -> None:
    before, theirs, ours = trained(cell, tmp_path)
    differing = pytest.raises(AssertionError, match="weight") if cell.differs else contextlib.nullcontext()
    with differing:
        for name, start in before.items():
            moved = (ours[name] - start).norm()
            assert moved > 0
            assert (theirs[name] - ours[name]).norm() <= cell.tolerance * moved, name
