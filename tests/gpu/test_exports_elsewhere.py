"""axolotl's and LLaMA-Factory's own trainers reach the wrapper's parameters on GPUs, where these are installed."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from advisor.exports.export import export_policy
from advisor.exports.rules import Status
from advisor.exports.trainers import get_target
from tests.distributed.ranks import ROOT
from tests.exports.arguments import variables_of
from tests.exports.cells import FLOAT8, Cell
from tests.exports.cells_on_gpus import FAILING_ELSEWHERE, ON_GPUS_ELSEWHERE, ON_GPUS_UNDER
from tests.exports.policies import file_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("values"), pytest.mark.timeout(1800)]

CASES = [(name, cell) for name, cells in ON_GPUS_ELSEWHERE.items() for cell in cells]
State = dict[str, torch.Tensor]
Found = dict[str, list[list[State] | str]]
"""Name of a cell -> for each rank, what is trained at the start, in the trainer and with the wrapper; or an error."""


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, bool], Found]:
    """Trains all cells of a trainer that need as many ranks: in one process for each, but for those with float8, for
    which axolotl changes its Trainer for good."""

    @functools.cache
    def trained(name: str, count: int, in_float8: bool) -> Found:
        cells = (*ON_GPUS_ELSEWHERE[name], *FAILING_ELSEWHERE[name])
        chosen = [cell for cell in cells if ranks_of(cell) == count and (FLOAT8 in cell.settings) is in_float8]
        folder = tmp_path_factory.mktemp("cells")
        indices = [str(cells.index(cell)) for cell in chosen]
        command = [sys.executable, "-m", "tests.exports.on_gpus_elsewhere", str(folder), name, *indices]
        # axolotl uses all devices that it sees.
        shared = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count))), "MASTER_ADDR": "127.0.0.1"}
        shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_PORT": "0"}
        shared |= dict(variables_of(export_policy(file_of(*ON_GPUS_UNDER), get_target(name))))
        ranks = []
        for rank in map(str, range(count)):
            own = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
            ranks.append(subprocess.Popen(command, env=own, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        said = [rank.communicate(timeout=1500)[1] for rank in ranks]
        assert not any(rank.returncode for rank in ranks), said
        results = [torch.load(folder / f"{rank}.pt") for rank in range(count)]
        return {str(cell): [result[number] for result in results] for number, cell in enumerate(chosen)}

    return trained


def ranks_of(cell: Cell) -> int:
    return file_of(*cell.settings).policy.gpu_count


@pytest.mark.parametrize(("name", "cell"), CASES, ids=[f"{name}-{cell}" for name, cell in CASES])
def test_it_reaches_the_wrappers_parameters(name: str, cell: Cell, train: Callable[[str, int, bool], Found]) -> None:
    if find_spec(name) is None:
        pytest.skip(f"no {name}")
    if torch.cuda.device_count() < ranks_of(cell):
        pytest.skip("one device")
    first, *others = train(name, ranks_of(cell), FLOAT8 in cell.settings)[str(cell)]
    assert not isinstance(first, str), first
    begun, theirs, ours = first
    for other in others:
        torch.testing.assert_close(other[1], theirs, rtol=0, atol=0)
    differing = pytest.raises(AssertionError, match="weight") if cell.differs else contextlib.nullcontext()
    with differing:
        assert_moved_alike(begun, theirs, ours, cell.tolerance)


def test_axolotl_fails_with_weights_and_gradients_in_float16(train: Callable[[str, int, bool], Found]) -> None:
    """For which its export has no key, but beside adapters."""
    (cell,) = FAILING_ELSEWHERE["axolotl"]
    lines = export_policy(file_of(*cell.settings), get_target("axolotl")).lines
    (line,) = (line for line in lines if line.what.startswith("precision"))
    assert line.status is Status.ADAPTER
    if find_spec("axolotl") is None:
        pytest.skip("no axolotl")
    (error,) = train("axolotl", 1, False)[str(cell)]
    assert "Attempting to unscale FP16 gradients" in error


def assert_moved_alike(begun: State, theirs: State, ours: State, tolerance: float) -> None:
    """All that is trained has moved from where it was, and to the same place in both."""
    assert begun.keys() == theirs.keys() == ours.keys()
    for name, start in begun.items():
        moved = (ours[name] - start).norm()
        # Near one, bfloat16 has no number as close as two steps lead.
        assert moved > 0 or (start.dtype == torch.bfloat16 and "norm" in name), name
        assert (theirs[name] - ours[name]).norm() <= tolerance * moved, name
