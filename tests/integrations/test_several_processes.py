"""Two processes with a trainer each train one model as a single one trains it on the whole batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from advisor.policy.apply import apply_policy
from tests.distributed.ranks import Launcher
from tests.integrations import on_ranks
from tests.integrations.small import adamw, batch, error, model, policy_of, rows

pytestmark = pytest.mark.slow

TOLERANCE = {"compressed": 1e-3}  # Gradients cross in float16.

Found = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(on_ranks.in_both_loops, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def single() -> tuple[dict[str, torch.Tensor], float]:
    """The state and the loss of plain training."""
    training = apply_policy(policy_of(), model(), build_optimizer=adamw, max_grad_norm=1.0)
    for step in range(on_ranks.STEPS):
        training.step(batch(step % 2))
    whole = {name: torch.stack([row[name] for row in rows()]) for name in rows()[0]}
    return training.state_dict()["model"], training.evaluate(lambda model: float(model(**whole).loss))


@pytest.mark.parametrize("name", on_ranks.DISTRIBUTING)
def test_the_ranks_train_as_one_process_and_resume(
    name: str, found: Found, single: tuple[dict[str, torch.Tensor], float]
) -> None:
    tolerance = TOLERANCE.get(name, 1e-4)
    for kind in ("state", "loop", *(("resumed",) if name in on_ranks.RESUMED else ())):
        assert error(found[0][name][kind], single[0]) < tolerance, kind
        assert found[1][name][kind] == {}, "rank 0 has all of it"
    assert found[0][name]["loss"] == found[1][name]["loss"] == pytest.approx(single[1], rel=1e-4)


@pytest.mark.parametrize("name", on_ranks.DISTRIBUTING)
def test_rank_0_saves_a_plain_model(name: str, found: Found) -> None:
    saved = transformers.AutoModelForCausalLM.from_pretrained(Path(found[0][name]["folder"]) / "checkpoint-3")
    torch.testing.assert_close(saved.state_dict(), type(saved.state_dict())(found[0][name]["state"]))
