"""The time limit is divided so that the search ends in time to confirm its winner."""

import pytest

from advisor.session.budget import TimeBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_trial_starts_when_only_the_time_for_the_end_is_left() -> None:
    clock = Clock()
    budget = TimeBudget(100.0, clock)
    budget.durations.build_seconds = 5.0
    for _ in range(3):
        budget.durations.trial_seconds.append(10.0)
    budget.durations.timing_seconds = 10.0
    budget.durations.comparison_seconds = 3.0
    assert budget.confirmation_seconds == 15.0
    clock.now += 51.0
    assert budget.may_start_trial, "20 s are kept to measure the winner and the baseline again"
    clock.now += 2.0
    assert not budget.may_start_trial
    assert budget.may_repeat
    clock.now += 23.0
    assert not budget.may_repeat


def test_no_time_is_kept_to_measure_plain_training_twice_before_a_method_was_tried() -> None:
    """On a slow device one policy may take a quarter of the limit: another one is worth more than repetitions."""
    clock = Clock()
    budget = TimeBudget(200.0, clock)
    budget.durations.build_seconds = 18.0
    budget.durations.timing_seconds = 30.0
    budget.durations.trial_seconds.append(50.0)
    clock.now += 70.0
    for _ in range(2):
        assert budget.may_start_trial
        budget.durations.trial_seconds.append(25.0)
    clock.now += 50.0
    budget.durations.trial_seconds.append(25.0)
    assert not budget.may_start_trial, "now the best and the baseline deserve a second look"
    assert budget.may_start_unrivalled, "if the baseline itself leads, there is nothing to measure twice"
    assert budget.may_repeat


def test_confirmation_never_takes_more_than_half_of_the_time() -> None:
    clock = Clock()
    budget = TimeBudget(100.0, clock)
    budget.durations.build_seconds = 80.0
    budget.durations.trial_seconds.append(10.0)
    clock.now += 39.0
    assert budget.may_start_trial


def test_a_trial_may_not_outlive_the_whole_limit() -> None:
    clock = Clock()
    budget = TimeBudget(60.0, clock)
    budget.durations.trial_seconds.append(20.0)
    clock.now += 50.0
    assert budget.limits.hard_limit_seconds(100.0) == 10.0


def test_the_first_trial_may_outlive_the_limit_because_without_it_there_is_no_answer() -> None:
    clock = Clock()
    budget = TimeBudget(60.0, clock)
    clock.now += 50.0
    assert budget.limits.hard_limit_seconds(100.0) > 100.0
    budget.limits.has_answer = True
    assert budget.limits.hard_limit_seconds(100.0) == 10.0, "an earlier run of the study measured something"


def test_a_slow_step_gets_the_time_that_it_needs() -> None:
    budget = TimeBudget(1000.0, Clock())
    assert budget.limits.hard_limit_seconds(20.0) > budget.limits.hard_limit_seconds(None)


def test_a_method_that_compiles_has_a_share_of_the_limit_for_it() -> None:
    clock = Clock()
    budget = TimeBudget(600.0, clock)
    assert budget.limits.hard_limit_seconds(None, slow_start=True) == budget.limits.hard_limit_seconds(None) + 100.0
    assert budget.limits.comparison_limit_seconds(slow_start=True) == budget.limits.comparison_limit_seconds() + 100.0
    assert (
        budget.limits.confirmation_limit_seconds(None, slow_start=True)
        == budget.limits.confirmation_limit_seconds(None) + 100.0
    )
    budget.durations.trial_seconds.append(20.0)
    clock.now += 540.0
    assert budget.limits.hard_limit_seconds(None, slow_start=True) == 60.0, "but none may outlive the whole"
    assert budget.limits.comparison_limit_seconds(slow_start=True) == 60.0


def test_the_longest_step_leaves_room_for_the_fewest_steps_of_a_trial() -> None:
    budget = TimeBudget(240.0, Clock())
    assert 6 * budget.limits.longest_step_seconds <= 1.5 * budget.limits.measure_seconds


def test_a_comparison_leaves_the_time_for_confirmation() -> None:
    clock = Clock()
    budget = TimeBudget(600.0, clock)
    budget.durations.build_seconds = 5.0
    budget.durations.timing_seconds = 15.0
    assert budget.expected_comparison_seconds == budget.limits.comparison_step_seconds == 10.0
    clock.now += 569.0
    assert budget.may_compare
    clock.now += 2.0
    assert not budget.may_compare
    budget.durations.comparison_seconds = 2.0
    assert budget.may_compare, "what comparisons took is known by then"


def timed(seconds: float = 100.0) -> tuple[TimeBudget, Clock]:
    """Two seconds to build, ten to time a leader, four for a comparison of two trainings, three for short steps."""
    clock = Clock()
    budget = TimeBudget(seconds, clock)
    budget.durations.build_seconds = 2.0
    budget.durations.timing_seconds = 10.0
    budget.durations.comparison_seconds = 4.0
    budget.durations.short_seconds.append(3.0)
    return budget, clock


