"""torchtitan's Trainer reaches the wrapper's parameters with exported arguments, where it is installed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from advisor.errors import PolicyError
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.methods.setting import use
from tests.distributed.ranks import ROOT
from tests.exports.arguments import variables_of
from tests.exports.cells import BY_TORCHTITAN, Cell
from tests.exports.policies import file_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("values"), pytest.mark.timeout(900)]

PORT = 29700
ROUNDED = torch.finfo(torch.float32).eps
"""How far rounding takes a parameter, relative to its size: the weights of normalizations move by little more."""


def trained(cell: Cell, folder: Path, *schedule: str) -> list[dict[str, torch.Tensor]]:
    """The parameters at the start, torchtitan's after two steps, maybe under another schedule, and the wrapper's."""
    pytest.importorskip("torchtitan")
    export = export_policy(file_of(*cell.settings), get_target("torchtitan"))
    count = export.policy.gpu_count
    if torch.cuda.device_count() < count:
        pytest.skip("one device")
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
    }
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    command = [
        sys.executable,
        "-m",
        "tests.exports.by_torchtitan",
        str(folder),
        str(BY_TORCHTITAN.index(cell)),
        *schedule,
    ]
    ranks = []
    for rank in map(str, range(count)):
        own = {**os.environ, **shared, **dict(variables_of(export)), "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen(command, env=own, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), said
    found: list[dict[str, torch.Tensor]] = torch.load(folder / "trained.pt")
    return found


@pytest.mark.parametrize("cell", BY_TORCHTITAN, ids=str)
def test_torchtitan_reaches_the_wrappers_parameters(cell: Cell, tmp_path: Path) -> None:
    before, theirs, ours = trained(cell, tmp_path)
    differing = pytest.raises(AssertionError, match="weight") if cell.differs else contextlib.nullcontext()
    with differing:
        for name in before:
            assert is_alike(before[name], theirs[name], ours[name], cell.tolerance), name


def test_under_zero_bubble_torchtitan_leaves_the_last_normalization_as_it_is(tmp_path: Path) -> None:
    """For which its export refuses that schedule. The normalization is sharded together with the output layer, which
    the chunked loss puts away before gradients of weights are computed, so that these do not find its weight."""
    with pytest.raises(PolicyError, match="normalization"):
        export_policy(file_of(use("pipeline", schedule="zero_bubble")), get_target("torchtitan"))
    like_it = next(cell for cell in BY_TORCHTITAN if use("pipeline", schedule="interleaved") in cell.settings)
    before, theirs, _ = trained(like_it, tmp_path, "ZBVZeroBubble")
    moved = [name for name in before if not torch.equal(theirs[name], before[name])]
    assert set(before) - set(moved) == {"norm.weight"}


def is_alike(start: torch.Tensor, theirs: torch.Tensor, ours: torch.Tensor, tolerance: float) -> bool:
    """Whether a parameter has moved from its start to the same place in both."""
    moved = (ours - start).norm()
    assert moved > 0
    return bool((theirs - ours).norm() <= tolerance * moved + ROUNDED * start.norm())
