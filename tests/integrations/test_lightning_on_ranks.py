"""Two processes with Lightning's Trainer train one model as a single one trains it on the whole batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.errors import PolicyError
from advisor.integrations.lightning import ParallelPolicyStrategy, PolicyStrategy
from advisor.policy.apply import apply_policy
from tests.distributed.ranks import Launcher
from tests.integrations import lightning_on_ranks as on_ranks
from tests.integrations.on_ranks import DISTRIBUTING, STEPS, policy_of
from tests.integrations.small import adamw, error, model, rows
from tests.integrations.small import policy_of as of_one_device
from tests.integrations.test_several_processes import TOLERANCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_ranks.in_lightning, 2, tmp_path_factory.mktemp("lightning"))


def batch(samples: on_ranks.Rows) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in samples]) for name in samples[0]}


def by_one(samples: on_ranks.Rows, steps: int = STEPS) -> tuple[dict[str, torch.Tensor], float]:
    """The state and the loss of plain training."""
    training = apply_policy(of_one_device(), model(), build_optimizer=adamw, max_grad_norm=1.0)
    for _ in range(steps):
        training.step(batch(samples))
    loss = training.evaluate(
        lambda model: float(sum(model(**batch(part)).loss for part in (rows()[::2], rows()[1::2])) / 2)
    )
    return training.state_dict()["model"], loss


@pytest.mark.parametrize("name", DISTRIBUTING)
def test_the_ranks_train_as_one_process_evaluate_and_resume(name: str, found: list[dict[str, Any]]) -> None:
    tolerance = TOLERANCE.get(name, 1e-4)
    state, loss = by_one(on_ranks.one_step_of_rows())
    for kind in ("state", "resumed"):
        assert error(found[0][name][kind], state) < tolerance, kind
        assert found[1][name][kind] == {}, "rank 0 has all of it"
    assert found[0][name]["steps"] == STEPS
    assert found[0][name]["loss"] == found[1][name]["loss"] == pytest.approx(loss, rel=1e-4)


def test_the_block_of_the_page_trains_as_one_process(found: list[dict[str, Any]]) -> None:
    assert error(found[0]["documented"], by_one(on_ranks.one_step_of_rows())[0]) < 1e-4


@pytest.mark.parametrize("name", DISTRIBUTING)
def test_what_the_trainer_accumulates_is_a_step_of_the_same_samples(name: str, found: list[dict[str, Any]]) -> None:
    state, _ = by_one(on_ranks.whole_rows())
    assert error(found[0][name]["accumulated"], state) < TOLERANCE.get(name, 1e-4)


@pytest.mark.parametrize("name", DISTRIBUTING)
def test_a_checkpoint_is_that_of_a_plain_module(name: str, found: list[dict[str, Any]]) -> None:
    saved = on_ranks.Language.load_from_checkpoint(Path(found[0][name]["saved"]), weights_only=False)
    state, _ = by_one(on_ranks.one_step_of_rows(), STEPS - 1)
    assert error(saved.model.state_dict(), state) < TOLERANCE.get(name, 1e-4)


def test_what_the_trainer_would_do_beside_it_is_refused(found: list[dict[str, Any]]) -> None:
    refused = found[0]["refused"]
    assert refused["devices"] == (
        "A policy for 2 devices must be used by as many processes, but the Trainer has 4 (devices x num_nodes). Give "
        "it devices=2, or tune for 4."
    )
    assert "sync_batchnorm=True, which replaces them. Set sync_batchnorm=False" in refused["sync_batchnorm"]


def test_each_strategy_says_which_one_a_policy_needs() -> None:
    with pytest.raises(PolicyError, match=r"policy is for 2\..*ParallelPolicyStrategy\(policy\) and devices=2"):
        PolicyStrategy(policy_of("ddp"))
    with pytest.raises(PolicyError, match=r"policy is for 1\..*strategy=PolicyStrategy\(policy\) and devices=1"):
        ParallelPolicyStrategy(of_one_device())
