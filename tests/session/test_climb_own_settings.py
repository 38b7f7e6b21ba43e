"""The search of bigger beside the user's own settings: they are the baseline, and climb as plain training does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from advisor.decide.candidate import Role
from advisor.decide.choose import choose
from advisor.decide.floor import floor_rate
from advisor.errors import NothingMeasuredError
from advisor.policy.baseline import Baseline
from advisor.policy.policy import Policy
from advisor.report.growth import growth_table
from advisor.report.why_larger import explain_size
from advisor.search.study.sampler import Proposer
from tests.report.scenario import shown
from tests.session.test_climb import CHECKPOINT, HALF, MIB, SPACE, World, search, winner_of

OWN = Baseline(policy=Policy(methods=(CHECKPOINT,), micro_batch=4), origin="own.yaml")


@pytest.fixture
def proposer() -> Iterator[Proposer]:
    made = Proposer(SPACE, storage=None, study_name="test", maximize=(True,))
    yield made
    made.close()


def test_settings_of_the_users_own_are_measured_at_the_own_size_and_climb_completely(proposer: Proposer) -> None:
    """They are twice as fast here: half of their rate is reached at 8 layers, and without them at 4."""
    world = World(speed_up=2.0)
    found = search(proposer, world, floor=HALF, own=OWN)
    found.run()
    first = found.candidates[0]
    assert (first.role, first.policy, first.model_size) == (Role.BASELINE, OWN.policy, {"layers": 4})
    best = winner_of(found)
    assert (best.policy.methods, best.model_size) == ((CHECKPOINT,), {"layers": 8})
    assert {layers for name, layers in world.timed if name == "plain"} == {5}, "one size above the first record"


def test_the_floor_is_a_share_of_the_users_own_settings_and_plain_training_may_reach_further(
    proposer: Proposer,
) -> None:
    world = World(speed_up=0.5)
    found = search(proposer, world, floor=HALF, own=OWN)
    found.run()
    assert floor_rate(found.candidates, found.goal) == pytest.approx(0.49 * 125)
    best = winner_of(found)
    assert (best.policy.methods, best.model_size) == ((), {"layers": 16})
    answer = choose(found.candidates, found.goal, refused_settings={}, untried=0, stopped_because="it ended")
    assert answer.growth is not None
    why = " ".join(explain_size(answer, answer.growth, found.goal))
    assert "of your own settings (checkpoint every=1) at its own size" in why
    assert "Your own settings (checkpoint every=1) keep it up to layers=8" in why
    table = shown(growth_table(answer, answer.growth, own_settings=True))
    assert "yours: checkpoint every=1. winner: plain." in table


def test_where_the_users_own_settings_do_not_fit_nothing_takes_their_place(proposer: Proposer) -> None:
    world = World(limit=70 * MIB)
    found = search(proposer, world, floor=HALF, own=OWN)
    assert found.run() == (
        "training with your own settings at the model's own size has no measurement that a floor could be a share of"
    )
    assert [one.role for one in found.candidates] == [Role.BASELINE]
    with pytest.raises(NothingMeasuredError, match="of what your own settings reach at the model's own size"):
        winner_of(found)
