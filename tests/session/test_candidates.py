"""The ledger: what was found out about a measurement later replaces it, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.decide.candidate import Role
from advisor.goal import GoalKind
from advisor.session.ledger import append_candidate, lost_candidates, read_candidates, without_chance
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, lost, measured
from tests.decide.test_guard import found


def test_a_candidate_that_was_compared_later_is_read_once_with_what_was_found(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first = msgspec.structs.replace(measured(100), trial_key="time-1")
    other = msgspec.structs.replace(measured(90), trial_key="time-2")
    compared = msgspec.structs.replace(first, guard=found(0.003))
    for candidate in (first, other, compared):
        append_candidate(ledger, candidate)
    assert read_candidates(ledger) == [compared, other]


def test_the_same_measurement_in_another_role_or_size_is_another_candidate(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first = msgspec.structs.replace(baseline(100), trial_key="time-1")
    others = [
        msgspec.structs.replace(first, role=Role.SEARCHED),
        msgspec.structs.replace(first, model_size={"layers": 8}),
        lost(Outcome.SCREENED, reason="too big"),
        lost(Outcome.SCREENED, reason="too big"),
    ]
    for candidate in (first, *others):
        append_candidate(ledger, candidate)
    assert read_candidates(ledger) == [first, *others]


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.LOST])
def test_a_baseline_that_ended_by_chance_is_none_for_the_next_run(outcome: Outcome) -> None:
    held_up, other = lost(outcome, role=Role.BASELINE), lost(outcome)
    assert without_chance([held_up, other, measured(90)], GoalKind.FASTER) == [other, measured(90)]
    assert without_chance([held_up, other, measured(90)], GoalKind.BIGGER) == [measured(90)]


def test_a_baseline_that_failed_by_itself_stays_so() -> None:
    failed = [lost(outcome, role=Role.BASELINE) for outcome in (Outcome.CRASHED, Outcome.FAILED, Outcome.OUT_OF_MEMORY)]
    assert without_chance(failed, GoalKind.FASTER) == failed


def test_what_was_ended_from_outside_is_tried_again_beyond_the_trials_until_it_is_measured() -> None:
    here, larger = lost(Outcome.LOST), msgspec.structs.replace(lost(Outcome.LOST), model_size={"layers": 8})
    late = lost(Outcome.TIMEOUT)
    assert lost_candidates([measured(90), late]) == 0
    assert lost_candidates([measured(90), here, larger, here]) == 2
    done = msgspec.structs.replace(here, outcome=Outcome.OK)
    assert lost_candidates([here, larger, done]) == 1


def test_what_was_lost_while_it_was_timed_may_lead_again_as_it_did_by_its_short_steps() -> None:
    gone = lost(Outcome.LOST)
    compared = msgspec.structs.replace(gone, outcome=Outcome.COMPARED)
    assert without_chance([compared, gone], GoalKind.FASTER) == [compared]
    assert without_chance([gone], GoalKind.FASTER) == [gone]
