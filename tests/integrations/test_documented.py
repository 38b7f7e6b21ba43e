"""What the pages show for other trainers, run as it stands, trains as the wrapper does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from torch.utils.data import DataLoader

from advisor.policy.apply import apply_policy
from tests.docs.loops import ROOT, Loop, documented_loops, python_blocks
from tests.integrations.small import STEPS, adamw, arguments, batch, error, model, rows

LOOPS = [loop for loop in documented_loops() if "accelerator" in loop.code]
ATTACHED = [code for code in python_blocks((ROOT / "docs/how-to.md").read_text()) if "hf.attach(" in code]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    methods = "{precision: {dtype: bf16}}"
    Path("policy.yaml").write_text(
        f"schema: 1\npolicy: {{micro_batch: 2, accumulation_steps: 2, methods: {methods}}}\n"
    )


def expected(max_grad_norm: float | None, *, scheduled: bool) -> dict[str, torch.Tensor]:
    training = apply_policy("policy.yaml", model(), build_optimizer=adamw, max_grad_norm=max_grad_norm)
    scheduler = torch.optim.lr_scheduler.LinearLR(training.optimizer) if scheduled else None
    for step in range(STEPS):
        training.step(batch(step))
        if scheduler is not None:
            scheduler.step()
    return training.state_dict()["model"]


def test_both_places_show_the_loop_of_accelerate_and_the_page_shows_a_trainer() -> None:
    assert {loop.place.split(" #")[0] for loop in LOOPS} == {
        "docs/how-to.md",
        "advisor/integrations/accelerate.py:prepare",
    }
    assert len(ATTACHED) == 1


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.place)
def test_a_loop_with_an_accelerator_trains_as_the_wrapper(loop: Loop) -> None:
    names: dict[str, Any] = {
        "torch": torch,
        "model": model(),
        "accelerator": Accelerator(cpu=True),
        "loader": DataLoader(rows(), batch_size=2),
        "build_optimizer": adamw,
    }
    exec(compile(loop.code, loop.place, "exec"), names)
    clipped = 1.0 if "clip_grad_norm_(" in loop.code else None
    assert error(names["prepared"].training.state_dict()["model"], expected(clipped, scheduled=True)) < 1e-6


def test_the_trainer_of_the_page_trains_as_the_wrapper(tmp_path: Path) -> None:
    names: dict[str, Any] = {
        "Trainer": transformers.Trainer,
        "model": model(),
        "args": arguments(tmp_path),
        "dataset": rows(),
    }
    exec(compile(ATTACHED[0], "docs/how-to.md", "exec"), names)
    assert error(names["trainer"].model.state_dict(), expected(1.0, scheduled=False)) < 1e-6
