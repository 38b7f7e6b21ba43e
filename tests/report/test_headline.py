"""The first lines say what the winner brings, whether that is sure, and what to do if it is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Recommendation, Role
from advisor.decide.choose import choose
from advisor.decide.confirmation import Confirmation
from advisor.measure.in_turn import Speedup
from advisor.report.answer import confirmation_words
from advisor.report.headline import gain_is_open, headline, headline_lines
from advisor.report.sentences import go_on
from advisor.report.why import explained
from advisor.report.wording import confirmed_beyond, promise_words
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, goal, measured, measurement

from . import test_growth
from .scenario import BF16, CHECKPOINT, CONFIRMED, recommendation, shown, words


def said(answer: Recommendation) -> dict[str, str]:
    return {line.label: line.words for line in headline_lines(answer, goal())}


def title(answer: Recommendation) -> str:
    return words(shown(headline(answer, goal(), files={}, apply_lines=()), width=200)).partition(" speed")[0]


def of(*candidates: Any, stopped_because: str = "the time limit of 40s was reached") -> Recommendation:
    answer = choose(list(candidates), goal(), refused_settings={}, untried=5, stopped_because=stopped_because)
    return explained(answer, goal())


IN_TURN = Speedup(value=5.2, low=4.2, high=6.2, rounds=7)


def test_a_promise_in_turn_is_the_speed_with_its_interval() -> None:
    confirmed = msgspec.structs.replace(CONFIRMED, speedup=IN_TURN, promise=IN_TURN, expected_speedup=5.0)
    found = said(recommendation(confirmation=confirmed))
    assert found["speed"] == "5.20 times the baseline, ±19%: 319 instead of 61.3 samples/s"
    assert found["confirmed"] == "yes: wrapper and baseline took 7 turns each in fresh processes"
    assert "next" not in found


def test_of_a_promise_between_far_ends_the_lower_one_counts() -> None:
    wide = msgspec.structs.replace(IN_TURN, low=2.0, high=9.0)
    found = said(recommendation(confirmation=msgspec.structs.replace(CONFIRMED, speedup=wide, promise=wide)))
    assert found["speed"] == (
        "at least 2.00 times the baseline; measured between 2.00 times and 9.00 times, "
        "which is too unsteady to say more"
    )
    assert found["next"].startswith("run the same command again with --wait-idle")


def test_a_promise_that_may_be_no_gain_says_so() -> None:
    words = promise_words(Speedup(value=8.1, low=0.74, high=44.6, rounds=3), 2.0)
    assert words == "8.10 times the baseline just now, but between 0.74 times and 44.60 times: no gain is certain"


def test_a_gain_that_turns_leave_open_is_neither_called_sure_nor_confirmed_anywhere() -> None:
    for low, high in ((0.74, 44.6), (0.97, 1.11)):
        open_ended = Speedup(value=1.04, low=low, high=high, rounds=3)
        confirmed = msgspec.structs.replace(CONFIRMED, speedup=open_ended, promise=open_ended, expected_speedup=1.04)
        answer = recommendation(confirmation=confirmed)
        found = said(answer)
        assert found["speed"].endswith("no gain is certain")
        assert found["confirmed"] == (
            "not yet: wrapper and baseline took 3 turns each in fresh processes, "
            "which leave open which of them is faster"
        )
        assert found["next"].startswith("run the same command again with --wait-idle")
        assert title(answer).startswith("Not certain to be faster: train with chunked_cross_entropy")
        sentences = confirmation_words(confirmed, open_gain=gain_is_open(answer))
        assert sentences.startswith("Not confirmed: the wrapper and the baseline took 3 turns each")


@pytest.mark.parametrize(
    ("around", "page_faults", "words"),
    [
        ("", (), "but other processes may differ by more than that"),
        ("intraop_threads count=1", (), "but without other processes beside it the baseline may be as fast"),
        ("a", (9e3, 4e5), "but not every process of the baseline is as slow as the one that was seen"),
    ],
)
def test_turns_that_were_clear_are_not_said_to_leave_a_gain_open(
    around: str, page_faults: tuple[float, ...], words: str
) -> None:
    clear = Speedup(value=2.2, low=2.15, high=2.25, rounds=7)
    confirmed = msgspec.structs.replace(
        CONFIRMED,
        speedup=clear,
        promise=msgspec.structs.replace(clear, low=1.0),
        around_stalls=around,
        page_faults=page_faults,
    )
    answer = recommendation(confirmation=confirmed)
    found = said(answer)
    assert found["confirmed"].endswith(words)
    assert ("next" in found) is not bool(page_faults)
    sentences = confirmation_words(confirmed, open_gain=gain_is_open(answer))
    assert words in sentences
    assert "between 1.00 and 2.25" in sentences
    assert ("--wait-idle" in sentences) is not bool(page_faults)


@pytest.mark.parametrize(("rate", "doubt"), [(50.5, ""), (47.5, "below the floor of 50.0 samples/s")])
def test_a_larger_model_that_ran_below_its_floor_is_not_called_confirmed(rate: float, doubt: str) -> None:
    again = Confirmation(outcome=Outcome.OK, promised_samples_per_second=50.0, measurement=measurement(rate))
    grown = msgspec.structs.replace(test_growth.answer(), confirmation=again)
    beyond = confirmed_beyond(grown, test_growth.HALF)
    assert (beyond or "") == doubt
    (line,) = [one for one in headline_lines(grown, test_growth.HALF, beyond=beyond) if one.label == "confirmed"]
    assert line.words.startswith("it runs, but it is below" if doubt else "yes: ")


def test_a_ratio_is_no_gain_where_a_larger_model_or_a_lower_cost_was_asked_for() -> None:
    slower = Speedup(value=0.53, low=0.4, high=0.7, rounds=4)
    confirmed = msgspec.structs.replace(CONFIRMED, speedup=slower, promise=slower, expected_speedup=0.53)
    grown = test_growth.answer()
    grown = msgspec.structs.replace(grown, confirmation=confirmed)
    assert not gain_is_open(grown)
    confirmed_line = next(one for one in headline_lines(grown, test_growth.HALF) if one.label == "confirmed")
    assert confirmed_line.words.startswith("yes: ")


def test_a_comment_that_does_not_fit_beside_its_statement_stands_above_it() -> None:
    apply_lines = ("from wrapper import prepare  # wrapper.py, copied next to your code", "loss = training.step(batch)")
    narrow = shown(headline(recommendation(), goal(), files={}, apply_lines=apply_lines), width=60).splitlines()
    at = next(place for place, line in enumerate(narrow) if line.startswith("apply"))
    assert [line[11:].rstrip() for line in narrow[at : at + 3]] == [
        "# wrapper.py, copied next to your code",
        "from wrapper import prepare",
        "loss = training.step(batch)",
    ]
    wide = shown(headline(recommendation(), goal(), files={}, apply_lines=apply_lines), width=80)
    assert apply_lines[0] in wide


def test_a_ratio_far_from_the_one_before_is_not_reproducible_and_says_what_to_do() -> None:
    load = "other processes keep 1.9 of 2 cores busy (cc1plus 98%)"
    missed = msgspec.structs.replace(
        CONFIRMED, speedup=IN_TURN, promise=IN_TURN, expected_speedup=3.9, noise=0.1, other_load=load
    )
    answer = recommendation(confirmation=missed)
    assert title(answer).startswith("Not reproducible on this machine now: train with chunked_cross_entropy")
    found = said(answer)
    assert found["confirmed"] == (
        "no, not reproducible on this machine now: it ran at 133% of its promise, and ±10% would be noise"
    )
    assert found["next"] == (
        f"{load}; run the same command again with --wait-idle: it keeps what was measured and confirms once more"
    )


@pytest.mark.parametrize(
    ("outcome", "reason", "confirmed", "goes_on"),
    [
        (Outcome.INTERRUPTED, "interrupted before the wrapper had run", "no: interrupted before the", True),
        (Outcome.TIMEOUT, "after 30 s.", "no: run again, it ended as timeout: after 30 s", True),
        (Outcome.CRASHED, "", "no: run again, it ended as crashed", False),
    ],
)
def test_a_wrapper_without_a_measurement_is_not_confirmed_and_what_failed_by_chance_is_run_again(
    outcome: Outcome, reason: str, confirmed: str, goes_on: bool
) -> None:
    ended = Confirmation(outcome=outcome, reason=reason, promised_samples_per_second=10)
    found = said(recommendation(confirmation=ended))
    assert found["confirmed"].startswith(confirmed)
    assert ("next" in found) is goes_on


def test_the_larger_peak_of_search_and_confirmation_is_the_one_to_plan_with() -> None:
    again = msgspec.structs.replace(CONFIRMED, measurement=measurement(130.2, micro_batch=48, peak=8 * 2**30))
    assert said(recommendation(confirmation=again))["peak"] == "8.00 GiB, 100% of the 8.00 GiB limit"


def test_the_baseline_itself_a_tie_and_a_baseline_that_cannot_win_are_told_apart() -> None:
    kept = of(baseline(100.0), measured(50.0, BF16), measured(60.0, CHECKPOINT))
    assert "That is the baseline itself" in said(kept)["speed"]
    assert "batch" not in said(kept)
    tied = msgspec.structs.replace(of(baseline(100.0), measured(150.0, BF16)), tie=True)
    assert said(tied)["speed"].startswith("a tie with the baseline (+50%, noise ")
    unfit = measured(200.0, role=Role.BASELINE, drift=0.5)
    beaten = of(unfit, measured(150.0, BF16))
    assert said(beaten)["speed"].startswith("150 instead of 200 samples/s; the baseline cannot win: ")
    lost = msgspec.structs.replace(kept, winner=kept.ranking[1], baseline=None)
    assert said(lost)["speed"].endswith("the baseline was not measured")


def test_a_training_that_waits_for_its_data_is_as_fast_as_these_come() -> None:
    answer = recommendation()
    waiting = msgspec.structs.replace(answer.winner.measured, making_seconds=100.0)
    winner = msgspec.structs.replace(answer.winner, measurement=waiting)
    found = said(explained(msgspec.structs.replace(answer, winner=winner), goal()))
    assert "waits for its data, the bottleneck" in found["speed"]


@pytest.mark.parametrize(
    ("because", "what"),
    [
        ("the time limit of 40s leaves no room for another trial", "run the same command with a longer --time-limit"),
        ("the limit of 1 trial was reached", "run the same command with more --trials"),
        ("it was interrupted", "run the same command to continue"),
        ("the largest of the model's sizes keeps the floor (list larger values in SIZES to go on)", "list larger"),
    ],
)
def test_what_continues_a_search_is_said_by_what_ended_it(because: str, what: str) -> None:
    assert go_on(of(baseline(100.0), stopped_because=because)).startswith(what)
