"""A Trainer is tuned in trials of its own model, and the answer trains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import advisor
from tests.docs.loops import ROOT, python_blocks
from tests.integrations.trainers import LENGTHS, Texts, padded, trainer_of

SHORT: dict[str, Any] = {"search_space": "smoke", "trials": 1, "time_limit": 120}


@pytest.mark.slow
def test_a_trainer_is_tuned_and_its_answer_is_found_again_whatever_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is the code of docs/how-to.md, with an earlier end."""
    made = trainer_of(tmp_path, gradient_accumulation_steps=2)
    (on_the_page,) = [code for code in python_blocks((ROOT / "docs/how-to.md").read_text()) if "tune_trainer(" in code]
    names: dict[str, Any] = {"__name__": "__main__", "model": made.model, "args": made.args}
    names |= {"data": Texts(), "collate": padded}
    tune = advisor.tune_trainer
    short = {"output": tmp_path / "out", **SHORT}
    monkeypatch.setattr(advisor, "tune_trainer", lambda trainer, **asked: tune(trainer, **asked | short), raising=False)
    exec(compile(on_the_page, "docs/how-to.md", "exec"), names)
    trainer, answer = names["trainer"], names["answer"]
    found = answer.recommendation
    assert found.confirmation is not None
    assert found.confirmation.outcome.value == "ok"
    assert found.baseline is not None
    assert (found.baseline.policy.micro_batch, found.baseline.policy.accumulation_steps) == (4, 2)
    assert answer.facts.tokens_per_sample == max(LENGTHS)
    other = trainer_of(tmp_path, gradient_accumulation_steps=2)
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    assert advisor.tune_trainer(other, output=tmp_path / "out", **SHORT).cached
    training = advisor.apply_policy(answer, trainer.model)
    batch = trainer.get_train_dataloader().collate_fn([Texts()[place] for place in range(8)])
    losses = [float(training.step(batch)) for _ in range(3)]
    assert losses[-1] < losses[0]
    training.close()
