"""How a trial of several ranks ends: decisions on made-up reports and deaths."""

from __future__ import annotations

import signal

import pytest

from advisor.measure.measurement import Sizing
from advisor.trial.outcome import Outcome
from advisor.trial.protocol import Reported
from advisor.trial.ranks.gathering import Gathering, Verdict
from advisor.trial.result import SizeResult
from advisor.trial.spec import SizeTrial
from tests.trial.specs import spec

GRACE = 2.0
SPEC = spec(kind=SizeTrial)


def fine(*, clean: bool = True, out_of_memory_at: int | None = None, note: str = "") -> Reported:
    sizing = Sizing(points=(), out_of_memory_at=out_of_memory_at, loss_trace=())
    result = SizeResult(key="of a rank", outcome=Outcome.OK, sizing=sizing, notes=(note,) if note else ())
    return Reported(result=result, clean=clean)


def bad(reason: str, outcome: Outcome = Outcome.FAILED, *, secondary: bool = False) -> Reported:
    return Reported(result=SizeResult(key="of a rank", outcome=outcome, reason=reason), secondary=secondary)


@pytest.fixture
def pair() -> Gathering:
    return Gathering(SPEC, 2, lambda: False)


def ended(gathering: Gathering, now: float = 0.0) -> Verdict:
    verdict = gathering.verdict(now)
    assert verdict is not None
    assert verdict.result.key == SPEC.key
    return verdict


def test_a_trial_is_over_when_every_rank_has_reported(pair: Gathering) -> None:
    pair.report(1, fine(note="b"), 0.0)
    assert pair.verdict(1000.0) is None
    assert pair.deadline is None
    pair.report(0, fine(note="a"), 1000.0)
    verdict = ended(pair)
    assert verdict.result.outcome is Outcome.OK
    assert verdict.result.notes == ("a", "b")
    assert verdict.clean


def test_what_one_rank_left_in_memory_makes_all_of_them_useless(pair: Gathering) -> None:
    pair.report(0, fine(), 0.0)
    pair.report(1, fine(clean=False), 0.0)
    assert not ended(pair).clean
    assert ended(pair).result.outcome is Outcome.OK


def test_the_first_failure_is_the_trials_at_once(pair: Gathering) -> None:
    """The others may wait for the failed rank forever."""
    pair.report(1, bad("too much", Outcome.OUT_OF_MEMORY), 0.0)
    pair.report(0, bad("later"), 0.0)
    assert ended(pair).result.outcome is Outcome.OUT_OF_MEMORY
    assert ended(pair).result.reason == "rank 1: too much"
    assert not ended(pair).clean


def test_a_refusal_is_no_matter_of_one_rank(pair: Gathering) -> None:
    pair.report(1, bad("no blocks were found", Outcome.REFUSED), 0.0)
    assert ended(pair).result.reason == "no blocks were found"


@pytest.mark.parametrize("cause", ["death", "failure"])
def test_what_follows_from_another_ranks_failure_is_not_the_cause(pair: Gathering, cause: str) -> None:
    pair.report(0, bad("connection closed by peer", secondary=True), 0.0)
    assert pair.verdict(0.0) is None
    assert pair.deadline == GRACE
    if cause == "death":
        pair.death(1, -signal.SIGSEGV, 1.0)
        assert ended(pair).result.outcome is Outcome.CRASHED
        assert ended(pair).result.reason == "rank 1: it was ended by SIGSEGV without a result"
    else:
        pair.report(1, bad("my mistake"), 1.0)
        assert ended(pair).result.reason == "rank 1: my mistake"


def test_a_lost_connection_is_believed_when_no_cause_shows_itself(pair: Gathering) -> None:
    pair.report(0, bad("connection closed by peer", secondary=True), 0.0)
    assert pair.verdict(0.9 * GRACE) is None
    assert ended(pair, GRACE).result.reason == "rank 0: connection closed by peer"


def test_ranks_that_lost_each_other_wait_for_no_cause_longer_than_the_grace(pair: Gathering) -> None:
    pair.report(1, bad("reset by peer", secondary=True), 0.0)
    pair.report(0, bad("closed by peer", secondary=True), 0.5)
    assert pair.verdict(0.5) is None
    assert ended(pair, GRACE).result.reason == "rank 1: reset by peer"


@pytest.mark.parametrize(
    ("status", "outcome", "how"),
    [
        (0, Outcome.CRASHED, "ended with exit status 0"),
        (-signal.SIGSEGV, Outcome.CRASHED, "was ended by SIGSEGV"),
        (-signal.SIGKILL, Outcome.LOST, "was ended by SIGKILL"),
        (None, Outcome.LOST, "went away"),
    ],
)
def test_a_rank_that_dies_without_a_result_has_crashed_or_was_lost(
    pair: Gathering, status: int | None, outcome: Outcome, how: str
) -> None:
    pair.report(0, fine(), 0.0)
    pair.death(1, status, 0.0)
    assert ended(pair).result.outcome is outcome
    assert ended(pair).result.reason == f"rank 1: it {how} without a result"


def test_a_kill_with_the_kernels_evidence_is_host_memory() -> None:
    evident = Gathering(SPEC, 2, lambda: True)
    evident.death(1, -signal.SIGKILL, 0.0)
    assert ended(evident).result.outcome is Outcome.HOST_OUT_OF_MEMORY
    aborted = Gathering(SPEC, 2, lambda: True)
    aborted.death(1, -signal.SIGABRT, 0.0)
    assert ended(aborted).result.outcome is Outcome.CRASHED


def test_a_death_after_the_result_costs_the_ranks_and_not_the_trial(pair: Gathering) -> None:
    pair.report(1, fine(), 0.0)
    pair.death(1, 0, 0.0)
    assert pair.verdict(1000.0) is None
    pair.report(0, fine(), 1000.0)
    assert ended(pair).result.outcome is Outcome.OK
    assert not ended(pair).clean


def test_a_death_after_the_result_is_the_cause_of_what_others_lost(pair: Gathering) -> None:
    pair.report(1, fine(), 0.0)
    pair.death(1, 0, 0.0)
    pair.report(0, bad("connection closed by peer", secondary=True), 0.0)
    assert ended(pair).result.reason == "rank 1: it ended with exit status 0 before the others had theirs"


def test_points_until_one_rank_ran_out_of_memory_are_kept_although_others_wait(pair: Gathering) -> None:
    pair.report(1, fine(clean=False, out_of_memory_at=8), 0.0)
    assert pair.verdict(0.9 * GRACE) is None
    verdict = ended(pair, GRACE)
    assert verdict.result.outcome is Outcome.OK
    assert verdict.result.sizing is not None
    assert verdict.result.sizing.out_of_memory_at == 8
    assert not verdict.clean


def test_ranks_that_failed_because_one_ran_out_of_memory_are_no_failure(pair: Gathering) -> None:
    pair.report(0, bad("stage 1 raised RuntimeError", secondary=True), 0.0)
    pair.report(1, fine(clean=False, out_of_memory_at=8), 0.0)
    verdict = ended(pair)
    assert verdict.result.outcome is Outcome.OK
    assert verdict.result.sizing is not None
    assert verdict.result.sizing.out_of_memory_at == 8
    assert not verdict.clean
