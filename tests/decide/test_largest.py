"""The largest model above the floor wins; of equal sizes the faster, of equally fast ones the simpler."""

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.choose import choose
from advisor.decide.floor import floor_rate, largest_so_far
from advisor.errors import FloorNotMetError, NothingFitsError, NothingMeasuredError
from advisor.goal import Fidelity, Floor, Goal, GoalKind
from advisor.methods.setting import use
from advisor.trial.outcome import Outcome

from .examples import GIB, LIMIT, baseline, goal, lost, measured, on

CHECKPOINT = use("checkpoint", every=1)
DDP = use("ddp")
BF16 = use("precision", dtype="bf16")


def sized(candidate: Candidate, layers: int, *, need: float | None = None, **more: int) -> Candidate:
    """A candidate at a size of 10 M parameters for each layer."""
    return msgspec.structs.replace(
        candidate,
        model_size={"layers": layers, **more},
        parameter_count=layers * 10_000_000,
        one_sample_bytes=None if need is None else int(need * GIB),
    )


def aim(floor: Floor) -> Goal:
    return msgspec.structs.replace(goal(kind=GoalKind.BIGGER), floor=floor)


HALF = aim(Floor(share_of_baseline=0.5))
TWENTY = aim(Floor(samples_per_second=20.0))

CANDIDATES = [
    sized(baseline(100), 2, need=1.0),
    sized(measured(60), 3, need=1.5),
    sized(measured(40), 4, need=2.0),
    sized(measured(55, CHECKPOINT), 4, need=1.2),
    sized(measured(52, CHECKPOINT), 5, need=1.5),
    sized(lost(Outcome.OUT_OF_MEMORY, CHECKPOINT, reason="it did not fit"), 6),
    sized(lost(Outcome.SCREENED, reason="one sample is predicted to need 9.00 GiB", predicted=9 * GIB), 8),
]


def chosen(candidates: list[Candidate], goal: Goal = HALF) -> Recommendation:
    return choose(candidates, goal, refused_settings={}, untried=0, stopped_because="it was told to")


def test_the_floor_is_a_rate_or_a_share_of_the_baseline() -> None:
    assert floor_rate(CANDIDATES, HALF) == 50.0
    assert floor_rate(CANDIDATES, TWENTY) == 20.0
    assert floor_rate([], HALF) is None
    assert floor_rate([], TWENTY) == 20.0


def test_the_largest_size_above_the_floor_wins_whatever_is_faster() -> None:
    answer = chosen(CANDIDATES)
    assert answer.winner == CANDIDATES[4]
    assert answer.baseline == CANDIDATES[0]
    assert [one.model_size["layers"] for one in answer.ranking] == [5, 4, 3, 2, 4]
    assert len(answer.not_measured) == 2


def test_exactly_at_the_floor_is_above_it() -> None:
    at_floor = sized(measured(50.0, CHECKPOINT), 7)
    assert chosen([*CANDIDATES, at_floor]).winner == at_floor


def test_of_equal_sizes_the_faster_wins_and_of_equally_fast_ones_the_simpler() -> None:
    faster = sized(measured(70, BF16, fidelity=Fidelity.PRECISION), 5)
    assert chosen([*CANDIDATES, faster]).winner == faster
    equal = sized(measured(52.3, BF16, CHECKPOINT, fidelity=Fidelity.PRECISION), 5)
    assert chosen([*CANDIDATES, equal]).winner == CANDIDATES[4]


def test_where_parameters_do_not_change_the_largest_value_of_the_size_wins() -> None:
    images = [
        msgspec.structs.replace(one, model_size={"pixels": pixels}, parameter_count=5)
        for one, pixels in ((baseline(100), 64), (measured(70), 96), (measured(30), 128))
    ]
    assert chosen(images).winner.model_size == {"pixels": 96}


def test_what_may_not_win_is_no_larger_model() -> None:
    lossy = sized(measured(80, BF16, fidelity=Fidelity.MODEL), 9)
    too_big = sized(measured(80, CHECKPOINT, peak=LIMIT + 1), 9)
    drifted = sized(measured(80, CHECKPOINT, drift=0.5), 9)
    assert chosen([*CANDIDATES, lossy, too_big, drifted]).winner == CANDIDATES[4]
    assert largest_so_far([*CANDIDATES, lossy, too_big, drifted], HALF) == CANDIDATES[4]


def test_the_table_has_plain_training_beside_the_winner_with_what_failed_marked() -> None:
    growth = chosen(CANDIDATES).growth
    assert growth is not None
    assert [row.model_size["layers"] for row in growth.rows] == [2, 3, 4, 5, 6, 8]
    plain = [None if row.plain is None else row.plain.samples_per_second for row in growth.rows]
    winner = [None if row.winner is None else row.winner.samples_per_second for row in growth.rows]
    assert plain == [100, 60, 40, None, None, None]
    assert winner == [None, None, 55, 52, None, None]
    oom, screened = growth.rows[4].winner, growth.rows[5].plain
    assert oom is not None
    assert screened is not None
    assert (oom.outcome, oom.peak_bytes) == (Outcome.OUT_OF_MEMORY, None)
    assert (screened.outcome, screened.peak_bytes, screened.predicted_peak_bytes) == (Outcome.SCREENED, None, 9 * GIB)
    assert growth.plain == CANDIDATES[1]


