"""Nothing is recommended whose emitted wrapper does not run in a fresh process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.decide.promise import promised
from advisor.errors import NothingFitsError, NothingMeasuredError, PreferenceNotMetError
from advisor.goal import Floor, Goal, GoalKind, Preference, Price
from advisor.hardware.contention import Load
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import load_policy_file
from advisor.policy.fingerprints import Fingerprints
from advisor.policy.policy import Policy
from advisor.report.answer import confirmation_words
from advisor.search.space.space import Count
from advisor.session.answer.conclude import Conclusion
from advisor.session.answer.confirm import confirm, not_run
from advisor.session.answer.emit import emit
from advisor.session.answer.remeasure import times_measured
from advisor.session.trials.turns import Turns
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import ConfirmResult, Pace, SplitResult, TimeResult
from tests.decide.costs import cheapest, timed
from tests.decide.examples import baseline, goal, measured, measurement, on
from tests.decide.test_guard import error, found
from tests.session.contexts import study
from tests.session.ledgers import InMemory
from tests.session.unguarded import UNGUARDED

pytestmark = pytest.mark.usefixtures("as_many_pairs_as_usual")

BEST = measured(150, use("checkpoint", every=1))
SECOND = measured(130, use("checkpoint", every=2))
THIRD = measured(120, use("checkpoint", every=3))
BASELINE = baseline(100)
DDP = use("ddp", bucket_views=True, static_graph=False)


class FakeTrials:
    """Answers confirmations as told; remembers what was confirmed and which wrapper lay there."""

    def __init__(
        self,
        outcomes: dict[str, Outcome],
        rate: float = 150.0,
        *,
        rates: dict[str, float] | None = None,
        speedups: Mapping[str, Speedup | list[Any]] | None = None,
        baseline: float = 99.0,
    ) -> None:
        self.outcomes = outcomes
        self.rate = rate
        self.rates = rates or {}
        self.speedups = speedups or {}
        self.baseline = baseline
        self.confirmed: list[str] = []
        self.asked: dict[str, Any] = {}
        self.baselines = 0
        self.turns = Turns(wanted=False, usable_bytes=2**40, second_context_bytes=0)

    def confirm(
        self, policy: Policy, wrapper_path: str, *, repeat: int, around_stalls: bool = True, **asked: Any
    ) -> ConfirmResult:
        self.asked = asked
        text = Path(wrapper_path).read_text()
        assert all(
            f"{name}={value!r}" in text for setting in policy.methods for name, value in setting.parameters.items()
        )
        self.confirmed.append(policy.label)
        outcome = self.outcomes.get(policy.label, Outcome.OK)
        figures = measurement(self.rates.get(policy.label, self.rate)) if outcome is Outcome.OK else None
        speedup = self.speedups.get(policy.label)
        if isinstance(speedup, list):
            speedup = speedup[repeat]
            if speedup is KeyboardInterrupt:
                raise speedup
        return ConfirmResult(
            key="confirm", outcome=outcome, reason="it was told to", measurement=figures, speedup=speedup
        )

    def model_of(self, combination: object) -> None:
        """Nothing is known of its memory, so no larger batch is tried."""

    def count_work(self, policy: Policy) -> None:
        """A step that cannot be followed."""

    def split(self, policy: Policy, **_: Any) -> SplitResult:
        """Nor be profiled."""
        return SplitResult(key="split", outcome=Outcome.FAILED)

    def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
        assert repeat > 0, "the baseline is measured again, not read back"
        self.baselines += 1
        figures: Measurement = measurement(self.baseline)
        return TimeResult(key="time", outcome=Outcome.OK, measurement=figures)


def conclusion(folder: Path) -> Conclusion:
    return Conclusion(
        goal=goal(),
        refused_settings={},
        untried=Count(0),
        stopped_because="every policy of the search space was tried",
        folder=StudyFolder(folder),
        workload="tiny",
        hardware=Hardware(
            kind=DeviceKind.CPU,
            device="cpu",
            name="a CPU",
            memory_bytes=1,
            free_bytes=1,
            host_memory_bytes=1,
            host_free_bytes=1,
            host_cores=1,
        ),
        fingerprints=Fingerprints(workload={}, hardware={}, versions={"momadvise": "0", "torch": "2"}, request="r"),
        date="2026-01-02",
    )


def conclude(
    folder: Path,
    candidates: list[Candidate],
    trials: Any,
    seconds: float = 100.0,
    *,
    repeat: bool = False,
    stored: list[Candidate] | None = None,
    aim: Goal | None = None,
    interrupts: bool = False,
) -> Any:
    ledger = InMemory(candidates)
    context = study(aim or goal(), seconds=seconds, ledger=ledger)
    of_goal = msgspec.structs.replace(conclusion(folder), goal=context.goal)
    recommendation, interrupted = confirm(context, of_goal, trials, UNGUARDED, repeat=repeat)
    assert interrupted is interrupts
    candidates[:] = ledger.candidates
    if stored is not None:
        stored += ledger.written
    return recommendation


def test_the_winner_is_confirmed_and_the_baseline_measured_again_beside_it(tmp_path: Path) -> None:
    trials = FakeTrials({})
    recommendation = conclude(tmp_path, [BASELINE, BEST], trials)
    assert recommendation.winner == BEST
    assert recommendation.confirmation.kept == 1.0
    assert recommendation.confirmation.baseline_samples_per_second == 99.0
    promise = recommendation.confirmation.promise
    assert promise.value == pytest.approx(150 / 99), "a ratio, as always"
    assert 1.2 < promise.low < 1.45 < 1.6 < promise.high < 1.9
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.confirmed_samples_per_second == 150.0


def test_a_ratio_of_runs_at_two_times_is_as_uncertain_as_the_baseline_changed_between_them(tmp_path: Path) -> None:
    steady, drifting = (
        conclude(tmp_path, [BASELINE, BEST], FakeTrials({}, baseline=rate, rate=1.5 * rate)).confirmation.promise
        for rate in (99.0, 60.0)
    )
    assert steady.value == pytest.approx(drifting.value)
    assert drifting.relative_spread > 2 * steady.relative_spread


def test_it_is_as_uncertain_as_two_runs_of_the_wrapper_differ(tmp_path: Path) -> None:
    once, twice = (
        conclude(tmp_path, [BASELINE, BEST], Confirming(*rates)).confirmation.promise for rates in ((150,), (250, 150))
    )
    assert once.value == twice.value
    assert twice.relative_spread > 2 * once.relative_spread


def test_without_time_for_the_baseline_nothing_is_promised_over_it(tmp_path: Path) -> None:
    confirmation = conclude(tmp_path, [BASELINE, BEST], FakeTrials({}), seconds=1e-9).confirmation
    assert (confirmation.as_promised, confirmation.promise) == (True, None)


def test_the_leaders_are_measured_again_before_one_is_confirmed(tmp_path: Path) -> None:
    """The lead of 150 was luck: both figures of the second are 145."""

    repeats: list[tuple[str, int]] = []

    class Again(FakeTrials):
        def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
            repeats.append((policy.label, repeat))
            rate = {BEST.policy.label: 110.0, "plain": 100.0}.get(policy.label, 145.0)
            return TimeResult(key=f"again-{repeat}", outcome=Outcome.OK, measurement=measurement(rate))

    near = measured(145, use("checkpoint", every=2))
    trials = Again({})
    recommendation = conclude(tmp_path, [BASELINE, BEST, near], trials, repeat=True)
    assert recommendation.winner.policy == near.policy
    assert trials.confirmed == [near.policy.label]
    labels = [BEST.policy.label, "plain", near.policy.label, "plain"]
    assert repeats[:3] == list(zip(labels[:3], [1, 1, 1], strict=True))
    ((label, right_after),) = repeats[3:]
    assert (label, right_after > 2) == ("plain", True), "the last one beside the confirmation"


def test_the_baseline_right_after_a_wrapper_is_read_back_with_it_and_with_no_other(tmp_path: Path) -> None:
    """Trap: a longer run found another winner on a machine half as fast, and took the baseline of the first one."""
    repeats: list[int] = []

    class Anew(FakeTrials):
        def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
            repeats.append(repeat)
            return super().time(policy, outpaced_below=outpaced_below, repeat=repeat)

    for candidates in ([BASELINE, BEST], [BASELINE, SECOND], [BASELINE, BEST]):
        conclude(tmp_path, candidates, Anew({}))
    first, other, again = repeats
    assert first == again != other


def test_who_leads_after_a_repetition_is_measured_again_as_well(tmp_path: Path) -> None:
    """Two lucky figures: each leads when the one before has fallen, until one holds."""

    repeated: list[str] = []

    class Again(FakeTrials):
        def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
            repeated.append(policy.label)
            rate = {"plain": 100.0, THIRD.policy.label: 119.0}.get(policy.label, 112.0)
            return TimeResult(key=f"again-{repeat}", outcome=Outcome.OK, measurement=measurement(rate))

    candidates = [BASELINE, BEST, SECOND, THIRD]
    recommendation = conclude(tmp_path, candidates, Again({}), seconds=1000.0, repeat=True)
    assert repeated[:4] == [one.policy.label for one in (BEST, BASELINE, SECOND, THIRD)]
    assert times_measured(recommendation.winner.policy, candidates) == 2


def test_a_winner_whose_wrapper_fails_gives_way_to_the_next_and_keeps_its_reason(tmp_path: Path) -> None:
    trials = FakeTrials({BEST.policy.label: Outcome.OUT_OF_MEMORY}, rate=130.0)
    stored: list[Candidate] = []
    recommendation = conclude(tmp_path, [BASELINE, BEST, SECOND], trials, stored=stored)
    assert recommendation.winner == SECOND
    assert load_policy_file(tmp_path / "policy.yaml").policy == SECOND.policy
    assert "every=2" in (tmp_path / "wrapper.py").read_text()
    (failed,) = recommendation.not_measured
    assert failed.policy == BEST.policy
    assert failed.outcome is Outcome.OUT_OF_MEMORY
    assert "fresh process" in failed.reason
    assert [one.outcome for one in stored if one.policy == BEST.policy] == [Outcome.OUT_OF_MEMORY], "on disk as well"


def test_when_too_many_wrappers_fail_the_baseline_is_the_answer_if_its_own_runs(tmp_path: Path) -> None:
    fourth = measured(105, use("checkpoint", every=4))
    trials = FakeTrials({one.policy.label: Outcome.CRASHED for one in (BEST, SECOND, THIRD)}, rate=100.0)
    recommendation = conclude(tmp_path, [BASELINE, BEST, SECOND, THIRD, fourth], trials)
    assert recommendation.winner.policy == BASELINE.policy
    assert trials.confirmed[-1] == "plain"
    assert fourth.policy.label not in trials.confirmed, "a fourth try would hardly go better"
    (left,) = [one for one in recommendation.ranking if one.policy == fourth.policy]
    assert "the wrappers of the best 3 failed" in left.not_confirmed


def test_when_the_baselines_wrapper_fails_too_nothing_is_recommended_and_no_file_is_left(tmp_path: Path) -> None:
    broken = {one.policy.label: Outcome.CRASHED for one in (BASELINE, BEST, SECOND, THIRD)}
    with pytest.raises(NothingMeasuredError, match="the best 4 did not"):
        conclude(tmp_path, [BASELINE, BEST, SECOND, THIRD], FakeTrials(broken))
    assert list(tmp_path.iterdir()) == []


def test_where_every_wrapper_fails_no_file_is_left_of_the_last(tmp_path: Path) -> None:
    trials = FakeTrials({one.policy.label: Outcome.OUT_OF_MEMORY for one in (BEST, SECOND)})
    with pytest.raises(NothingFitsError):
        conclude(tmp_path, [BEST, SECOND], trials)
    assert list(tmp_path.iterdir()) == []


def test_wrappers_that_fail_are_told_apart_by_their_devices(tmp_path: Path) -> None:
    pairs = [on(count, measured(100 + count, DDP)) for count in (2, 3, 4)]
    with pytest.raises(NothingMeasuredError, match=r"ddp[^(]* on 2 devices: its wrapper"):
        conclude(tmp_path, pairs, FakeTrials({DDP.label: Outcome.CRASHED}))


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.LOST])
def test_a_confirmation_that_ends_by_chance_leaves_a_recommendation_that_says_so(
    tmp_path: Path, outcome: Outcome
) -> None:
    trials = FakeTrials({BEST.policy.label: outcome})
    recommendation = conclude(tmp_path, [BASELINE, BEST], trials)
    assert recommendation.winner == BEST
    assert recommendation.confirmation.outcome is outcome
    assert recommendation.confirmation.kept is None


def test_a_broken_promise_is_held_against_the_baseline_even_when_time_is_up(tmp_path: Path) -> None:
    slow = FakeTrials({}, rate=75.0)
    recommendation = conclude(tmp_path, [BASELINE, BEST], slow, seconds=1e-9)
    assert slow.baselines == 1
    assert recommendation.winner == BASELINE, "which was faster than that"
    as_promised = FakeTrials({})
    conclude(tmp_path, [BASELINE, BEST], as_promised, seconds=1e-9)
    assert as_promised.baselines == 0


def test_an_interruption_beside_the_finished_confirmation_keeps_it(tmp_path: Path) -> None:
    class Interrupted(FakeTrials):
        def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
            raise KeyboardInterrupt

    trials: Any = Interrupted({})
    context = study(seconds=100.0, candidates=[BASELINE, BEST])
    recommendation, interrupted = confirm(context, conclusion(tmp_path), trials, UNGUARDED, repeat=False)
    assert interrupted
    assert recommendation.confirmation is not None
    assert recommendation.confirmation.outcome is Outcome.OK
    assert recommendation.confirmation.baseline_samples_per_second is None
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.confirmed_samples_per_second == 150.0


def test_the_policy_file_for_the_least_cost_names_cost_price_and_devices(tmp_path: Path) -> None:
    aim = cheapest()
    of_cost = msgspec.structs.replace(conclusion(tmp_path), goal=aim)
    candidates = [timed(2.0, role=Role.BASELINE), timed(0.8, gpu_count=4, accumulation_steps=2)]
    emit(of_cost, of_cost.choose(candidates), print)
    file = load_policy_file(tmp_path / "policy.yaml")
    assert (file.policy.gpu_count, file.policy.micro_batch, file.policy.accumulation_steps) == (4, 4, 2)
    assert file.evidence is not None
    assert file.evidence.goal == "cheapest"
    assert file.evidence.baseline_batch == 32
    assert file.evidence.cost is not None
    assert (file.evidence.cost.latency_seconds, file.evidence.cost.usd_per_iteration) == pytest.approx((0.8, 0.0032))
    assert file.evidence.cost.gpu_count == 4
    assert (file.evidence.cost.usd_per_hour, file.evidence.cost.price_date) == (3.6, "retrieved 2026-11-21")


def test_on_several_devices_the_files_name_them_and_their_part_of_the_memory(tmp_path: Path) -> None:
    aim = msgspec.structs.replace(goal(), shares_memory=True)
    of_two = msgspec.structs.replace(conclusion(tmp_path), goal=aim)
    recommendation = of_two.choose([on(2, measured(150, DDP, peak=aim.memory_limit_bytes // 4))])
    emit(of_two, recommendation, print)
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.memory_limit_bytes == aim.memory_limit_bytes // 2
    text = (tmp_path / "wrapper.py").read_text()
    assert f"on a CPU: {DDP.words} on 2 devices." in text
    assert "peak 2.00 GiB of each device at 16 samples per optimizer step" in text


def test_the_policy_file_of_another_goal_has_no_cost(tmp_path: Path) -> None:
    of_speed = conclusion(tmp_path)
    emit(of_speed, of_speed.choose([BASELINE]), print)
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.cost is None


def test_the_files_say_what_the_comparison_with_the_reference_run_found(tmp_path: Path) -> None:
    compared = msgspec.structs.replace(BEST, guard=found(0.0, gradient=error(0.0)))
    of_speed = conclusion(tmp_path)
    recommendation = of_speed.choose([BASELINE, compared])
    emit(of_speed, recommendation, print)
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.comparison is not None
    assert (evidence.comparison.steps, evidence.comparison.gradient_error) == (30, 0.0)
    assert evidence.not_compared is None
    assert (
        "Over 30 steps its losses were the reference run's; gradient error 0%." in (tmp_path / "wrapper.py").read_text()
    )


def test_the_files_say_why_nothing_was_compared(tmp_path: Path) -> None:
    late = msgspec.structs.replace(BEST, not_compared="no time was left")
    of_speed = conclusion(tmp_path)
    recommendation = of_speed.choose([BASELINE, late])
    emit(of_speed, recommendation, print)
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert (evidence.comparison, evidence.not_compared) == (None, "no time was left")
    assert "Not compared with the reference run: no time was left." in (tmp_path / "wrapper.py").read_text()


# ---- a winner that is no faster than the baseline when it is run again

GAIN = Speedup(value=1.4, low=1.35, high=1.45, rounds=7)
NO_GAIN = Speedup(value=0.97, low=0.94, high=1.0, rounds=7)


def test_a_winner_that_did_not_beat_the_baseline_in_turn_gives_way_to_the_next(tmp_path: Path) -> None:
    trials = FakeTrials({}, speedups={BEST.policy.label: NO_GAIN, SECOND.policy.label: GAIN})
    candidates = [BASELINE, BEST, SECOND]
    recommendation = conclude(tmp_path, candidates, trials)
    assert trials.confirmed == [BEST.policy.label, SECOND.policy.label]
    assert recommendation.winner.policy == SECOND.policy
    assert recommendation.confirmation.speedup == GAIN
    assert load_policy_file(tmp_path / "policy.yaml").policy == SECOND.policy
    assert candidates[1].confirmed is not None, "and it never leads again"
    assert candidates[1].confirmed.value == pytest.approx(0.97)


def test_what_is_recommended_is_promised_to_be_faster_with_its_whole_interval(tmp_path: Path) -> None:
    """The trap: seven turns of one pair of processes say 1.02 to 1.04; another pair may differ by more than that."""
    narrow = Speedup(value=1.03, low=1.02, high=1.04, rounds=7)
    trials = FakeTrials({}, speedups={BEST.policy.label: narrow})
    assert conclude(tmp_path, [BASELINE, BEST], trials, seconds=1e-9).winner == BASELINE


def test_a_gain_that_is_only_vague_may_be_confirmed_by_a_run_with_more_time(tmp_path: Path) -> None:
    """Trap: one pair of processes, 1.30 (0.97 to 1.74), and the policy never led again, whatever time there was."""
    vague = Speedup(value=1.3, low=0.97, high=1.74, rounds=4)
    candidates = [BASELINE, BEST]
    answered = conclude(tmp_path, candidates, FakeTrials({}, speedups={BEST.policy.label: vague}), seconds=1e-9)
    assert answered.winner == BASELINE
    assert "which is no gain beyond the noise" in " ".join(answered.why)
    assert candidates[1].confirmed is None
    clear = [vague, *4 * [Speedup(value=1.3, low=1.28, high=1.32, rounds=7)]]
    trials = FakeTrials({}, speedups={BEST.policy.label: clear})
    assert conclude(tmp_path, candidates, trials).winner.policy == BEST.policy
    assert len(trials.confirmed) > 1


def test_a_limit_that_only_the_unconfirmed_keep_is_not_called_out_of_reach(tmp_path: Path) -> None:
    """Trap: "the fastest takes 320 ms", though what was measured within the limit had not been run once."""
    beaten = {BEST.policy.label: Speedup(value=0.97, low=0.96, high=0.98, rounds=7)}
    aim = msgspec.structs.replace(
        goal(),
        kind=GoalKind.CHEAPEST,
        global_batch=BASELINE.policy.global_batch,
        price=Price(usd_per_hour=3.6, source="a list", date="2026-01-02"),
        preference=Preference(max_latency_seconds=0.9 * BASELINE.measured.step_seconds),
    )
    with pytest.raises(PreferenceNotMetError) as raised:
        conclude(tmp_path, [BASELINE, BEST, SECOND], FakeTrials({}, speedups=beaten), seconds=1e-9, aim=aim)
    assert "were not confirmed, for want of time: a longer --time-limit may confirm one." in str(raised.value)
    assert not (tmp_path / "policy.yaml").exists()


def test_what_may_be_no_gain_is_confirmed_in_more_processes_while_there_is_time(tmp_path: Path) -> None:
    narrow = Speedup(value=1.03, low=1.02, high=1.04, rounds=7)
    trials = FakeTrials({}, speedups={BEST.policy.label: narrow})
    recommendation = conclude(tmp_path, [BASELINE, BEST], trials)
    assert trials.confirmed == 3 * [BEST.policy.label]
    assert recommendation.winner.policy == BEST.policy
    assert recommendation.confirmation.speedup.value == pytest.approx(1.03)
    assert recommendation.confirmation.speedup.rounds == 21
    assert recommendation.confirmation.promise.low > 1 / 1.03


def test_more_processes_that_show_no_gain_outvote_the_first(tmp_path: Path) -> None:
    first, then = (Speedup(value=one, low=0.98 * one, high=1.02 * one, rounds=7) for one in (1.04, 0.97))
    trials = FakeTrials({}, speedups={BEST.policy.label: [first, then, then]})
    assert conclude(tmp_path, [BASELINE, BEST], trials).winner == BASELINE


def test_a_promise_that_is_known_well_takes_one_pair_of_processes(tmp_path: Path) -> None:
    trials = FakeTrials({}, speedups={BEST.policy.label: GAIN})
    recommendation = conclude(tmp_path, [BASELINE, BEST], trials)
    assert trials.confirmed == [BEST.policy.label]
    assert recommendation.confirmation.promise.high < 1.5 * recommendation.confirmation.promise.low


def test_an_interruption_keeps_the_pairs_of_processes_that_were_measured(tmp_path: Path) -> None:
    wide = Speedup(value=3.0, low=2.0, high=4.5, rounds=3)
    trials = FakeTrials({}, speedups={BEST.policy.label: [wide, KeyboardInterrupt]})
    recommendation = conclude(tmp_path, [BASELINE, BEST], trials, interrupts=True)
    assert recommendation.confirmation.outcome is Outcome.OK
    assert recommendation.confirmation.speedup == wide


def test_after_an_interruption_what_the_wrapper_showed_in_an_earlier_run_is_said(tmp_path: Path) -> None:
    """Trap: 24 times by the search, 1.74 when the wrapper ran, and then "before the wrapper had run"."""
    shown = Speedup(value=1.3, low=1.2, high=1.4, rounds=7)
    context = study(candidates=[BASELINE, msgspec.structs.replace(BEST, confirmed=shown)])
    found = not_run(context, conclusion(tmp_path), UNGUARDED, print).confirmation
    assert found is not None
    assert found.reason == ("interrupted before the wrapper had run again; before, it showed 1.30 times the baseline")


def test_after_an_interruption_what_a_confirmation_left_open_does_not_lead_again(tmp_path: Path) -> None:
    """Trap: it was recommended with the speed of the search, and its wrapper was said not to have run."""
    vague = Speedup(value=1.05, low=0.9, high=1.22, rounds=3)
    trials = FakeTrials({}, speedups={BEST.policy.label: [vague, KeyboardInterrupt]})
    recommendation = conclude(tmp_path, [BASELINE, BEST], trials, interrupts=True)
    assert recommendation.winner == BASELINE
    assert recommendation.confirmation.outcome is Outcome.INTERRUPTED
    policy = load_policy_file(tmp_path / "policy.yaml").policy
    assert policy == BASELINE.policy


@pytest.mark.parametrize(("outcome", "wins"), [(Outcome.CRASHED, False), (Outcome.TIMEOUT, True)])
def test_a_wrapper_that_fails_in_another_pair_of_processes_is_not_recommended(
    outcome: Outcome, wins: bool, tmp_path: Path
) -> None:
    """Trap: it was called confirmed, by the pair in which it had run."""

    class FailsLater(FakeTrials):
        def confirm(self, policy: Policy, wrapper_path: str, *, repeat: int, **asked: Any) -> ConfirmResult:
            self.outcomes = {BEST.policy.label: outcome if repeat else Outcome.OK}
            found = super().confirm(policy, wrapper_path, repeat=repeat, **asked)
            return found if found.outcome is Outcome.OK else msgspec.structs.replace(found, speedup=None)

    wide = Speedup(value=3.0, low=2.0, high=4.5, rounds=3)
    trials = FailsLater({}, speedups={BEST.policy.label: wide, SECOND.policy.label: GAIN})
    recommendation = conclude(tmp_path, [BASELINE, BEST, SECOND], trials)
    assert recommendation.winner.policy == (BEST if wins else SECOND).policy
    failed = [one for one in recommendation.not_measured if one.policy == BEST.policy]
    assert [one.outcome for one in failed] == ([] if wins else [outcome])


def test_partners_that_end_a_group_of_ranks_in_another_pair_say_nothing_about_the_wrapper(tmp_path: Path) -> None:
    class Crowded(FakeTrials):
        def confirm(self, policy: Policy, wrapper_path: str, *, repeat: int, **asked: Any) -> ConfirmResult:
            if repeat:
                return ConfirmResult(key="confirm", outcome=Outcome.OUT_OF_MEMORY)
            return super().confirm(policy, wrapper_path, repeat=repeat, **asked)

    on_two = on(2, measured(300, DDP))
    wide = Speedup(value=3.0, low=2.0, high=4.5, rounds=3)
    recommendation = conclude(tmp_path, [BASELINE, on_two], Crowded({}, speedups={DDP.label: wide}))
    assert recommendation.winner.policy == on_two.policy
    assert recommendation.confirmation.speedup == wide


def test_after_three_winners_without_a_gain_the_answer_is_to_keep_what_one_has(tmp_path: Path) -> None:
    fourth = measured(115, use("checkpoint", every=4))
    losers = (BEST, SECOND, THIRD, fourth)
    trials = FakeTrials({}, speedups={one.policy.label: NO_GAIN for one in losers})
    recommendation = conclude(tmp_path, [BASELINE, *losers], trials)
    assert recommendation.winner == BASELINE
    again = ["plain", "plain"]  # it ran far faster than before
    assert trials.confirmed == [*(one.policy.label for one in losers[:3]), *again]


def test_without_time_for_another_confirmation_the_answer_is_to_keep_what_one_has(tmp_path: Path) -> None:
    trials = FakeTrials({}, speedups={BEST.policy.label: NO_GAIN, SECOND.policy.label: GAIN})
    candidates = [BASELINE, BEST, SECOND]
    recommendation = conclude(tmp_path, candidates, trials, seconds=1e-9)
    assert recommendation.winner == BASELINE
    assert trials.confirmed == [BEST.policy.label, "plain"]
    (second,) = [one for one in recommendation.ranking if one.policy == SECOND.policy]
    assert "no other was run" in second.not_confirmed
    assert candidates[2] == SECOND, "a run with more time may confirm it"


def test_where_nobody_took_turns_the_baseline_measured_again_decides(tmp_path: Path) -> None:
    trials = FakeTrials({}, rates={BEST.policy.label: 98.0, SECOND.policy.label: 120.0})
    candidates = [BASELINE, BEST, SECOND]
    recommendation = conclude(tmp_path, candidates, trials)
    assert recommendation.winner == SECOND
    assert "98.0 samples/s, and the baseline right after it 99.0" in candidates[1].not_confirmed


class Confirming(FakeTrials):
    """Confirms at one rate after the other."""

    def __init__(self, *rates: float, baseline: float = 99.0) -> None:
        super().__init__({})
        self.next_rates = list(rates)
        self.baseline = baseline
        self.repeats: list[int] = []

    def confirm(
        self, policy: Policy, wrapper_path: str, *, repeat: int, around_stalls: bool = True, **_: Any
    ) -> ConfirmResult:
        self.repeats.append(repeat)
        return ConfirmResult(key="confirm", outcome=Outcome.OK, measurement=measurement(self.next_rates.pop(0)))

    def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
        return TimeResult(key="time", outcome=Outcome.OK, measurement=measurement(self.baseline))


@pytest.mark.parametrize(
    ("rates", "stands", "as_promised"),
    [((150.0,), 150.0, True), ((250.0, 152.0), 152.0, True), ((250.0, 260.0), 250.0, False)],
    ids=["as promised", "once by chance", "not reproducible"],
)
def test_a_confirmation_far_from_its_promise_is_repeated_and_not_called_one_if_it_stays(
    tmp_path: Path, rates: tuple[float, ...], stands: float, as_promised: bool
) -> None:
    """Trap: 133 % and 671 % of the promise were called confirmed on a busy machine."""
    trials = Confirming(*rates)
    found = conclude(tmp_path, [BASELINE, BEST], trials).confirmation
    assert found.measurement.samples_per_second == stands
    assert found.as_promised is as_promised
    assert trials.repeats == list(range(len(rates)))
    words = confirmation_words(found)
    assert words.startswith("Confirmed" if as_promised else "Not confirmed: in a fresh process")
    others = [f"{rate:,.0f} samples/s" for rate in rates if rate != stands]
    assert ("It ran twice" in words) is bool(others)
    assert all(f"the other time {other}" in words for other in others)


IN_TURN = Speedup(value=1.5, low=1.47, high=1.53, rounds=7)


@pytest.mark.parametrize(
    ("found", "before", "as_promised"),
    [(1.45, None, True), (2.0, None, False), (10.0, None, False), (0.9 * 1.5, 1.35, True), (2.0, 2.05, True)],
    ids=["as promised", "133 %", "671 %", "slower, as confirmed before", "as confirmed before"],
)
def test_a_confirmation_in_turn_is_held_to_the_ratio_that_was_measured_before(
    found: float, before: float | None, as_promised: bool, tmp_path: Path
) -> None:
    """Trap: 133 % and 671 % of what the search had measured in turn were called confirmed."""

    def near(value: float) -> Speedup:
        return Speedup(value=value, low=0.98 * value, high=1.02 * value, rounds=7)

    best = msgspec.structs.replace(BEST, speedup=IN_TURN, confirmed=None if before is None else near(before))
    trials = FakeTrials({}, speedups={BEST.policy.label: near(found)})
    confirmation = conclude(tmp_path, [BASELINE, best], trials).confirmation
    assert confirmation.as_promised is as_promised
    words = confirmation_words(confirmation)
    assert words.startswith("Confirmed: the wrapper and the baseline took" if as_promised else "Not confirmed")
    assert " 7 turns" in words or " 35 turns" in words, "of one pair of processes, or of five"
    if not as_promised:
        share = f"{100 * found / 1.5:.0f}% of its promise, and ±10% would be noise"
        assert share in words
        assert "not reproducible on this machine now" in words


def test_a_confirmation_that_is_read_back_does_not_confirm_itself(tmp_path: Path) -> None:
    """Trap: a continued study compared an unreproducible ratio with itself, and called it confirmed."""
    in_turn = {BEST.policy.label: msgspec.structs.replace(IN_TURN, value=2.0, low=1.96, high=2.04)}
    best = msgspec.structs.replace(BEST, speedup=IN_TURN)
    first = conclude(tmp_path, [BASELINE, best], FakeTrials({}, speedups=in_turn)).confirmation
    assert not first.as_promised
    marked = msgspec.structs.replace(best, confirmed=first.speedup)
    again = conclude(tmp_path, [BASELINE, marked], FakeTrials({}, speedups=in_turn)).confirmation
    assert again.speedup == first.speedup
    assert not again.as_promised


@pytest.mark.parametrize(
    ("found", "repeated", "as_promised"),
    [(1.45, 0.0, True), (2.0, 0.0, False), (10.0, 0.0, False), (1.6, 0.15, True)],
    ids=["as promised", "133 %", "671 %", "125 % where repetitions differ as much"],
)
def test_where_nothing_took_turns_before_a_confirmation_is_held_to_the_throughputs_of_the_search(
    found: float, repeated: float, as_promised: bool, tmp_path: Path
) -> None:
    """Trap: a winner that had no room beside the baseline in the search was confirmed at any ratio in turn."""
    in_turn = Speedup(value=found, low=0.98 * found, high=1.02 * found, rounds=7)
    rates = (150 * (1 - repeated), 150 * (1 + repeated)) if repeated else (150,)
    candidates = [BASELINE, *(measured(rate, use("checkpoint", every=1)) for rate in rates)]
    recommendation = conclude(tmp_path, candidates, FakeTrials({}, speedups={BEST.policy.label: in_turn}))
    confirmation = recommendation.confirmation
    assert confirmation.expected_speedup == pytest.approx(recommendation.winner.samples_per_second / 100)
    assert confirmation.as_promised is as_promised
    assert confirmation_words(confirmation).startswith("Confirmed" if as_promised else "Not confirmed")


def test_the_load_is_looked_at_where_a_confirmation_is_far_from_its_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Load(1.9, 2, names=("cc1plus 98%",))
    monkeypatch.setattr("advisor.session.answer.wrapper_runs.other_load", lambda *_, **__: busy)
    found = conclude(tmp_path, [BASELINE, BEST], Confirming(250.0, 260.0)).confirmation
    assert found.other_load == "other processes keep 1.9 of 2 cores busy (cc1plus 98%)"
    assert f"now: {found.other_load}; run the same command again with --wait-idle" in confirmation_words(found)
    assert conclude(tmp_path, [BASELINE, BEST], Confirming(150.0)).confirmation.other_load == ""


def test_a_machine_that_became_faster_for_both_breaks_no_promise(tmp_path: Path) -> None:
    trials = Confirming(300.0, baseline=200.0)
    found = conclude(tmp_path, [BASELINE, BEST], trials).confirmation
    assert found.drift == pytest.approx(2.0)
    assert found.as_promised
    assert trials.repeats == [0]


@pytest.mark.parametrize(
    ("gpu_count", "rate", "wins"), [(1, 41.0, True), (1, 39.0, False), (4, 41.0, True), (4, 39.0, False)]
)
def test_the_cheapest_gives_way_if_it_is_neither_faster_nor_cheaper_than_the_baseline_after_it(
    gpu_count: int, rate: float, wins: bool, tmp_path: Path
) -> None:
    baseline_of_cost = timed(1.0, role=Role.BASELINE)
    found = timed(0.2, use("precision", dtype="bf16"), gpu_count=gpu_count)
    trials = FakeTrials({}, rates={found.policy.label: rate, baseline_of_cost.policy.label: 40.0}, baseline=40.0)
    recommendation = conclude(tmp_path, [baseline_of_cost, found], trials, aim=cheapest())
    assert (recommendation.winner.policy == found.policy) == wins


def test_the_cheapest_on_fewer_devices_may_be_slower_than_the_baseline(tmp_path: Path) -> None:
    baseline_of_cost = timed(1.0, gpu_count=4, role=Role.BASELINE)
    found = timed(1.5, use("precision", dtype="bf16"))
    for rate, wins in ((11.0, True), (9.0, False)):
        trials = FakeTrials({}, rates={found.policy.label: rate, baseline_of_cost.policy.label: 40.0}, baseline=40.0)
        recommendation = conclude(tmp_path, [baseline_of_cost, found], trials, aim=cheapest())
        assert (recommendation.winner.policy == found.policy) == wins


@pytest.mark.parametrize(("ratio", "wins"), [(4.0, True), (0.9, False)])
def test_the_cheapest_is_promised_as_a_ratio_and_gives_way_without_a_gain(
    ratio: float, wins: bool, tmp_path: Path
) -> None:
    """Four devices beside the baseline on the first of them: a machine that drifts slows both."""
    baseline_of_cost = timed(1.0, role=Role.BASELINE)
    found = timed(0.2, use("precision", dtype="bf16"), gpu_count=4)
    in_turn = Speedup(value=ratio, low=0.98 * ratio, high=1.02 * ratio, rounds=6)
    trials = FakeTrials({}, speedups={found.policy.label: in_turn}, baseline=40.0)
    recommendation = conclude(tmp_path, [baseline_of_cost, found], trials, aim=cheapest())
    assert (recommendation.winner.policy == found.policy) == wins
    if wins:
        assert trials.asked == {"beside": baseline_of_cost.policy, "beside_size": None}
        assert recommendation.confirmation.promise.value == ratio
        assert trials.baselines == 0, "it took turns, and is not measured again"


@pytest.mark.parametrize(("now", "as_promised"), [(10.0, False), (8.5, True)])
def test_a_ratio_of_trials_is_as_uncertain_as_the_baseline_differs_now(
    now: float, as_promised: bool, tmp_path: Path
) -> None:
    """The search measured five times, in two trials at two times; in turn it is 4.3 times."""

    class Paced(FakeTrials):
        def confirm(self, policy: Policy, wrapper_path: str, *, repeat: int, **asked: Any) -> ConfirmResult:
            pace = Pace(policy=asked["beside"], samples_per_second=now)
            return msgspec.structs.replace(super().confirm(policy, wrapper_path, repeat=repeat), paces=(pace,))

    baseline_of_cost = timed(1.0, role=Role.BASELINE)
    rate = baseline_of_cost.measured.samples_per_second
    now *= rate / 10.0
    found = timed(0.2, use("precision", dtype="bf16"))
    trials = Paced({}, speedups={found.policy.label: Speedup(value=4.3, low=4.25, high=4.35, rounds=9)})
    recommendation = conclude(tmp_path, [baseline_of_cost, found], trials, aim=cheapest())
    assert recommendation.confirmation.as_promised is as_promised


def test_where_there_is_no_room_for_both_the_wrapper_is_confirmed_by_itself(tmp_path: Path) -> None:
    trials = FakeTrials({})
    peak = BEST.measured.memory.peak_bytes
    context = study(goal(), ledger=InMemory([BASELINE, BEST]), usable_bytes=2 * peak - 1)
    confirm(context, conclusion(tmp_path), trials, UNGUARDED, repeat=False)  # type: ignore[arg-type]
    assert trials.asked == {}


def test_a_group_that_ends_beside_the_baseline_is_confirmed_without_it(tmp_path: Path) -> None:
    """Partners that do not fit after all end the whole group: that says nothing about the wrapper."""

    class Crowded(FakeTrials):
        def confirm(self, policy: Policy, wrapper_path: str, *, repeat: int, **asked: Any) -> ConfirmResult:
            self.outcomes = {policy.label: Outcome.TIMEOUT if asked.get("beside") else Outcome.OK}
            return super().confirm(policy, wrapper_path, repeat=repeat, **asked)

    on_two = on(2, measured(180, DDP))
    trials = Crowded({}, rate=180.0)
    recommendation = conclude(tmp_path, [BASELINE, on_two], trials)
    assert recommendation.winner.policy == on_two.policy
    assert recommendation.confirmation.outcome is Outcome.OK
    assert trials.confirmed == 2 * [on_two.policy.label]


def test_a_larger_model_takes_turns_with_the_baseline_at_its_own_size_and_may_be_slower(tmp_path: Path) -> None:
    own = msgspec.structs.replace(BASELINE, model_size={"layers": 4}, parameter_count=1000)
    larger = msgspec.structs.replace(BEST, model_size={"layers": 8}, parameter_count=2000)
    slower = Speedup(value=0.6, low=0.58, high=0.62, rounds=6)
    trials = FakeTrials({}, speedups={larger.policy.label: slower})
    trials.at_size = lambda size: trials  # type: ignore[attr-defined]
    aim = msgspec.structs.replace(goal(), kind=GoalKind.BIGGER, floor=Floor(samples_per_second=50.0))
    recommendation = conclude(tmp_path, [own, larger], trials, aim=aim)
    assert trials.asked == {"beside": own.policy, "beside_size": {"layers": 4}}
    assert recommendation.winner.model_size == {"layers": 8}
    assert recommendation.confirmation.promise.value == 0.6
    words = confirmation_words(recommendation.confirmation, floor=50.0)
    assert "0.60 times the baseline at its own size" in words
    evidence = load_policy_file(tmp_path / "policy.yaml").evidence
    assert evidence is not None
    assert evidence.speedup_over_baseline is None, "the throughput of another size is no baseline"


BESIDE_OTHERS = Speedup(value=300.0, low=290.0, high=310.0, rounds=8)
BUSY = Load(1.0, 2, names=("cc1plus 98%",))


class BesideOthers(FakeTrials):
    """Confirms hundreds of times, and remembers which other baseline was timed."""

    def __init__(self, outcome: Outcome = Outcome.OK) -> None:
        super().__init__(
            {}, speedups={ON_FEWER_THREADS.policy.label: BESIDE_OTHERS, ON_ONE.policy.label: BESIDE_OTHERS}
        )
        self.timed: list[Policy] = []
        self.outcome = outcome

    def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
        self.timed.append(policy)
        figures = measurement(self.rate / 1.4) if self.outcome is Outcome.OK else None
        return TimeResult(key="time", outcome=self.outcome, measurement=figures)


THREADS = MethodSetting(name="intraop_threads", parameters={"count": 1})
ON_ONE = measured(4000.0, THREADS)
ON_FEWER_THREADS = measured(5000.0, use("checkpoint", every=1), THREADS)


@pytest.mark.parametrize(
    ("winner", "load", "outcome", "low", "compared"),
    [
        (ON_FEWER_THREADS, BUSY, Outcome.OK, 1.27, ["intraop_threads(count=1)"]),
        (ON_FEWER_THREADS, BUSY, Outcome.TIMEOUT, promised([BESIDE_OTHERS], ()).low, ["intraop_threads(count=1)"]),
        (ON_FEWER_THREADS, Load(0.0, 2), Outcome.OK, promised([BESIDE_OTHERS], ()).low, []),
        (ON_ONE, BUSY, Outcome.OK, 1.0, []),
    ],
    ids=["busy", "busy, no result", "idle", "nothing but the threads"],
)
def test_beside_other_processes_a_promise_is_what_is_left_when_they_slow_the_baseline_down_less(
    winner: Candidate,
    load: Load,
    outcome: Outcome,
    low: float,
    compared: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap: 306 times the baseline, between 155 and 605, while its threads waited for each other; 13 times next."""
    monkeypatch.setattr("advisor.session.answer.wrapper_runs.other_load", lambda *_, **__: load)
    trials = BesideOthers(outcome)
    found = conclude(tmp_path, [BASELINE, winner], trials)
    assert found.confirmation.promise.value == 300.0
    assert found.confirmation.promise.low == pytest.approx(low, rel=0.02)
    assert [one.label for one in trials.timed] == compared
    said = "with intraop_threads count=1 gets around that, and over it the speedup is" in " ".join(found.why)
    assert said == (outcome is Outcome.OK and bool(compared))
    assert ("at least" in found.why[0]) == (1 < low < 2)


