"""What makes a training slower, everything else equal, is found in the comparisons of short steps."""

from __future__ import annotations

import pytest

from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.session.costly_methods import costly_methods
from tests.decide.examples import baseline, in_short_steps, measured

BF16, FUSED, CHECKPOINT = use("precision", dtype="bf16"), use("fused_optimizer"), use("checkpoint", every=1)


@pytest.mark.parametrize(
    ("low", "micro_batch", "is_costly"),
    [(1.25, 8, True), (0.99, 8, False), (1.13, 32, True), (1.09, 32, False)],
    ids=["clearly slower with it", "by chance perhaps", "far slower at another batch", "slower only there perhaps"],
)
def test_a_method_is_costly_where_the_rest_was_clearly_faster_in_turn(
    low: float, micro_batch: int, is_costly: bool
) -> None:
    """Seen: a mixture of experts was 1.32 times as fast without bf16, and seven more recipes were tried with it."""
    speedup = Speedup(value=1.32, low=low, high=1.32**2 / low, rounds=4)
    short = in_short_steps(measured(130, FUSED), measured(100, FUSED, BF16), speedup, micro_batch=micro_batch)
    found = costly_methods([baseline(90), measured(100, FUSED, BF16), short])
    assert found == ({"precision"} if is_costly else set())


def test_of_two_methods_that_are_missing_at_once_neither_is_blamed() -> None:
    speedup = Speedup(value=1.32, low=1.3, high=1.34, rounds=4)
    short = in_short_steps(measured(130, FUSED), measured(100, FUSED, BF16, CHECKPOINT), speedup, micro_batch=8)
    assert costly_methods([baseline(90), measured(100, FUSED, BF16, CHECKPOINT), short]) == set()


def test_what_helps_is_not_costly() -> None:
    speedup = Speedup(value=0.8, low=0.78, high=0.82, rounds=4)
    short = in_short_steps(measured(80, FUSED), measured(100, FUSED, BF16), speedup, micro_batch=8)
    assert costly_methods([baseline(70), measured(100, FUSED, BF16), short]) == set()
