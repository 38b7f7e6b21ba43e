"""The main job for every goal, from the probe to the confirmed wrapper, on one GPU and on two."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cuda_device.machine import H100, Machine
from tests.session import workloads

pytestmark = pytest.mark.slow

TINY, GROWING = (Path(workloads.__path__[0]) / f"{name}.py" for name in ("tiny", "growing"))
RANKS = Path(__file__).parent / "ranks.yaml"

FEW = ("--trials", "3")  # every method runs on a GPU in tests/gpu

# Without gradients nothing is known about splitting a batch: that has to be allowed.
GOALS = {
    "faster": (1, [TINY, "--goal", "faster", "--search-space", "smoke", "--fidelity", "model", *FEW]),
    "bigger": (
        1,
        [GROWING, "--goal", "bigger", "--min-throughput", "0.5x", "--search-space", "smoke", "--fidelity", "model"],
    ),
    "cheapest": (2, [TINY, "--goal", "cheapest", "--price", "2", "--search-space", RANKS, "--fidelity", "model"]),
    "faster on two": (
        2,
        [TINY, "--goal", "faster", "--gpus", "2", "--search-space", RANKS, "--fidelity", "model", *FEW],
    ),
}


@pytest.mark.parametrize("name", GOALS)
def test_a_goal_is_reached_on_gpus(name: str, tmp_path: Path) -> None:
    count, arguments = GOALS[name]
    command = [sys.executable, "-m", "advisor", *arguments, "--device", "cuda", "--memory-limit", "8GiB"]
    command += ["--time-limit", "60s", "--output", tmp_path / "out", "--json"]
    result = Machine(gpus=(H100,) * count, time=0.1).run(command, cwd=tmp_path, capture_output=True, timeout=280)
    assert result.returncode == 0, result.stderr
    recommendation = json.loads(result.stdout)["recommendation"]
    # What a wrapper promises is a time, which is none here.
    assert recommendation["confirmation"]["outcome"] == "ok"
    assert recommendation["ranking"]
    outcomes = {each["outcome"] for each in recommendation["not_measured"]}
    assert not outcomes & {"failed", "crashed", "hung", "lost"}, result.stderr
    assert {"policy.yaml", "wrapper.py"} <= {path.name for path in (tmp_path / "out").iterdir()}
