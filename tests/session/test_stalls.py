"""Beside other processes a plain step may take a hundred times as long: few are made, nothing takes turns with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Role
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.policy.baseline import Baseline
from advisor.policy.policy import Policy
from advisor.search.space.space import Axis, Combination
from advisor.session.request import TuneRequest
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.stalls import around_stalls, settings_around_stalls, speedup_between
from advisor.session.trials.trials import Trials
from advisor.trial.spec import ConfirmTrial, SizeTrial, TimeTrial, TrialSpec
from tests.decide.examples import goal, measured, measurement
from tests.methods.test_intraop_threads import with_rates
from tests.session.contexts import SOURCE, SPACE, study
from tests.session.test_turns import BF16, GIB, Machine

PLAIN = Combination()
ONE_THREAD = use("intraop_threads", count=1)
STEADY = Combination((ONE_THREAD,))
SPACE_OF_THREADS = msgspec.structs.replace(
    SPACE,
    axes=(
        Axis(method="fused_optimizer", settings=(use("fused_optimizer"),)),
        Axis(method="intraop_threads", settings=(ONE_THREAD, use("intraop_threads", count=2))),
    ),
)
STALLING, QUIET = with_rates(one=100.0, two=90.0, four=3.0), with_rates(one=30.0, two=60.0, four=100.0)


class SlowMachine(Machine):
    """One whose plain steps take 100 times as long, unless a single thread makes them."""

    def run(self, spec: TrialSpec) -> Any:
        found = super().run(spec)
        if isinstance(spec, TimeTrial) and ONE_THREAD not in spec.policy.methods:
            return msgspec.structs.replace(found, measurement=measurement(0.5, micro_batch=spec.policy.micro_batch))
        return found


def trials(machine: Machine, facts: Any = STALLING, **options: Any) -> tuple[Trials, ComparingEvaluator]:
    aim = msgspec.structs.replace(goal(), memory_limit_bytes=64 * GIB)
    context = study(aim, seconds=240.0, usable_bytes=64 * GIB, space=SPACE_OF_THREADS, facts=facts, **options)
    made = Trials(context, machine)  # type: ignore[arg-type]
    return made, ComparingEvaluator(context, made)


def begun(machine: Machine, facts: Any = STALLING) -> tuple[Trials, list[Any]]:
    made, evaluator = trials(machine, facts)
    first = evaluator.baseline()
    return made, evaluator.baseline_is(first)


# ---- where it is known


def test_the_settings_around_stalls_are_those_that_the_probe_found_clearly_faster() -> None:
    assert settings_around_stalls(SPACE_OF_THREADS, STALLING) == (ONE_THREAD,)
    assert settings_around_stalls(SPACE_OF_THREADS, QUIET) == ()
    assert settings_around_stalls(SPACE, STALLING) == (), "the user does not want them tried"


def test_a_combination_keeps_what_it_has_of_the_same_method() -> None:
    assert around_stalls(PLAIN, (ONE_THREAD,)) == STEADY
    own = Combination((use("intraop_threads", count=2),))
    assert around_stalls(own, (ONE_THREAD,)) == own


def test_two_measurements_at_different_times_differ_by_the_spread_of_both() -> None:
    found = speedup_between(measurement(300.0), measurement(100.0))
    assert found.value == pytest.approx(3.0)
    assert found.low < 3.0 < found.high


# ---- what runs


def test_profiling_runs_of_plain_training_are_not_slowed_down_and_count_for_both() -> None:
    machine = SlowMachine()
    made, _ = begun(machine)
    assert [spec.policy.methods for spec in machine.specs if isinstance(spec, SizeTrial)] == [STEADY.settings]
    assert made.model_of(PLAIN) is not None
    assert made.model_of(STEADY) is not None


def test_the_baseline_takes_two_steps_of_its_own_and_makes_those_that_are_not_timed_undisturbed() -> None:
    machine = SlowMachine()
    begun(machine)
    first = next(spec for spec in machine.specs if isinstance(spec, TimeTrial))
    assert (first.policy.methods, first.min_timed_steps) == ((), 2)
    assert first.thread_rates == {1: 100.0, 2: 90.0, 4: 3.0}


def test_then_the_same_without_stalls_is_timed_and_everything_takes_turns_with_that() -> None:
    machine = SlowMachine()
    made, found = begun(machine)
    (steady,) = found
    assert (steady.policy.methods, steady.role) == (STEADY.settings, Role.SEARCHED)
    assert steady.speedup.value == pytest.approx(100.0)
    assert machine.besides(TimeTrial) == [None, None]
    made.size(BF16, None)
    result = made.time(Policy(methods=BF16.settings, micro_batch=4), outpaced_below=None)
    assert machine.besides(SizeTrial)[-1] == Policy(methods=STEADY.settings, micro_batch=made.first_batch)
    assert machine.besides(TimeTrial)[-1] == steady.policy
    assert result.speedup is not None
    assert result.speedup.value == pytest.approx(150.0), "over the baseline"


def test_plain_training_is_expected_to_stall_at_any_batch() -> None:
    """Trap: its profiling runs do not, and it was expected to be as fast as the same training without stalls."""
    machine = SlowMachine()
    _, evaluator = trials(machine)
    evaluator.baseline_is(evaluator.baseline())
    found = evaluator.compare(PLAIN, Role.SEARCHED)
    assert found.expected_rate is not None
    assert found.expected_rate < 2.0


def test_a_repetition_and_the_confirmation_take_turns_with_that_too(tmp_path: Any) -> None:
    machine = SlowMachine()
    made, (steady,) = begun(machine)
    made.size(BF16, None)
    policy = Policy(methods=BF16.settings, micro_batch=4)
    again = made.time(policy, outpaced_below=None, repeat=1)
    assert again.speedup is not None
    assert again.speedup.value == pytest.approx(150.0)
    (tmp_path / "wrapper.py").write_text("")
    confirmed = made.confirm(policy, str(tmp_path / "wrapper.py"), repeat=0)
    assert machine.besides(ConfirmTrial) == [steady.policy]
    assert confirmed.speedup == Speedup(value=1.5, low=1.4, high=1.6, rounds=4), "over that one, not over the baseline"


def test_once_the_machine_is_idle_a_confirmation_takes_turns_with_the_baseline_itself(tmp_path: Any) -> None:
    """Trap: with --wait-idle the promise would be over a baseline on fewer threads than it has then."""
    machine = SlowMachine()
    made, evaluator = trials(machine)
    first = evaluator.baseline()
    assert first is not None
    evaluator.baseline_is(first)
    made.size(BF16, None)
    (tmp_path / "wrapper.py").write_text("")
    policy = Policy(methods=BF16.settings, micro_batch=4)
    made.confirm(policy, str(tmp_path / "wrapper.py"), repeat=0, around_stalls=False)
    assert machine.besides(ConfirmTrial) == [first.policy]


def test_on_a_quiet_machine_the_baseline_is_what_takes_turns() -> None:
    machine = Machine()
    made, found = begun(machine, QUIET)
    assert found == []
    assert made.turns.steady is None
    assert [spec.policy.methods for spec in machine.specs] == [(), ()]
    assert [spec.min_timed_steps for spec in machine.specs if isinstance(spec, TimeTrial)] == [3]


def test_so_it_is_where_fewer_threads_are_no_faster_after_all() -> None:
    machine = Machine()
    made, found = begun(machine)
    assert found == []
    assert made.turns.steady is None
    assert made.turns.pacesetter == PLAIN


def test_settings_of_the_users_own_are_what_takes_turns() -> None:
    own = measured(1.0, use("fused_optimizer"), role=Role.BASELINE)
    request = TuneRequest(source=SOURCE, baseline=Baseline(policy=own.policy, origin="own.yaml"))
    made, evaluator = trials(SlowMachine(), request=request)
    evaluator.baseline_is(own)
    assert made.turns.around == ()
    assert made.turns.steady is None
