"""Before it is confirmed, the winner is timed at the largest batch that its own measured peak leaves room for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.decide.choose import choose
from advisor.goal import Goal
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.search.sizing.growing import grown_batch
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.session.answer.grow import grow_winner
from advisor.session.trials.turns import Turns
from advisor.trial.outcome import Outcome
from advisor.trial.result import Rung, TimeResult
from tests.decide.costs import cheapest
from tests.decide.examples import LIMIT, baseline, goal, lost, measured, measurement
from tests.session.contexts import study
from tests.session.ledgers import InMemory

SAVING = use("checkpoint", every=1)
PLAIN = baseline(100)
BEST = measured(150, SAVING, micro_batch=88)
# A hundred samples fill the memory, and a fifth of the step's time at 80 of them does not depend on the batch.
MODEL = MemoryModel(lines=(Line(0.0, LIMIT / 100),), time=Line(0.2, 0.01), calibrated_at=88)


class FakeTrials:
    """Times a policy as told: by itself, or with ``gain`` in turn with its own batch in one trial."""

    def __init__(self, rate: float | None, model: MemoryModel | None, gain: Speedup | None = None) -> None:
        self.rate = rate
        self.model = model
        self.gain = gain
        self.turns = Turns(wanted=gain is not None, usable_bytes=2**40, second_context_bytes=0)
        self.timed: list[Policy] = []

    def model_of(self, _combination: object) -> MemoryModel | None:
        return self.model

    def time(self, policy: Policy, *, outpaced_below: float | None, ladder: tuple[Policy, ...] = ()) -> TimeResult:
        assert outpaced_below is None, "it is the answer, whatever is faster"
        self.timed += ladder or (policy,)
        if ladder:
            figures = measurement(100.0, micro_batch=policy.micro_batch)
            rung = Rung(measurement=measurement(90.0, micro_batch=ladder[0].micro_batch), gain=self.gain)
            rungs = () if self.rate is None else (rung,)
            return TimeResult(key="grown", outcome=Outcome.OK, measurement=figures, ladder=rungs, notes=("too big",))
        if self.rate is None:
            return TimeResult(key="grown", outcome=Outcome.OUT_OF_MEMORY, reason="too big")
        figures = measurement(self.rate, micro_batch=policy.micro_batch)
        return TimeResult(key="grown", outcome=Outcome.OK, measurement=figures)


def grown(
    *candidates: Candidate,
    rate: float | None = 155.0,
    model: MemoryModel | None = MODEL,
    aim: Goal | None = None,
    seconds: float = 1000.0,
    trials_limit: int = 100,
    gain: Speedup | None = None,
) -> tuple[list[int], Candidate]:
    """The batches that were timed, and the winner afterwards."""
    trials: Any = FakeTrials(rate, model, gain)
    context = study(aim or goal(), seconds=seconds, trials=trials_limit, ledger=InMemory(candidates))

    def answer() -> Any:
        return choose(context.ledger.candidates, context.goal, refused_settings={}, untried=0, stopped_because="")

    tried = grow_winner(context, trials, answer())
    assert tried is bool(trials.timed)
    return [one.micro_batch for one in trials.timed], answer().winner


def test_the_winner_is_timed_at_the_batch_that_fits_and_wins_there() -> None:
    timed, winner = grown(PLAIN, BEST)
    assert timed == [96], "97 fit with 3 % free; six binary digits are kept"
    assert (winner.policy.micro_batch, winner.samples_per_second) == (96, 155.0)
    assert winner.policy.methods == BEST.policy.methods


@pytest.mark.parametrize(("room", "batch"), [(15.4, 15), (33.9, 33), (71.0, 64), (199.0, 192), (500.0, 496)])
def test_a_large_batch_that_fits_is_rounded_to_one_that_kernels_like(room: float, batch: int) -> None:
    """Seen in the simulator: 116 samples a step were slower than 112, by less than a trial shows."""
    model = MemoryModel(lines=(Line(0.0, 0.97 * LIMIT / room),), time=Line(0.0, 0.01), calibrated_at=1)
    assert grown_batch(model, LIMIT) == batch


def test_so_is_one_that_time_limits() -> None:
    assert grown_batch(MODEL, LIMIT, most=77) == 72


def test_a_larger_batch_that_is_no_faster_changes_nothing() -> None:
    assert grown(PLAIN, BEST, rate=140.0) == ([96], BEST)


def in_turn(value: float) -> Speedup:
    return Speedup(value=value, low=value / 1.01, high=value * 1.01, rounds=8)


def test_in_turn_with_its_own_batch_a_few_per_cent_are_a_gain() -> None:
    """Trap: two trials differ by more than a larger batch brings, and of a tie the smaller batch wins."""
    noisy = msgspec.structs.replace(BEST, measurement=measurement(150.0, spread=0.2, micro_batch=88))
    timed, winner = grown(PLAIN, noisy, gain=in_turn(1.03))
    assert timed == [96]
    assert winner.policy.micro_batch == 96
    assert winner.samples_per_second == pytest.approx(1.03 * 150.0), "at the speed the machine had for its own batch"
    assert winner.measured.relative_spread > 0.15
    over_baseline = msgspec.structs.replace(noisy, speedup=in_turn(1.5))
    _, winner = grown(PLAIN, over_baseline, gain=in_turn(1.03))
    assert winner.speedup is not None
    assert (winner.policy.micro_batch, winner.speedup.value) == (96, pytest.approx(1.03 * 1.5))
    assert winner.measured.relative_spread > 0.15, "as uncertain as the batch before, whatever that took turns with"


@pytest.mark.parametrize("gain", [0.95, 1.01])
def test_in_turn_less_is_worth_no_larger_batch(gain: float) -> None:
    timed, winner = grown(PLAIN, BEST, gain=in_turn(gain))
    assert (timed, winner.policy) == ([96], BEST.policy)


def test_a_batch_that_fails_in_turn_changes_nothing() -> None:
    assert grown(PLAIN, BEST, rate=None, gain=in_turn(1.1)) == ([96], BEST)


def test_a_larger_batch_that_does_not_fit_changes_nothing() -> None:
    assert grown(PLAIN, BEST, rate=None) == ([96], BEST)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"model": None}, "nothing is known of its memory"),
        ({"model": msgspec.structs.replace(MODEL, time=Line(0.0, 0.01))}, "more samples take as much longer"),
        ({"model": msgspec.structs.replace(MODEL, lines=(Line(0.0, LIMIT / 91),))}, "memory is full"),
        ({"model": msgspec.structs.replace(MODEL, lines=(Line(0.0, LIMIT / 200),))}, "the ladder stopped on purpose"),
        ({"model": msgspec.structs.replace(MODEL, most_samples=88)}, "the data has no more samples"),
        ({"model": msgspec.structs.replace(MODEL, time=Line(900.0, 0.01))}, "a step would take minutes"),
        ({"aim": goal(global_batch=88)}, "the batch is the user's"),
        ({"aim": msgspec.structs.replace(cheapest(), global_batch=88)}, "every policy trains the same batch"),
        ({"seconds": 1e-9}, "there is no time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_timed_where_nothing_can_be_won(case: dict[str, Any], why: str) -> None:
    assert grown(PLAIN, BEST, **case)[0] == [], why


def test_a_batch_below_the_largest_that_was_tried_is_not_grown() -> None:
    """It won because larger ones were slower."""
    assert grown(PLAIN, BEST, measured(120, SAVING, micro_batch=92))[0] == []
    assert grown(PLAIN, BEST, measured(120, *_other(), micro_batch=92))[0] == [96]


def test_the_users_own_baseline_is_not_grown() -> None:
    """It is what they have; a larger batch of it is for the search to propose."""
    assert grown(msgspec.structs.replace(BEST, role=Role.BASELINE))[0] == []


def test_no_trial_is_made_beyond_their_number() -> None:
    assert grown(PLAIN, BEST, trials_limit=3)[0] == [96]
    assert grown(PLAIN, BEST, trials_limit=2)[0] == []


def test_batches_of_one_trial_are_one_and_a_comparison_is_a_trial_as_well() -> None:
    """Trap: three batches of a ladder were three trials, and twelve comparisons none."""
    rungs = [measured(rate, SAVING, micro_batch=batch) for rate, batch in ((120, 22), (140, 44), (150, 88))]
    ladder = [msgspec.structs.replace(one, trial_key="ladder") for one in rungs]
    assert grown(PLAIN, *ladder, trials_limit=3)[0] == [96]
    compared = lost(Outcome.COMPARED, *_other())
    assert grown(PLAIN, *ladder, compared, trials_limit=3)[0] == []


def test_a_batch_that_held_its_allocator_up_is_not_grown() -> None:
    figures = BEST.measured
    full = msgspec.structs.replace(figures.memory, allocation_retries=3)
    held_up = msgspec.structs.replace(BEST, measurement=msgspec.structs.replace(figures, memory=full))
    assert grown(PLAIN, held_up)[0] == []


def _other() -> tuple[MethodSetting, ...]:
    return (use("checkpoint", every=2),)
