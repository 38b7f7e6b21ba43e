"""Sentences that say how combinations were told apart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.choose import choose
from advisor.methods.setting import MethodSetting
from advisor.report.sentences import compared_sentence, measured_methods, measured_too_little, untried_sentence
from advisor.report.why import explain
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, goal, lost, measured
from tests.decide.test_leader import compared, timed

from .scenario import ADAM, BF16, CHECKPOINT, CHUNKED


def decide(candidates: Sequence[Candidate], untried: int = 100) -> Recommendation:
    return choose(candidates, goal(), refused_settings={}, untried=untried, stopped_because="time is up")


def test_combinations_that_were_compared_and_timed_are_counted_once_each() -> None:
    answer = decide(
        [
            baseline(100),
            compared(130, BF16),
            timed(140, 130, BF16),
            timed(145, 130, BF16, micro_batch=16),
            compared(120, CHECKPOINT),
            compared(90, ADAM),
            lost(Outcome.OUT_OF_MEMORY, CHUNKED),
        ]
    )
    assert compared_sentence(answer) == (
        "4 combinations of methods were compared: 2 of them timed at length, in turn with the baseline or a faster "
        "combination, the others by short steps in turn."
    )


def test_where_all_that_were_compared_were_timed_there_are_no_others() -> None:
    said = compared_sentence(decide([baseline(100), compared(130, BF16), timed(140, 130, BF16)]))
    assert said == (
        "2 combinations of methods were compared, all of them timed at length, in turn with the baseline or a faster "
        "combination."
    )


def alone(expected: float, setting: MethodSetting) -> Candidate:
    """Its steps did not alternate with anybody's."""
    one = compared(expected, setting)
    assert one.comparison is not None
    return msgspec.structs.replace(one, comparison=msgspec.structs.replace(one.comparison, speedup=None))


def test_combinations_whose_short_steps_took_no_turns_are_not_said_to_have() -> None:
    timed_ones = [baseline(100), timed(140, 130, BF16)]
    some = compared_sentence(decide([*timed_ones, compared(120, CHECKPOINT), alone(90, ADAM)]))
    assert some.endswith("the others by short steps in turn, or (1 of them) by short steps of their own.")
    assert compared_sentence(decide([*timed_ones, alone(90, ADAM)])).endswith("the others by short steps of their own.")


def test_leaders_that_had_no_room_beside_the_baseline_are_not_said_to_have_taken_turns() -> None:
    by_itself = [msgspec.structs.replace(timed(140, 130, one), speedup=None) for one in (BF16, CHECKPOINT)]
    said = compared_sentence(decide([baseline(100), *by_itself, compared(90, ADAM)]))
    assert said == (
        "4 combinations of methods were compared: 3 of them timed at length, not in turn with anything, the others by "
        "short steps in turn."
    )
    mixed = compared_sentence(decide([baseline(100), timed(140, 130, BF16), by_itself[1]]))
    assert mixed == (
        "3 combinations of methods were compared, all of them timed at length, some in turn with the baseline or a "
        "faster combination."
    )


@pytest.mark.parametrize(
    ("because", "end"),
    [
        ("the time limit of 3m30s leaves no room for another trial; the best of them is expected to be 20% faster",
         "20% faster. Run the same command with a longer --time-limit to continue."),
        ("the limit of 6 trials was reached; too little was measured to tell what they may bring",
         "may bring. Run the same command with more --trials to continue."),
        ("the limit of 6 trials was reached; none of them is expected to be better by more than the noise",
         "more than the noise."),
    ],
    ids=["more to gain", "unknown", "nothing more"],
)  # fmt: skip
def test_where_more_time_may_bring_more_the_answer_says_how_to_go_on(because: str, end: str) -> None:
    answer = msgspec.structs.replace(decide([baseline(100), measured(150, BF16)]), stopped_because=because)
    assert untried_sentence(answer).endswith(end)


def test_how_to_go_on_is_said_once() -> None:
    because = "the limit of 6 trials was reached; too little was measured to tell what they may bring"
    answer = msgspec.structs.replace(decide([baseline(100)]), stopped_because=because)
    assert " ".join(explain(answer, goal())).count("with more --trials to continue") == 1


def test_where_everything_else_failed_the_answer_says_so_and_advises_no_longer_search() -> None:
    """Trap: 18 combinations had failed, and "nothing else was measured: run it with a longer --time-limit"."""
    broken = [lost(Outcome.FAILED, one, reason="RuntimeError: at most 100 samples") for one in (BF16, ADAM)]
    why = " ".join(explain(decide([baseline(100), *broken]), goal()))
    assert (
        "That is the baseline itself. None of 2 others could be measured: the first, precision bf16 at batch 1, ended "
        "as failed: RuntimeError: at most 100 samples; so this is no advice against anything."
    ) in why
    assert "to continue" not in why
    alone = " ".join(explain(decide([baseline(100), broken[0]]), goal()))
    assert "The only other that was tried, precision bf16 at batch 1, ended as failed" in alone


def test_what_was_only_compared_was_measured_all_the_same() -> None:
    others = [compared(90 - number, one) for number, one in enumerate((BF16, CHECKPOINT, ADAM, CHUNKED))]
    why = " ".join(explain(decide([baseline(100), *others]), goal()))
    assert "Nothing else was measured" not in why
    assert "nothing measured was faster: use no method" in why


def test_where_nothing_was_compared_nothing_is_said() -> None:
    assert compared_sentence(decide([baseline(100), measured(120, BF16), lost(Outcome.SCREENED, ADAM)])) == ""


@pytest.mark.parametrize(("others", "little"), [((BF16, CHECKPOINT), True), ((BF16, CHECKPOINT, ADAM, CHUNKED), False)])
def test_what_was_compared_counts_as_measured_where_no_method_wins(
    others: tuple[MethodSetting, ...], little: bool
) -> None:
    answer = decide([baseline(100), *(compared(90, one) for one in others)])
    assert len(measured_methods(answer)) == len(others)
    assert measured_too_little(answer) is little
    everything = msgspec.structs.replace(answer, untried=0)
    assert not measured_too_little(everything)
