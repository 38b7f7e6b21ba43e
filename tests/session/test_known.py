"""What profiling runs, comparisons and timed trials teach about one combination."""

from __future__ import annotations

import msgspec
import pytest

from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Sizing
from advisor.methods.setting import use
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.trials.known import Known
from advisor.trial.outcome import Outcome
from advisor.trial.result import SizeResult
from tests.decide.examples import measured
from tests.search.test_memory_model import point, sizing

FUSED = Combination((use("fused_optimizer"),))
HALF = Speedup(value=0.5, low=0.45, high=0.55, rounds=2)


def flat(*, speedup: Speedup | None, compared_at: int | None) -> Sizing:
    """Nearly all of a step is the update of the weights."""
    two, four = (point(batch, passes=100, seconds=0.07) for batch in (2, 4))
    return sizing(two, msgspec.structs.replace(four, speedup=speedup, compared_at=compared_at))


def test_a_comparison_tells_how_long_a_step_takes_at_its_batch() -> None:
    beside = MemoryModel.fit(flat(speedup=None, compared_at=None)).timed(480, 1, 0.15)
    known = Known([])
    known.learn_sizing(FUSED, SizeResult(key="size", outcome=Outcome.OK, sizing=flat(speedup=HALF, compared_at=480)))
    assert known.models[FUSED.label].largest_within_seconds(3.0) < 480, "four samples say little"
    known.learn_turns(FUSED, beside)
    model = known.models[FUSED.label]
    assert model.seconds(480) == pytest.approx(0.3)
    assert 5000 < model.largest_within_seconds(3.0) < 7000


def test_without_a_comparison_nothing_is_learned_from_it() -> None:
    known = Known([])
    known.learn_sizing(FUSED, SizeResult(key="size", outcome=Outcome.OK, sizing=flat(speedup=None, compared_at=None)))
    before = known.models[FUSED.label]
    known.learn_turns(FUSED, before.timed(480, 1, 0.15))
    assert known.models[FUSED.label] == before


def test_what_was_timed_counts_for_more_than_a_comparison_at_a_smaller_batch() -> None:
    timed = measured(5000, *FUSED.settings, micro_batch=960)
    known = Known([timed])
    known.learn_sizing(FUSED, SizeResult(key="size", outcome=Outcome.OK, sizing=flat(speedup=HALF, compared_at=480)))
    before = known.models[FUSED.label]
    assert before.timed_at == 960
    known.learn_turns(FUSED, before)
    assert known.models[FUSED.label] == before
