"""--goal bigger from the command line: the largest model that keeps a throughput, and files that build it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.policy.file import load_policy_file
from tests.session.command import run_here

GROWING = Path(__file__).parent / "workloads" / "growing.py"

pytestmark = pytest.mark.slow

# Memory decides here, not the clock: a busy machine changes how fast a size runs, not whether it fits.
QUICK = (
    "--goal", "bigger", str(GROWING), "--search-space", "smoke", "--memory-limit", "24MiB", "--time-limit", "60s",
    "--trials", "3",
)  # fmt: skip


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One finished search, looked at by several tests."""
    folder = tmp_path_factory.mktemp("grown")
    result = run_here(*QUICK, "--min-throughput", "0.001x", "--output", folder / "out", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "out", json.loads(result.stdout)


def test_the_largest_model_is_larger_than_the_own_one_and_keeps_the_floor(grown: tuple[Path, dict[str, Any]]) -> None:
    _, document = grown
    recommendation, winner = document["recommendation"], document["winner"]
    baseline = recommendation["baseline"]
    assert baseline["model_size"] == {"layers": 4}
    assert winner["model_size"]["layers"] > 4
    assert winner["parameter_count"] == winner["model_size"]["layers"] * (2 * 4 * 64 * 64 + 5 * 64)
    assert winner["samples_per_second"] >= recommendation["growth"]["floor_samples_per_second"]
    assert winner["peak_bytes"] <= 24 * 2**20


def test_sizes_are_not_swept_and_the_table_has_them_in_order(grown: tuple[Path, dict[str, Any]]) -> None:
    out, document = grown
    run = {json.loads(path.read_text())["model_size"].get("layers") for path in out.glob("trials/*/spec.json")}
    assert len(run - {None}) < 8, "of ten sizes"
    rows = document["recommendation"]["growth"]["rows"]
    assert [row["parameter_count"] for row in rows] == sorted(row["parameter_count"] for row in rows)


def test_the_policy_and_the_wrapper_say_which_size_to_build(grown: tuple[Path, dict[str, Any]]) -> None:
    out, document = grown
    size = document["winner"]["model_size"]
    evidence = load_policy_file(out / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.model_size == size
    assert evidence.goal == "bigger"
    assert f"model = build_model(layers={size['layers']})" in (out / "wrapper.py").read_text()
    assert document["recommendation"]["confirmation"]["outcome"] == "ok"


def test_the_wrapper_trains_the_model_of_that_size(grown: tuple[Path, dict[str, Any]]) -> None:
    out, document = grown
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2])\n"
        "import growing; from wrapper import POLICY, prepare\n"
        "layers = int(sys.argv[3])\n"
        "training = prepare(growing.build_model(layers=layers), compute_loss=growing.compute_loss)\n"
        "assert training.step(growing.make_batch(POLICY.global_batch)).isfinite()\n"
        "growing.build_model(layers=layers).load_state_dict(training.state_dict()['model'])\n"
        "print('trained')\n"
    )
    layers = str(document["winner"]["model_size"]["layers"])
    result = subprocess.run(
        [sys.executable, "-c", script, str(out), str(GROWING.parent), layers],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "trained\n", result.stderr


def test_more_trials_go_on_where_the_search_ended(grown: tuple[Path, dict[str, Any]]) -> None:
    out, document = grown
    finished = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/result.json")}
    options = ("--min-throughput", "0.001x", "--output", out, "--json")
    again = run_here(*QUICK[:-1], "4", *options, cwd=out.parent)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["winner"]["parameter_count"] >= document["winner"]["parameter_count"]
    for path, written in finished.items():
        assert path.stat().st_mtime_ns == written, f"{path} was run again"


def test_a_floor_that_no_size_meets_says_the_best_that_was_reached(tmp_path: Path) -> None:
    result = run_here(*QUICK[:-1], "1", "--min-throughput", "1e9", "--output", "out", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "must keep 1,000,000,000 samples/s, but none does. The best reached is" in result.stderr
    assert "Lower --min-throughput" in result.stderr
    assert not (tmp_path / "out" / "policy.yaml").exists()
