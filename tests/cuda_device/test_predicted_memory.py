"""A few rows of ``python -m benchmarks.allocator_prediction``: predictions against torch's allocator on the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import Machine

MODELS = ("mobilenet", "opt")

ALLOCATED, RESERVED = 0.02, 0.1
"""Relative errors that these models stay below on the whole page (docs/results/allocator-prediction.md)."""


@pytest.mark.slow
def test_what_is_predicted_is_what_the_allocator_takes(python: Python, tmp_path: Path) -> None:
    script = f"""
from benchmarks import allocator_prediction as table
table.POLICIES = {{name: table.POLICIES[name] for name in ("plain", "expandable")}}
table._BATCHES = table._BATCHES[:1]
table.main(["--models", *{MODELS!r}, "--output", {str(tmp_path)!r}])
"""
    python(script, Machine(time=0.05))
    cases = [json.loads(line) for line in (tmp_path / "allocator-prediction.jsonl").read_text().splitlines()]
    assert [(case["model"], case["policy"]) for case in cases] == [
        (model, policy) for model in MODELS for policy in ("plain", "expandable")
    ]
    for case in cases:
        assert case["why_not"] == ""
        for allocated, reserved in (case["on_device"], case["by_profile"]):
            assert allocated == pytest.approx(case["allocated"], rel=ALLOCATED), case
            assert reserved == pytest.approx(case["reserved"], rel=RESERVED), case
