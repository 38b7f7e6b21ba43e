"""How much of a limit a combination leaves free."""

from __future__ import annotations

import pytest

from advisor.methods.use import MethodUse, use
from advisor.search.memory_model import DEFAULT_MARGIN
from advisor.search.short_runs import memory_model_of

from .test_memory_model import MIB, TWO


@pytest.mark.parametrize(
    ("uses", "free"),
    [
        ((), DEFAULT_MARGIN),
        ((use("checkpoint", every=1),), DEFAULT_MARGIN),
        ((use("optimal_checkpoint", budget=0.6),), DEFAULT_MARGIN + 0.12),
        ((use("adam_8bit"), use("optimal_checkpoint", budget=0.6)), DEFAULT_MARGIN + 0.12),
    ],
    ids=["plain", "a fixed plan", "a plan by measured time", "and another method"],
)
def test_more_is_left_free_where_the_plan_of_another_batch_is_not_known(
    uses: tuple[MethodUse, ...], free: float
) -> None:
    model = memory_model_of(uses, TWO, None)
    limit = 400 * MIB
    largest = model.largest_batch(limit, rounded=False)
    assert model.predict(largest) <= (1 - free) * limit < model.predict(largest + 1)