def test_memory_is_fitted_to_the_winners_profiling_runs_and_says_what_would_fit() -> None:
    growth = chosen(CANDIDATES).growth
    assert growth is not None
    assert growth.measure == "parameter"
    assert growth.memory_per_unit == pytest.approx(0.3 * GIB / 10_000_000)
    assert growth.fits_up_to == pytest.approx((8 - 1.2) / 0.3 * 10_000_000 + 40_000_000)


def test_a_floor_that_no_size_meets_says_the_best_that_was_reached() -> None:
    with pytest.raises(
        FloorNotMetError, match=r"keep 200 samples/s.*is 100 samples/s, at layers=2 with plain, batch 8\."
    ):
        chosen(CANDIDATES, aim(Floor(samples_per_second=200.0)))


def test_a_share_of_a_baseline_that_failed_says_to_state_a_rate() -> None:
    failed = [sized(lost(Outcome.TIMEOUT, reason="too slow", role=Role.BASELINE), 2), CANDIDATES[1]]
    with pytest.raises(NothingMeasuredError, match=r"ended as timeout \(too slow\). State --min-throughput"):
        chosen(failed)
    assert chosen(failed, TWENTY).winner == CANDIDATES[1]


def test_when_nothing_was_measured_the_reason_is_that_of_every_goal() -> None:
    with pytest.raises(NothingFitsError, match=r"smallest need is 9\.00 GiB"):
        chosen(CANDIDATES[6:], TWENTY)


def test_a_share_of_a_baseline_that_does_not_fit_says_to_state_a_rate_and_not_to_allow_more_methods() -> None:
    too_big = sized(lost(Outcome.OUT_OF_MEMORY, reason="it did not fit", role=Role.BASELINE), 2)
    for candidates in ([too_big], []):
        with pytest.raises(NothingMeasuredError, match=r"State --min-throughput in samples per second") as raised:
            chosen(candidates)
        assert "methods" not in str(raised.value)


def test_the_best_rate_is_rounded_down_so_that_it_can_be_followed() -> None:
    slow = [sized(baseline(19.96), 2), sized(on(2, measured(19.99, DDP)), 3)]
    with pytest.raises(
        FloorNotMetError, match=r"is 19\.9 samples/s, at layers=3 with ddp on 2 devices, batch 8 of each"
    ):
        chosen(slow, TWENTY)
    assert chosen(slow, aim(Floor(samples_per_second=19.9))).winner == slow[1]


ON_TWO = [
    sized(on(2, measured(100, DDP, role=Role.BASELINE)), 2),
    sized(on(2, measured(70, DDP)), 3),
    sized(on(4, measured(90, DDP)), 3),
    sized(on(4, measured(80, DDP)), 4),
    sized(on(2, measured(60, CHECKPOINT, DDP)), 4),
    sized(on(2, measured(55, CHECKPOINT, DDP)), 5),
    sized(on(4, measured(40, CHECKPOINT, DDP)), 5),
]


def test_on_several_devices_plain_training_is_what_the_baseline_does_there() -> None:
    growth = chosen(ON_TWO).growth
    assert growth is not None
    plain = [None if row.plain is None else row.plain.samples_per_second for row in growth.rows]
    winner = [None if row.winner is None else row.winner.samples_per_second for row in growth.rows]
    assert (plain, winner) == ([100, 70, None, None], [None, None, 60, 55])
    assert growth.plain == ON_TWO[1]


def test_more_devices_with_the_methods_of_plain_training_are_another_column() -> None:
    growth = chosen(ON_TWO[:4]).growth
    assert growth is not None
    winner = [None if row.winner is None else row.winner.samples_per_second for row in growth.rows]
    assert winner == [None, 90, 80]


def test_processes_that_share_memory_have_a_part_of_the_limit_each() -> None:
    shared = msgspec.structs.replace(HALF, shares_memory=True)
    grown = [
        sized(on(2, measured(60, DDP, peak=LIMIT // 2)), 4, need=2.0),
        sized(on(2, measured(60, DDP)), 5, need=3.0),
    ]
    growth = chosen([CANDIDATES[0], *grown], shared).growth
    assert growth is not None
    assert growth.fits_up_to == pytest.approx(60_000_000)
    above = sized(on(2, measured(60, DDP, peak=LIMIT // 2 + 1)), 6)
    assert chosen([CANDIDATES[0], *grown, above], shared).winner == grown[1]
