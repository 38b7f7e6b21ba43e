"""What a trial takes turns with: the baseline, the pacesetter, or the leader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.search.space.space import Combination
from advisor.session.trials.durations import recall_timings
from advisor.session.trials.trials import Trials
from advisor.text.records import encode_record
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import Pace, Rung
from advisor.trial.spec import SizeTrial, TimeTrial, Trial, TrialSpec
from tests.decide.examples import baseline, goal, measured, measurement
from tests.session.contexts import study
from tests.session.test_predicted_memory import PROFILING_RUNS

GIB = 2**30
FUSED = Combination((use("fused_optimizer"),))
BF16 = Combination((use("precision", dtype="bf16"),))
THREE_TIMES = Speedup(value=3.0, low=2.9, high=3.1, rounds=6)


class Machine:
    """A runner under which every combination processes 1.5 times the samples of what it takes turns with."""

    def __init__(self) -> None:
        self.specs: list[TrialSpec] = []

    def run(self, spec: TrialSpec) -> Any:
        self.specs.append(spec)
        result = spec.ended(Outcome.OK)
        if isinstance(spec, SizeTrial):
            return msgspec.structs.replace(result, sizing=PROFILING_RUNS)
        speedup = None if spec.beside is None else Speedup(value=1.5, low=1.4, high=1.6, rounds=4)
        figures = measurement(50.0, micro_batch=spec.policy.micro_batch)
        ladder = spec.ladder if isinstance(spec, TimeTrial) else ()
        rungs = tuple(
            Rung(measurement=measurement(50.0, micro_batch=one.micro_batch), speedup=speedup) for one in ladder
        )
        paces = () if spec.beside is None else (Pace(policy=spec.beside, samples_per_second=90.0),)
        climbed = {"ladder": rungs} if isinstance(spec, TimeTrial) else {}
        return msgspec.structs.replace(result, measurement=figures, speedup=speedup, paces=paces, **climbed)

    def besides(self, kind: type[Trial[Any]]) -> list[Policy | None]:
        return [spec.beside for spec in self.specs if isinstance(spec, kind)]


def trials(machine: Machine, *, usable_bytes: int = 64 * GIB, machines: int = 1) -> Trials:
    aim = msgspec.structs.replace(goal(), memory_limit_bytes=GIB, shares_memory=True, machines=machines)
    context = study(aim, seconds=600.0, usable_bytes=usable_bytes)
    made = Trials(context, machine)  # type: ignore[arg-type]
    assert made.turns.wanted, "one device, and nobody else's study"
    made.size(Combination(), None)
    made.turns.baseline = baseline(100)
    return made


def leader() -> Candidate:
    return msgspec.structs.replace(measured(300, *FUSED.settings, micro_batch=16), speedup=THREE_TIMES)


def timed(found: Trials, combination: Combination, **options: Any) -> Any:
    found.size(combination, None)
    return found.time(Policy(methods=combination.settings, micro_batch=8), outpaced_below=None, **options)


def test_timed_trials_take_turns_with_the_baseline_until_there_is_a_leader() -> None:
    machine = Machine()
    found = trials(machine)
    result = timed(found, FUSED)
    assert machine.besides(TimeTrial) == [baseline(100).policy]
    assert result.speedup is not None
    assert result.speedup.value == 1.5
    assert result.measurement is not None
    assert result.measurement.samples_per_second == pytest.approx(150.0)


def test_then_with_the_leader_and_their_speedups_multiply() -> None:
    machine = Machine()
    found = trials(machine)
    found.turns.leader = leader()
    result = timed(found, BF16, ladder=(Policy(methods=BF16.settings, micro_batch=16),))
    assert machine.besides(TimeTrial) == [leader().policy]
    for one in (result, *result.ladder):
        assert one.speedup is not None
        assert one.speedup.value == pytest.approx(4.5)
        assert one.speedup.high / one.speedup.value > 1.6 / 1.5, "the errors of both add"
        assert one.measurement is not None
        assert one.measurement.samples_per_second == pytest.approx(450.0), "at the baseline's 100"


def test_the_pace_that_is_to_be_beaten_is_one_over_what_it_takes_turns_with() -> None:
    """Trap: 3.3 times the baseline is 1.1 times the leader, and was ended early as slower than 3 times."""
    machine = Machine()
    found = trials(machine)
    found.size(BF16, None)
    policy = Policy(methods=BF16.settings, micro_batch=8)
    found.time(policy, outpaced_below=270.0)
    found.turns.leader = leader()
    found.time(policy, outpaced_below=270.0)
    paces = [spec.outpaced_below_speedup for spec in machine.specs if isinstance(spec, TimeTrial)]
    assert paces == pytest.approx([2.7, 0.9])


def test_a_leader_whose_steps_take_far_longer_than_the_baselines_leaves_the_turns_to_it() -> None:
    machine = Machine()
    found = trials(machine)
    slow = measured(300, *FUSED.settings, micro_batch=512)
    assert slow.measurement is not None
    seconds = msgspec.structs.replace(slow.measurement, step_seconds=512 / 300)
    found.turns.leader = msgspec.structs.replace(slow, measurement=seconds, speedup=THREE_TIMES)
    timed(found, BF16)
    assert machine.besides(TimeTrial) == [baseline(100).policy]


def test_the_leader_itself_and_every_repetition_take_turns_with_the_baseline() -> None:
    machine = Machine()
    found = trials(machine)
    found.turns.leader = leader()
    timed(found, FUSED)
    timed(found, BF16, repeat=1)
    assert machine.besides(TimeTrial) == [baseline(100).policy] * 2


def test_at_their_own_size_trials_are_the_same_and_take_turns() -> None:
    """Trap: settings of the user's own that say a size were confirmed by trials that knew of no baseline."""
    found = trials(Machine())
    sized = found.at_size({"layers": 4})
    assert sized is not found
    assert sized.turns.baseline is None
    sized.turns.baseline = baseline(100)
    assert sized.at_size({"layers": 4}) is sized
    assert found.at_size({}) is found


