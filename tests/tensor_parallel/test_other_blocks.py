"""Blocks that return, take or do more than hidden states are sliced exactly, or refused before any rank begins."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.methods.tensor_parallel._derivation import Derivation, derive
from advisor.training.structure import find_blocks
from tests.distributed.ranks import Launcher
from tests.pipeline_parallel.staged_models import build
from tests.tensor_parallel import on_ranks
from tests.tensor_parallel.other_blocks import SLICED, loss_of

EXACT = [(kind, sequence) for kind, refusals in SLICED.items() for sequence in (False, True) if not refusals[sequence]]


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launcher.run(on_ranks.on_other_blocks, 2, tmp_path_factory.mktemp("blocks"))


def derived(kind: str) -> Derivation:
    model = build(kind)
    return derive(model, find_blocks(model), loss_of(kind), 2)


@pytest.mark.parametrize(("kind", "sequence"), EXACT)
def test_a_step_of_sliced_blocks_is_that_of_one_process(found: list[dict[str, Any]], kind: str, sequence: bool) -> None:
    step = found[0][f"{kind}, sequence={sequence}"]
    assert not isinstance(step, str), step
    # A router's gradient is a small difference of large ones.
    assert step["gradients"] < (2e-5 if kind == "routes" else 2e-6)
    assert step["loss"] < 1e-5
    assert step["held"] < 0.95


@pytest.mark.parametrize("kind", [kind for kind, refusals in SLICED.items() if any(refusals)])
def test_what_ranks_would_compute_wrongly_is_refused_in_one_process(kind: str) -> None:
    whole, split = SLICED[kind]
    derivation = derived(kind)
    if whole:
        assert not any(plan.regions for plan in derivation.plans)
        assert whole in "; ".join(derivation.reasons)
    assert split in derivation.no_sequence


def test_a_bias_of_each_layer_keeps_attention_whole_and_slices_the_rest() -> None:
    """Trap: each rank's heads have a part of its gradient, which nobody would sum."""
    derivation = derived("layer by layer")
    assert "parts of the gradient of what the block is given besides" in "; ".join(derivation.reasons)
    assert {region.exit for plan in derivation.plans for region in plan.regions} == {"mlp.2"}


def test_a_penalty_on_weights_keeps_them_whole() -> None:
    model = build("in parallel")

    def penalized(model: Any) -> Any:
        return loss_of("in parallel")(model) + sum(one.square().sum() for one in model.blocks.parameters())

    derivation = derive(model, find_blocks(model), penalized, 2)
    assert not any(plan.regions for plan in derivation.plans)
    assert "the loss reads them, or what they compute" in "; ".join(derivation.reasons)
