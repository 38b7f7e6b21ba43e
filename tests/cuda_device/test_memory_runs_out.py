"""A whole run where memory runs out: it goes on, ends with an answer or one line, and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cuda_device.machine import H100, Gpu, Machine
from tests.gpu.unruly import Unruly

pytestmark = pytest.mark.slow

SMALL = Gpu("a small GPU", 1_600, "9.0")
"""A training has 1,000 MiB of it beside the context."""

ON_TWO = """
schema: 1
name: on two
description: One way to train together.
fidelity: model
methods:
  ddp: {bucket_views: [true], static_graph: [false]}
"""


def tuned(machine: Machine, model: Path, *options: str | Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    """The finished command, and what it printed."""
    command = [sys.executable, "-m", "advisor", model, "--global-batch", "8", "--fidelity", "model", "--json"]
    command += ["--device", "cuda", "--time-limit", "120s", "--output", model.parent / "out", *options]
    mark = str(model.parent)
    result = machine.run(command, {"MOMADVISE_TEST": mark}, cwd=model.parent, capture_output=True, timeout=280)
    assert not list(left_running(mark)), "nothing of a run outlives it"
    return result, json.loads(result.stdout)


def left_running(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get("MOMADVISE_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def test_a_model_that_only_fits_with_methods_gets_them(tmp_path: Path) -> None:
    """Plain training runs out in the probe, in profiling runs and as the reference run of comparisons."""
    model = Unruly(tmp_path).file("takes too much", "plain")
    methods = ("--methods", "checkpoint", "--trials", "1")
    result, document = tuned(Machine(gpus=(SMALL,), time=0.05), model, *methods)
    assert result.returncode == 0, result.stderr
    recommendation = document["recommendation"]
    assert [setting["name"] for setting in recommendation["winner"]["policy"]["methods"]] == ["checkpoint"]
    assert recommendation["winner"]["not_compared"] == "plain training does not fit"
    assert recommendation["confirmation"]["outcome"] == "ok"
    assert {each["outcome"] for each in recommendation["not_measured"]} == {"out of memory"}


def test_a_rank_that_runs_out_costs_only_what_needed_it(tmp_path: Path) -> None:
    """Two devices that train on more than two samples at a time each, of which one is full then."""
    model = Unruly(tmp_path).file("takes too much", "rank 1", above=2)
    (tmp_path / "space.yaml").write_text(ON_TWO)
    options = ("--goal", "cheapest", "--price", "2", "--gpus", "2", "--search-space", "space.yaml", "--trials", "1")
    result, document = tuned(Machine(gpus=(H100, H100), time=0.05), model, *options, "--memory-limit", "4GiB")
    assert result.returncode == 0, result.stderr
    recommendation = document["recommendation"]
    assert recommendation["winner"]["policy"]["gpu_count"] == 2
    assert recommendation["winner"]["policy"]["micro_batch"] <= 2
    assert recommendation["confirmation"]["outcome"] == "ok"