def test_a_leader_that_has_no_room_beside_a_trial_is_left_out() -> None:
    machine = Machine()
    plain = baseline(100).measurement
    assert plain is not None
    found = trials(machine, usable_bytes=plain.memory.peak_bytes + GIB)
    memory = msgspec.structs.replace(plain.memory, peak_bytes=plain.memory.peak_bytes + 2 * GIB)
    found.turns.leader = msgspec.structs.replace(leader(), measurement=msgspec.structs.replace(plain, memory=memory))
    timed(found, BF16)
    assert machine.besides(TimeTrial) == [baseline(100).policy]


def test_what_is_timed_at_once_is_sized_alone() -> None:
    machine = Machine()
    found = trials(machine)
    found.size(FUSED, None, alone=True)
    found.size(BF16, None)
    assert [beside is None for beside in machine.besides(SizeTrial)] == [True, True, False]


def test_how_fast_the_baseline_was_each_time_is_remembered() -> None:
    found = trials(Machine())
    assert found.turns.rates_of(baseline(100).policy) == ()
    timed(found, FUSED)
    timed(found, BF16, repeat=1)
    assert found.turns.rates_of(baseline(100).policy) == (90.0, 90.0)
    assert found.turns.rates_of(leader().policy) == ()


def test_ranks_on_two_cpu_machines_share_the_memory_of_their_own_machine_alone() -> None:
    """Four ranks, two on each machine: one of them has half of the limit, whoever asks."""
    machine = Machine()
    made = trials(machine, usable_bytes=4 * GIB, machines=2)
    on_both = Combination((use("ddp"),), gpu_count=4)
    made.size(on_both, None)
    made.time(Policy(methods=on_both.settings, micro_batch=2, gpu_count=4), outpaced_below=None)
    limits = {type(spec): spec.memory_limit_bytes for spec in machine.specs if spec.policy.gpu_count == 4}
    assert limits == {SizeTrial: 2 * GIB, TimeTrial: GIB // 2}


def test_a_study_that_goes_on_reserves_the_time_that_timing_took_before(tmp_path: Path) -> None:
    machine, folder = Machine(), StudyFolder(tmp_path)
    timed(trials(machine), FUSED)
    spec = next(one for one in machine.specs if isinstance(one, TimeTrial))
    trial = folder.trial(spec.key)
    trial.path.mkdir(parents=True)
    trial.spec.write_bytes(encode_record(spec))
    trial.write_result(msgspec.structs.replace(machine.run(spec), wall_seconds=7.0))
    earlier = msgspec.structs.replace(measured(300, *FUSED.settings), trial_key=spec.key)
    elsewhere = msgspec.structs.replace(measured(200), trial_key="of a lost folder")
    context = study(goal(), candidates=[earlier, elsewhere])
    recall_timings(context, folder)
    assert context.budget.durations.timing_seconds == 7.0
