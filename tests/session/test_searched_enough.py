"""When the same command returns the stored answer, and when a longer limit is worth another look."""

from __future__ import annotations

import msgspec
import pytest

from advisor.measure.in_turn import Speedup
from advisor.session.tune import _searched_enough
from advisor.trial.outcome import Outcome
from tests.decide.examples import goal, lost
from tests.report.scenario import CONFIRMED, answered, recommendation
from tests.session.contexts import study

VAGUE = Speedup(value=1.3, low=0.97, high=1.74, rounds=4)
NO_GAIN = Speedup(value=0.97, low=0.95, high=0.99, rounds=4)


@pytest.mark.parametrize(
    ("outcome", "confirmed", "wants_time"),
    [
        (None, None, False),
        (Outcome.TIMEOUT, None, True),
        (Outcome.CRASHED, None, False),
        (None, VAGUE, True),
        (None, NO_GAIN, False),
    ],
    ids=["nothing is open", "one took too long", "one crashed", "a gain was vague", "one was no gain"],
)
def test_where_everything_was_tried_a_longer_limit_is_for_what_took_too_long_or_was_vague(
    outcome: Outcome | None, confirmed: Speedup | None, wants_time: bool
) -> None:
    """Trap: "raise --time-limit to try it", and the same command with more time returned the stored answer."""
    answer = recommendation(confirmation=CONFIRMED)
    first, *others = answer.ranking
    ranking = (msgspec.structs.replace(first, confirmed=confirmed), *others)
    ended = () if outcome is None else (lost(outcome),)
    stored = answered(msgspec.structs.replace(answer, ranking=ranking, not_measured=ended), goal())
    stored = msgspec.structs.replace(stored, exhausted=True)
    request = msgspec.structs.replace(study(trials=10).request, time_limit_seconds=stored.time_budget_seconds)
    assert _searched_enough(stored, request)
    longer = msgspec.structs.replace(request, time_limit_seconds=2 * stored.time_budget_seconds)
    assert _searched_enough(stored, longer) is not wants_time
