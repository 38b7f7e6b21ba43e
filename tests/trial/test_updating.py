from __future__ import annotations

import pytest
import torch

from advisor.training.training import Training
from advisor.trial.worker.bench import until_updated


def half_precision_training(scale: float) -> Training:
    model = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    training = Training(model, compute_loss=lambda model, batch: model(batch).square().mean())
    training.gradient_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return training


def test_skipped_steps_are_repeated_until_the_optimizer_has_run() -> None:
    training = half_precision_training(scale=2.0**127)  # so large that gradients overflow at first
    attempts = []

    def attempt() -> torch.Tensor:
        attempts.append(training.step(torch.ones(2, 4)))
        return attempts[-1]

    loss = until_updated(training, attempt)
    assert len(attempts) > 1
    assert loss is attempts[-1]
    assert loss.item() == attempts[0].item()  # the skipped steps changed nothing
    assert training.optimizer.state


@pytest.mark.parametrize("scaled", [True, False])
def test_a_step_that_was_not_skipped_is_the_only_one(scaled: bool) -> None:
    training = half_precision_training(scale=1.0)
    if not scaled:
        training.gradient_scaler = None
    attempts = []
    until_updated(training, lambda: attempts.append(training.step(torch.ones(2, 4))))
    assert len(attempts) == 1


def test_a_rank_repeats_a_step_as_often_as_the_others() -> None:
    training = half_precision_training(scale=1.0)  # this rank alone would make one attempt
    attempts = []
    answers = iter([False, False, True])
    until_updated(training, lambda: attempts.append(training.step(torch.ones(2, 4))), lambda value: next(answers))
    assert len(attempts) == 3