@pytest.mark.parametrize(("now", "low"), [(5.0, 2.0), (40.0, 2.0)], ids=["busier than in the search", "quieter"])
def test_a_steadier_baseline_that_took_turns_itself_is_compared_by_that(
    now: float, low: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap: its throughput was at the speed that the machine had in the search, the wrapper's at today's."""
    monkeypatch.setattr("advisor.session.answer.wrapper_runs.other_load", lambda *_, **__: BUSY)

    class InTurn(BesideOthers):
        def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
            over_baseline = Speedup(value=150.0, low=149.0, high=151.0, rounds=8)
            return TimeResult(key="time", outcome=Outcome.OK, measurement=measurement(15_000.0), speedup=over_baseline)

    trials = InTurn()
    trials.rates = {ON_FEWER_THREADS.policy.label: 300.0 * now}
    found = conclude(tmp_path, [BASELINE, ON_FEWER_THREADS], trials)
    assert found.confirmation.promise.value == 300.0
    assert found.confirmation.promise.low == pytest.approx(low, rel=0.12)


class BesideSteady(BesideOthers):
    """Confirms 1.4 times in turn with the baseline on one thread, and 300 times with the baseline itself."""

    def __init__(self) -> None:
        super().__init__()
        self.turns.around = (THREADS,)
        self.turns.steady = msgspec.structs.replace(ON_ONE, speedup=Speedup(value=40.0, low=20.0, high=80.0, rounds=1))

    def confirm(
        self, policy: Policy, wrapper_path: str, *, repeat: int, around_stalls: bool = True, **_: Any
    ) -> ConfirmResult:
        found = super().confirm(policy, wrapper_path, repeat=repeat)
        if not around_stalls:
            return found
        over_steady = Speedup(value=1.4, low=1.36, high=1.44, rounds=8)
        pace = Pace(policy=ON_ONE.policy, samples_per_second=100.0)
        return msgspec.structs.replace(found, speedup=over_steady, paces=(pace,))


@pytest.mark.parametrize(
    ("load", "value", "low"),
    [(BUSY, 56.0, promised([Speedup(value=1.4, low=1.36, high=1.44, rounds=8)], ()).low), (Load(0.0, 2), 300.0, 100.0)],
    ids=["busy", "idle again"],
)
def test_what_took_turns_with_a_steady_baseline_is_promised_over_both(
    load: Load, value: float, low: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the machine is idle, the baseline itself is what counts: it has more threads then."""
    monkeypatch.setattr("advisor.session.answer.wrapper_runs.other_load", lambda *_, **__: load)
    trials = BesideSteady()
    found = conclude(tmp_path, [BASELINE, ON_FEWER_THREADS], trials)
    promise = found.confirmation.promise
    assert promise.value == pytest.approx(value)
    assert promise.low == pytest.approx(low) if value == 56.0 else promise.low > low
    assert ("in turn with a baseline with intraop_threads count=1 in fresh" in found.why[0]) == (value == 56.0)
    assert trials.timed == [], "what is left without stalls is known already"
    assert bool(found.confirmation.around_stalls) == (value == 56.0)


def test_a_baseline_that_wins_takes_turns_with_no_steady_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: by way of that one it was no faster than itself, so that nothing at all was recommended."""
    monkeypatch.setattr("advisor.session.answer.wrapper_runs.other_load", lambda *_, **__: BUSY)
    over_steady = Speedup(value=0.026, low=0.007, high=0.1, rounds=2)

    class Stalling(BesideSteady):
        def confirm(
            self, policy: Policy, wrapper_path: str, *, repeat: int, around_stalls: bool = True, **_: Any
        ) -> ConfirmResult:
            found = super().confirm(policy, wrapper_path, repeat=repeat, around_stalls=around_stalls)
            return msgspec.structs.replace(found, speedup=over_steady if around_stalls else None)

    recommendation = conclude(tmp_path, [BASELINE], Stalling())
    assert recommendation.winner == BASELINE
    assert recommendation.confirmation.outcome is Outcome.OK
