"""The main job on a CUDA device, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.policy.file import load_policy_file
from tests.session.command import run_command

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TINY = Path(__file__).parents[1] / "session" / "workloads" / "tiny.py"


@pytest.fixture(scope="module")
def tuned(cuda: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("tuned")
    result = run_command(
        "--goal", "faster", TINY, "--search-space", "smoke", "--device", "cuda", "--trials", "3",
        "--time-limit", "120s", "--memory-limit", "4GiB", "--output", folder / "out", "--json", cwd=folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder / "out", result


def test_it_measures_decides_and_confirms(tuned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, result = tuned
    document = json.loads(result.stdout)
    recommendation = document["recommendation"]
    assert recommendation["confirmation"]["outcome"] == "ok"
    assert recommendation["baseline"]["policy"]["micro_batch"] == 4
    memory = recommendation["winner"]["measurement"]["memory"]
    assert memory["peak_reserved_bytes"] >= memory["peak_allocated_bytes"] > 0
    assert memory["peak_bytes"] <= 4 * 2**30
    assert memory["allocation_retries"] is not None
    file = load_policy_file(out / "policy.yaml")
    assert file.fingerprints is not None
    assert file.fingerprints.hardware["kind"] == "cuda"


@pytest.mark.usefixtures("values")
def test_the_wrapper_trains_on_the_gpu(tuned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = tuned
    script = (
        "import sys, torch; sys.path[:0] = sys.argv[1:]\n"
        "import tiny; from wrapper import POLICY, prepare\n"
        "training = prepare(tiny.build_model())\n"
        "losses = [training.step(tiny.make_batch(POLICY.global_batch)).item() for _ in range(3)]\n"
        "assert losses[2] < losses[0], losses\n"
        "print(training.device.type)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(out), str(TINY.parent)], capture_output=True, text=True, check=False
    )
    assert result.stdout == "cuda\n", result.stderr


def test_the_table_is_for_people(tuned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = tuned
    again = run_command(
        TINY, "--search-space", "smoke", "--device", "cuda", "--trials", "3", "--time-limit", "120s",
        "--memory-limit", "4GiB", "--output", out, cwd=out.parent,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "baseline" in again.stdout
    assert "and reused: nothing has changed since" in " ".join(again.stdout.split())
