"""The command on several devices: two ranks on a CPU, from the search to a wrapper that torchrun starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.policy.file import load_policy_file
from tests.session.command import run_command, run_here
from tests.session.test_readme import ROOT, blocks
from tests.trial.specs import my_children

TINY = Path(__file__).parent / "workloads" / "tiny.py"
SPACE = """\
schema: 1
name: two devices
fidelity: lossy
methods:
  checkpoint: {every: [1]}
  ddp: {bucket_views: [true], static_graph: [false]}
batch_fractions: [1]
recipes: []
"""

BEFORE = """\
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import tiny, torch
from wrapper import POLICY
model = tiny.build_model()
batch = tiny.make_batch(POLICY.micro_batch * POLICY.accumulation_steps)
loader = [batch, batch, batch]
"""
AFTER = """
last = float(loss)
assert float(training.step(batch)) < last, "it learns"
first = torch.distributed.get_rank() == 0
assert first == bool(state["model"]), "the first process has the whole state"
if first:
    tiny.build_model().load_state_dict(state["model"])
sums = [None, None]
own = {name: value.double().sum().item() for name, value in training.model.state_dict().items()}
torch.distributed.all_gather_object(sums, own)
assert sums[0] == sums[1], "the ranks train one model"
torch.distributed.destroy_process_group()
sys.stdout.write("trained\\n")  # in one piece: both ranks share the pipe
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    (folder / "space.yaml").write_text(SPACE)
    return folder


def options(*more: str) -> tuple[str | Path, ...]:
    return (TINY, "--search-space", "space.yaml", "--time-limit", "90s", "--memory-limit", "10MiB", *more)


def test_cheapest_over_one_and_two_devices_gives_the_frontier_and_a_policy(folder: Path) -> None:
    asked = options("--goal", "cheapest", "--gpus", "1,2", "--trials", "3", "--output", "cheapest", "--json")
    result = run_here(*asked, cwd=folder)
    assert result.returncode == 0, result.stderr
    recommendation = json.loads(result.stdout)["recommendation"]
    candidates = recommendation["ranking"] + recommendation["not_measured"]
    assert {candidate["policy"]["gpu_count"] for candidate in candidates} == {1, 2}
    for candidate in recommendation["ranking"]:
        policy = candidate["policy"]
        assert policy["micro_batch"] * policy["accumulation_steps"] * policy["gpu_count"] == 4, "the workload's batch"
        distributes = any(setting["name"] == "ddp" for setting in policy["methods"])
        assert distributes == (policy["gpu_count"] == 2)
    points = recommendation["frontier"]["points"]
    assert points == sorted(points, key=lambda point: point["cost_usd"])
    assert [point["latency_seconds"] for point in points] == sorted(
        (point["latency_seconds"] for point in points), reverse=True
    )
    assert points[recommendation["frontier"]["pick"]]["policy"] == recommendation["winner"]["policy"]
    assert load_policy_file(folder / "cheapest" / "policy.yaml").policy.global_batch == 4


def test_a_policy_for_two_devices_is_confirmed_on_two_and_trains_under_torchrun(folder: Path) -> None:
    result = run_command(*options("--gpus", "2", "--trials", "1", "--output", "two"), cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "in a fresh process the wrapper trains" in result.stdout.replace("\n", " ").lower().replace(":", "")
    assert "torchrun" in result.stdout
    assert load_policy_file(folder / "two" / "policy.yaml").policy.gpu_count == 2
    on_the_page = next(code for code in blocks(ROOT / "docs" / "how-to.md", "python") if "init_process_group" in code)
    script = folder / "train.py"
    script.write_text(BEFORE + on_the_page + AFTER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    trained = subprocess.run(
        [*command, str(folder / "two"), str(TINY.parent)], capture_output=True, text=True, check=False, timeout=200
    )
    assert trained.stdout == "trained\ntrained\n", trained.stderr
    assert my_children() == []


def test_on_several_devices_something_must_distribute_the_training(folder: Path) -> None:
    result = run_here(*options("--gpus", "2", "--search-space", "smoke", "--output", "none"), cwd=folder)
    assert result.returncode == 2
    assert "On 2 devices one of" in result.stderr
    assert "Traceback" not in result.stderr