@pytest.mark.parametrize(("leaders", "kept"), [(2, 36.0), (1, 26.0), (0, 16.0)])
def test_combinations_are_compared_as_long_as_there_is_time_to_time_leaders_and_confirm(
    leaders: int, kept: float
) -> None:
    budget, clock = timed()
    clock.now += 100.0 - kept - 3.1
    assert budget.may_compare_another(leaders)
    clock.now += 0.2
    assert not budget.may_compare_another(leaders)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("slowest", "kept"), [(10.0, 12.0), (1.0, 6.17)], ids=["a slow timing", "a quick one"])
def test_without_a_leader_the_last_comparisons_leave_time_to_confirm_the_winner_and_to_check_it_if_nobody_did(
    slowest: float, kept: float, checked: bool
) -> None:
    budget, clock = timed()
    budget.durations.timing_seconds = slowest
    assert budget.limits.shortest_confirmation_seconds == pytest.approx(4.17, abs=0.01)
    kept += 0.0 if checked else 4.0
    clock.now += 100.0 - kept - 3.1
    assert budget.may_compare_last(checked=checked)
    clock.now += 0.2
    assert not budget.may_compare_last(checked=checked)


@pytest.mark.parametrize(("left", "stepping"), [(50.0, 8.33), (8.0, 6.0), (3.0, 4.17)])
def test_after_the_last_comparisons_a_confirmation_steps_for_what_is_left_but_not_for_less_than_half(
    left: float, stepping: float
) -> None:
    budget, clock = timed()
    clock.now += 100.0 - left
    assert budget.durations.build_seconds == 2.0
    assert budget.limits.confirmation_step_seconds == budget.limits.measure_seconds
    budget.limits.confirms_briefly = True
    assert budget.limits.confirmation_step_seconds == pytest.approx(stepping, abs=0.01)


def test_however_long_a_leader_takes_half_of_the_time_is_for_comparisons() -> None:
    budget, clock = timed()
    budget.durations.timing_seconds = 60.0
    clock.now += 46.0
    assert budget.may_compare_another()
    clock.now += 2.0
    assert not budget.may_compare_another()


def test_a_ladder_ends_where_a_comparison_and_a_confirmation_still_fit() -> None:
    budget, clock = timed()
    budget.durations.comparison_seconds = 5.0
    budget.durations.build_seconds, budget.durations.timing_seconds = 4.0, 11.0
    left = budget.remaining_seconds
    assert budget.limits.ladder_seconds == left - 20.0
    clock.now += left - 10.0
    assert budget.limits.ladder_seconds == 0.0


def test_a_leader_is_timed_when_its_confirmation_fits_after_it() -> None:
    budget, clock = timed()
    clock.now += 73.9
    assert budget.may_time_leader()
    clock.now += 0.2
    assert not budget.may_time_leader()


@pytest.mark.parametrize("timed_before", [False, True])
def test_a_leader_that_compiles_is_timed_when_it_can_be_compiled_three_times_before_the_end(timed_before: bool) -> None:
    """Seen: a compiled leader ended a search of 3m30s half a minute late."""
    budget, clock = timed()
    budget.durations.compared(3.0, slow_start=False)
    budget.durations.compared(11.0, slow_start=True)
    assert budget.durations.set_up_seconds == 8.0, "the other took 3 s"
    budget.durations.quick_timing_seconds = 10.0
    if timed_before:
        budget.durations.timing_seconds = 18.0  # its set-up is in it
    clock.now += 73.9 - 24.0
    assert budget.may_time_leader(slow_start=True)
    clock.now += 0.2
    assert not budget.may_time_leader(slow_start=True)


def test_if_all_that_was_compared_compiles_the_first_build_tells_what_the_rest_of_it_takes() -> None:
    budget, _ = timed()
    assert budget.durations.set_up_seconds == 0.0
    budget.durations.compared(45.0, slow_start=True)
    budget.durations.compared(45.0, slow_start=True)
    assert budget.durations.set_up_seconds == 43.0


def test_another_confirmation_needs_the_time_that_one_takes() -> None:
    budget, clock = timed()
    clock.now += 87.9
    assert budget.may_confirm_another
    clock.now += 0.2
    assert not budget.may_confirm_another


@pytest.mark.parametrize(("limit", "seconds"), [(10.0, 0.5), (210.0, 3.5), (3600.0, 8.0)])
def test_turns_take_a_sixtieth_of_the_limit_within_bounds(limit: float, seconds: float) -> None:
    assert TimeBudget(limit, Clock()).limits.turn_seconds == pytest.approx(seconds)


def test_where_a_method_is_set_up_first_the_time_of_several_others_is_not_waited_for() -> None:
    budget, _ = timed()
    before = TimeBudget(100.0, Clock())
    before.durations.build_seconds = 9.0
    assert before.limits.set_up_limit_seconds == pytest.approx(9.0 + before.limits.turn_seconds + 100.0 / 6)
    assert budget.limits.set_up_limit_seconds == pytest.approx(2.0 + budget.limits.turn_seconds + 100.0 / 6)
    budget.durations.short_seconds.append(6.0)
    budget.durations.short_seconds.append(6.0)
    assert budget.limits.set_up_limit_seconds == pytest.approx(6.0 + 100.0 / 6)
    assert budget.limits.set_up_limit_seconds < budget.limits.hard_limit_seconds(None, slow_start=True)
