"""What would lead is compared with the reference run before it leads, and no measurement is lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.errors import NothingMeasuredError
from advisor.goal import Fidelity
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.search.propose.proposal import GainLeft
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposal
from advisor.session.budget import TimeBudget
from advisor.session.loop import SearchLoop
from advisor.session.trials.candidates import Evaluation
from advisor.session.trials.compare import ComparingEvaluator
from advisor.trial.outcome import Outcome
from tests.decide.examples import LIMIT, baseline, goal, in_short_steps, measured
from tests.decide.test_guard import found
from tests.decide.test_leader import compared
from tests.session.contexts import study
from tests.session.ledgers import InMemory
from tests.session.test_budget import Clock

BF16, CHECKPOINT, ADAM = use("precision", dtype="bf16"), use("checkpoint", every=1), use("adam_8bit")


class FakeProposer:
    def __init__(self, candidates: list[Candidate]) -> None:
        self.left = list(candidates)
        self.abandoned = 0
        self.constraints: list[dict[str, float]] = []
        self.to_try_again: list[bool] = []
        self.gains: list[GainLeft] = []
        self.records: list[str] = []
        self.told: list[tuple[Any, float | None]] = []
        self.attributes: list[dict[str, Any]] = []
        self.learned: list[tuple[Any, dict[str, Any]]] = []
        self.is_shared = False
        self.recipe_name: str | None = None
        self.hand_tuned = False
        self.put_offs: list[str] = []
        self.left_out: set[str] = set()
        self.ruled_out: list[tuple[str, str, bool]] = []

    def leave_out(self, method: str) -> None:
        self.left_out.add(method)

    def rule_out(self, combination: Combination, violated: str, attributes: dict[str, Any], *, by_chance: bool) -> None:
        self.ruled_out.append((combination.label, violated, by_chance))

    def put_off(self, method: str) -> None:
        self.put_offs.append(method)

    def ask(self) -> Any:
        put_off = set(self.put_offs)
        self.left = [one for one in self.left if put_off.isdisjoint(method.name for method in one.policy.methods)]
        if not self.left:
            return None
        combination = Combination.of(self.left[0].policy)
        asked: dict[str, Any] = {"recipe_name": self.recipe_name, "hand_tuned": self.hand_tuned}
        return Proposal(number=1, combination=combination, batch_fraction=1.0, **asked)

    def tell(
        self, proposal: Any, value: Any, constraints: dict[str, float], attributes: dict[str, Any], **options: Any
    ) -> None:
        self.constraints.append(constraints)
        self.attributes.append(attributes)
        self.to_try_again.append(options["try_again"])
        self.told.append((value, options["noise"]))

    def learn(self, combination: Any, value: Any, attributes: dict[str, Any], *, noise: float) -> None:
        self.learned.append((value, attributes))

    def gain_left(self) -> GainLeft | None:
        return self.gains.pop(0) if self.gains else None

    def take_records(self) -> list[str]:
        records, self.records = self.records, []
        return records

    def abandon(self, proposal: Any) -> None:
        self.abandoned += 1


class FakeEvaluator:
    """Measures what is proposed at the rate that was written down for it; remembers the pace that it was given."""

    def __init__(self, proposer: FakeProposer) -> None:
        self.proposer = proposer
        self.paces: list[float | None] = []
        self.expected_rate: float | None = None
        self.smaller: Candidate | None = None
        self.is_sized = False
        self.of_plain = baseline(100)

    def baseline(self) -> Candidate:
        return self.of_plain

    def explain_baseline(self, baseline: Candidate) -> None:
        """Nothing to say of it."""

    def is_plainest(self, combination: Combination) -> bool:
        return not combination.settings

    def memory_of(self, combination: Combination) -> MemoryModel | None:
        return MemoryModel(lines=(Line(40.0 * 2**20, 10.0 * 2**20),), time=Line(0.0, 1.0)) if self.is_sized else None

    def evaluate(self, combination: Any, fraction: float, role: Any, *, best: float | None) -> Evaluation:
        self.paces.append(best)
        candidate = self.proposer.left.pop(0)
        return Evaluation(candidate=candidate, smaller=self.smaller, expected_rate=self.expected_rate)


class FakeGuard:
    """Finds what it was told to of a method; anything else is as the reference run."""

    def __init__(self, broken: str = "", error: type[BaseException] | None = None) -> None:
        self.broken = broken
        self.error = error
        self.checks: list[str] = []

    def checked(self, candidate: Candidate) -> Candidate:
        if self.error is not None:
            raise self.error
        self.checks.append(candidate.policy.methods[0].name)
        worse = 2.0 if self.checks[-1] == self.broken else 0.0
        return msgspec.structs.replace(candidate, guard=found(worse / 5, excess=worse))


class Search:
    def __init__(
        self, candidates: list[Candidate], guard: FakeGuard, *, earlier: Sequence[Candidate] = (), trials: int = 10
    ) -> None:
        self.proposer: Any = FakeProposer(candidates)
        self.evaluator: Any = FakeEvaluator(self.proposer)
        self.ledger = InMemory(earlier)
        fake: Any = guard
        context = study(goal(fidelity=Fidelity.MODEL), ledger=self.ledger, trials=trials)
        self.budget = context.budget
        self.loop = SearchLoop(context, self.proposer, self.evaluator, fake, self.evaluator.memory_of)

    @property
    def kept(self) -> list[Candidate]:
        return self.ledger.written


def test_a_broken_leader_sets_no_pace_and_the_sampler_learns_it() -> None:
    candidates = [
        measured(300, ADAM, fidelity=Fidelity.LOSSY),
        measured(150, BF16, fidelity=Fidelity.PRECISION),
        measured(120, CHECKPOINT),
    ]
    guard = FakeGuard(broken="adam_8bit")
    search = Search(candidates, guard)
    search.loop.run()
    assert search.evaluator.paces == [100, 100, 150]
    assert guard.checks == ["adam_8bit", "precision"], "exact methods are compared when they have won"
    best = search.loop.best()
    assert best is not None
    assert best.policy.methods == (BF16,)
    assert [constraints.get("fidelity") for constraints in search.proposer.constraints] == [1.0, 0.0, None]
    assert search.kept[1].guard is not None, "the ledger has what was found"


def test_only_a_study_without_a_measurement_may_overdraw_its_limit() -> None:
    one = in_short_steps(
        measured(120, ADAM), baseline(100), Speedup(value=1.2, low=1.1, high=1.3, rounds=2), micro_batch=1
    )
    for earlier, answered in (([], False), ([one], False), ([one, baseline(100)], True)):
        search = Search([], FakeGuard(), earlier=earlier)
        assert search.budget.limits.has_answer is answered


def test_only_what_ended_by_chance_may_come_again() -> None:
    killed = msgspec.structs.replace(measured(1, CHECKPOINT), outcome=Outcome.LOST, measurement=None)
    late = msgspec.structs.replace(measured(1, BF16), outcome=Outcome.TIMEOUT, measurement=None)
    crashed = msgspec.structs.replace(measured(1, ADAM), outcome=Outcome.CRASHED, measurement=None)
    search = Search([late, crashed, killed, measured(80, CHECKPOINT)], FakeGuard())
    search.loop.run()
    assert search.proposer.to_try_again == [True, False, True, False]


def test_what_does_not_lead_is_not_compared() -> None:
    guard = FakeGuard()
    Search([measured(80, ADAM, fidelity=Fidelity.LOSSY)], guard).loop.run()
    assert guard.checks == []


def test_an_interruption_of_a_comparison_keeps_what_was_measured() -> None:
    search = Search([measured(300, ADAM, fidelity=Fidelity.LOSSY)], FakeGuard(error=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        search.loop.run()
    assert [one.policy.methods for one in search.kept] == [(), (ADAM,)]


def test_the_search_stops_when_nothing_is_expected_and_says_why() -> None:
    search = Search([measured(100 + number, CHECKPOINT) for number in range(9)], FakeGuard())
    search.proposer.gains = [GainLeft(expected=0.001, noise=0.012, measured=9)] * 9
    assert search.loop.run().startswith("nothing untried is expected to be faster by more than the noise: +0.1%")
    assert len(search.proposer.told) == 3, "the fourth time in a row ends it"


def test_figures_are_told_with_their_noise() -> None:
    search = Search([measured(80, CHECKPOINT, spread=0.06)], FakeGuard())
    search.loop.run()
    assert search.proposer.told == [((80.0,), pytest.approx(0.03))]


@pytest.mark.parametrize(("whole", "half"), [(80, 90), (90, 80)])
def test_of_two_batches_of_one_trial_the_better_is_told_and_both_are_kept(whole: float, half: float) -> None:
    larger, smaller = (
        msgspec.structs.replace(measured(rate, CHECKPOINT, micro_batch=batch), trial_key="one")
        for rate, batch in ((whole, 8), (half, 4))
    )
    search = Search([larger], FakeGuard())
    search.evaluator.smaller = smaller
    search.loop.run()
    assert [value for value, _ in search.proposer.told] == [(90,)]
    assert [one.policy.micro_batch for one in search.kept] == [8, 8, 4]
    assert search.loop.measured == 2, "the baseline, and one trial"


def test_of_two_batches_the_sampler_learns_the_other_and_the_largest_that_was_timed() -> None:
    search = Search([measured(80, CHECKPOINT, micro_batch=8)], FakeGuard())
    search.evaluator.smaller = measured(90, CHECKPOINT, micro_batch=4)
    search.loop.run()
    assert search.proposer.learned == [((80,), {"micro_batch": 8, "largest_batch": 8})]
    assert search.proposer.attributes[0]["micro_batch"] == 4
    assert search.proposer.attributes[0]["largest_batch"] == 8


def test_a_smaller_batch_that_may_not_win_is_not_what_is_told() -> None:
    """The larger one is faithful by the same comparison, unless the smaller one alone is above the limit."""
    search = Search([measured(80, CHECKPOINT)], FakeGuard())
    search.evaluator.smaller = measured(90, CHECKPOINT, micro_batch=4, peak=LIMIT + 1)
    search.loop.run()
    assert [value for value, _ in search.proposer.told] == [(80,)]


def test_both_batches_of_a_trial_are_shared_with_other_workers() -> None:
    """What another worker reads is what this one wrote."""
    search, other = (Search([measured(80, method)], FakeGuard()) for method in (CHECKPOINT, use("checkpoint", every=2)))
    search.evaluator.smaller = measured(90, CHECKPOINT, micro_batch=4)
    search.proposer.is_shared = True
    search.loop.run()
    other.proposer.records = [search.proposer.attributes[-1]["record"]]
    other.loop.run()
    assert [one.policy.micro_batch for one in other.kept] == [8, 8, 4, 8]


def test_what_profiling_runs_found_too_slow_is_told_with_what_they_promise() -> None:
    slow = msgspec.structs.replace(
        measured(1, CHECKPOINT), outcome=Outcome.SCREENED, measurement=None, predicted_peak_bytes=1
    )
    search = Search([slow], FakeGuard())
    search.evaluator.expected_rate = 30.0
    search.loop.run()
    assert search.proposer.told == [((30.0,), 0.1)]
    assert search.proposer.constraints == [{"speed": 1.0}]


def test_what_other_workers_found_is_taken_in_once_and_one_baseline_stays() -> None:
    theirs = [baseline(90), measured(400, use("checkpoint", every=2))]
    search = Search([measured(80, CHECKPOINT)], FakeGuard())
    records = [msgspec.json.encode([one]).decode() for one in theirs]
    search.proposer.records = [*records, records[1]]
    search.loop.run()
    assert [one.measurement.samples_per_second for one in search.kept if one.measurement] == [100, 90, 400, 80]
    assert sum(one.role is Role.BASELINE for one in search.kept) == 1
    best = search.loop.best()
    assert best is not None
    assert best.measurement is not None
    assert best.measurement.samples_per_second == 400


@pytest.mark.parametrize("known", [False, True], ids=["new", "continued"])
def test_where_plain_training_diverges_nothing_else_is_tried(known: bool) -> None:
    """Trap: 65 trials that could not be compared with anything ended in "none of 65 was measured"."""
    reason = "the loss became inf at step 1"
    diverged = msgspec.structs.replace(baseline(100), outcome=Outcome.DIVERGED, measurement=None, reason=reason)
    search = Search([measured(300, ADAM)], FakeGuard(), earlier=[diverged] if known else [])
    search.evaluator.of_plain = diverged
    with pytest.raises(NothingMeasuredError, match=f"{reason}. Make the learning rate smaller"):
        search.loop.run()
    assert len(search.proposer.left) == 1


@pytest.mark.parametrize("is_sized", [True, False])
def test_the_proposer_is_told_what_a_combination_takes_of_the_memory_if_that_is_known(is_sized: bool) -> None:
    too_large = msgspec.structs.replace(measured(1, BF16), outcome=Outcome.OUT_OF_MEMORY, measurement=None)
    search = Search([measured(80, CHECKPOINT), too_large], FakeGuard())
    search.evaluator.is_sized = is_sized
    search.evaluator.smaller = measured(70, CHECKPOINT, micro_batch=4)
    search.loop.run()
    told = [*search.proposer.attributes, *(attributes for _, attributes in search.proposer.learned)]
    assert len(told) >= 3
    for attributes in told:
        found = attributes.get("memory_fixed"), attributes.get("memory_per_sample")
        assert found == ((40 * 2**20 / LIMIT, 10 * 2**20 / LIMIT) if is_sized else (None, None))


class ComparingFake(ComparingEvaluator):
    """Compares what is proposed, and times what is to lead at another batch than it was compared at."""

    def __init__(self, proposer: FakeProposer) -> None:
        self.proposer = proposer
        self.notes = []
        self.timed: list[Candidate] = []
        self.timed_after: list[int] = []  # as many proposals were told
        self.timed_at_once: list[tuple[Any, ...]] = []
        self.timed_as: Candidate | None = None
        self.withdrawn: list[str] = []

    def baseline(self) -> None:
        """The workload states no batch."""

    def baseline_is(self, baseline: Candidate | None, earlier: Sequence[Candidate] = ()) -> list[Candidate]:
        return []

    def explain_baseline(self, baseline: Candidate) -> None:
        """Nothing to say of it."""

    def is_plainest(self, combination: Combination) -> bool:
        return not combination.settings

    def compare(self, combination: Combination, role: Role) -> Evaluation:
        candidate = self.proposer.left.pop(0)
        return Evaluation(candidate=msgspec.structs.replace(candidate, role=role))

    def time_at_once(self, combination: Combination, role: Role) -> Evaluation:
        candidate = self.proposer.left.pop(0)
        self.timed_at_once.append(candidate.policy.methods)
        return Evaluation(candidate=msgspec.structs.replace(candidate, role=role))

    def withdraw(self, leader: Candidate) -> None:
        self.withdrawn += [one.name for one in leader.policy.methods]

    def time_leader(self, leader: Candidate, *, best: float | None) -> Evaluation:
        assert len(self.timed) < 10, "this would go on for as long as there is time"
        self.timed.append(leader)
        self.timed_after.append(len(self.proposer.told))
        if self.timed_as is not None:
            return Evaluation(candidate=self.timed_as)
        return Evaluation(candidate=measured(100, *leader.policy.methods, micro_batch=32, role=leader.role))


def test_no_leader_is_timed_twice_although_it_was_timed_at_another_batch_than_it_was_compared_at() -> None:
    """The trap: plain training without a batch of its own is the baseline, which may be timed at its best batch."""
    candidates = [compared(300, micro_batch=8), compared(200, CHECKPOINT, micro_batch=8)]
    search = Search(candidates, FakeGuard())
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.proposer.recipe_name = "plain"
    search.loop.run()
    assert [one.policy.methods for one in fake.timed] == [(), (CHECKPOINT,)]


@pytest.mark.parametrize(("broken", "timed"), [("", ["precision", "checkpoint"]), ("precision", ["checkpoint"])])
def test_whether_first_losses_that_drift_mean_anything_is_found_out_before_it_is_timed(
    broken: str, timed: list[str]
) -> None:
    doubtful = msgspec.structs.replace(compared(300, BF16, drift=0.023), fidelity=Fidelity.PRECISION)
    guard = FakeGuard(broken=broken)
    search = Search([doubtful, compared(120, CHECKPOINT, micro_batch=8)], guard, earlier=[baseline(50)])
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.loop.run()
    assert [one.policy.methods[0].name for one in fake.timed] == timed
    assert guard.checks[0] == "precision"
    (kept,) = [one for one in search.ledger.candidates if one.outcome is Outcome.COMPARED and one.guard is not None]
    assert ("it may not win" in kept.reason) == bool(broken)


@pytest.mark.parametrize("broken", ["", "precision"])
def test_what_others_are_compared_with_is_what_trains_well(broken: str) -> None:
    """The trap: what was timed first and diverged set the pace, beside which nothing else had a chance."""
    fast = msgspec.structs.replace(measured(500, BF16), fidelity=Fidelity.PRECISION)
    search = Search([fast, compared(300, CHECKPOINT)], FakeGuard(broken=broken), earlier=[baseline(50)])
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.proposer.hand_tuned = True
    search.loop.run()
    assert fake.timed_at_once[0] == (BF16,)
    assert fake.withdrawn[:1] == ([broken] if broken else [])


def test_what_surely_leads_is_timed_before_the_next_combination_is_compared() -> None:
    """The trap: a slow combination after it took the time that was kept for it."""
    both = [compared(300, CHECKPOINT, micro_batch=8), compared(200, use("adam_8bit"))]
    search = Search(both, FakeGuard(), earlier=[measured(250, role=Role.BASELINE)])
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.loop.run()
    assert [one.policy.methods for one in fake.timed] == [(CHECKPOINT,)]
    assert fake.timed_after == [1]


@pytest.mark.parametrize(("left", "timed_after"), [(900.0, 2), (150.0, 1)], ids=["enough time", "little time"])
def test_a_set_up_does_not_take_the_time_that_was_kept_for_a_leader(left: float, timed_after: int) -> None:
    """The trap: compiling took the last 24 s, and what was 12 % ahead in turn was never timed."""
    likely = compared(300, CHECKPOINT, micro_batch=8, error=0.05)
    search = Search([likely, compared(200, use("compile"))], FakeGuard(), earlier=[measured(290, role=Role.BASELINE)])
    clock = Clock()
    search.loop._budget = TimeBudget(900.0, clock=clock)
    search.loop._budget.durations.timing_seconds = 30.0
    search.loop._budget.durations.short_seconds.append(5.0)
    clock.now += 900.0 - left
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.loop.run()
    assert [one.policy.methods for one in fake.timed] == [(CHECKPOINT,)]
    assert fake.timed_after == [timed_after]


@pytest.mark.parametrize(
    ("left", "timed"), [(900.0, ["compile"]), (120.0, ["checkpoint"])], ids=["enough time", "little time"]
)
def test_a_leader_that_compiles_is_left_out_when_compiling_it_again_does_not_fit(left: float, timed: list[str]) -> None:
    both = [compared(310, use("compile")), compared(300, CHECKPOINT, micro_batch=8)]
    search = Search(both, FakeGuard(), earlier=[measured(250, role=Role.BASELINE)])
    clock = Clock()
    search.loop._budget = TimeBudget(900.0, clock=clock)
    search.loop._budget.durations.timing_seconds = 30.0
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    for one in both:
        search.loop._record(one)
    search.loop._budget.durations.compared(1.0, slow_start=False)
    search.loop._budget.durations.compared(41.0, slow_start=True)
    clock.now += 900.0 - left
    search.loop._time_leaders(fake)
    assert [leader.policy.methods[0].name for leader in fake.timed][:1] == timed


@pytest.mark.parametrize(("first", "tried"), [(90, 2), (150, 1)], ids=["the baseline leads", "a method leads"])
def test_no_time_is_kept_to_measure_leaders_again_while_nothing_beats_the_baseline(first: float, tried: int) -> None:
    """Seen: two methods were tried in 3m30s, half of which went unused because the baseline had won."""
    found = [measured(first, CHECKPOINT), measured(80, use("compile"))]
    search = Search(found, FakeGuard(), earlier=[measured(100, role=Role.BASELINE)])
    clock = Clock()
    budget = search.loop._budget = TimeBudget(200.0, clock=clock)
    budget.durations.trial_seconds += [10.0, 10.0, 10.0]
    budget.durations.build_seconds, budget.durations.timing_seconds = 5.0, 30.0
    budget.durations.comparison_seconds = 3.0
    clock.now += 120.0
    assert budget.may_start_unrivalled
    assert not budget.may_start_trial
    search.loop.run()
    assert len(search.proposer.told) == tried


def test_a_set_up_that_took_too_long_is_waited_for_once() -> None:
    compiled = msgspec.structs.replace(
        compared(300, use("compile")),
        outcome=Outcome.TIMEOUT,
        comparison=None,
        reason="it took longer than its limit of 44 s",
    )
    search = Search([compiled, compared(200, CHECKPOINT, micro_batch=8)], FakeGuard())
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    reason = search.loop.run()
    assert search.proposer.put_offs == ["compile"]
    (note,) = fake.notes
    assert note.startswith("no further combination with compile was tried after compile")
    assert "it took longer than its limit of 44 s. Raise --time-limit" in note
    assert "but for those with compile, which took too long to set up" in reason


def test_no_lead_is_certain_before_a_dozen_combinations_were_compared() -> None:
    candidates = [compared(100 - every, use("checkpoint", every=every), micro_batch=8) for every in range(1, 17)]
    search = Search(candidates, FakeGuard(), trials=40)
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.proposer.gains = [GainLeft(expected=0.001, noise=0.012, measured=9)] * 40
    assert search.loop.run().startswith("nothing untried is expected to be faster by more than the noise")
    assert len(search.proposer.told) == 12


@pytest.mark.parametrize(
    ("known", "method", "led", "tried"),
    [
        (5, "checkpoint", False, 4),
        (9, "checkpoint", False, 2),
        (12, "checkpoint", False, 0),
        (9, "checkpoint", True, 0),
        (9, "compile", False, 0),
    ],
    ids=["few", "fewer than a dozen", "a dozen", "a leader was timed", "a set-up"],
)
def test_the_time_kept_for_a_leader_that_nothing_became_goes_to_comparisons_up_to_a_dozen(
    known: int, method: str, led: bool, tried: int
) -> None:
    """Seen: ten combinations of GPT-2 were compared, and 18 s of 3m30s were left at the end. Plain training counts."""
    earlier = [compared(60, use("compress_activations", bits=4, group=1 << one), micro_batch=8) for one in range(known)]
    parameters = {"scope": ["model", "blocks"]} if method == "compile" else {"every": [1, 2, 3, 4]}
    ((name, values),) = parameters.items()
    left = [compared(50, use(method, **{name: value}), micro_batch=8) for value in values]
    search = Search(left, FakeGuard(), trials=40, earlier=[baseline(100), *earlier])
    clock = Clock()
    budget = search.loop._budget = TimeBudget(210.0, clock=clock)
    budget.durations.build_seconds, budget.durations.timing_seconds = 14.0, 10.0
    budget.durations.comparison_seconds = 9.0
    budget.durations.short_seconds.append(8.0)
    clock.now += 210.0 - 50.0
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    search.loop._led |= {"another"} if led else set()
    assert not budget.may_compare_another(1)
    search.loop.run()
    assert len(search.proposer.told) == tried
    assert search.proposer.abandoned == (method == "compile")


def test_a_set_up_that_does_not_fit_at_the_end_keeps_no_other_combination_from_being_compared() -> None:
    """Seen: compiling was next, and 42 s of 3m30s were left with eleven combinations of GPT-2."""
    earlier = [compared(60, use("compress_activations", bits=4, group=1 << one), micro_batch=8) for one in range(9)]
    slow = [compared(50, use("compile", scope=scope), micro_batch=8) for scope in ("model", "blocks")]
    quick = compared(50, CHECKPOINT, micro_batch=8)
    search = Search([*slow, quick], FakeGuard(), trials=40, earlier=[baseline(100), *earlier])
    clock = Clock()
    budget = search.loop._budget = TimeBudget(210.0, clock=clock)
    budget.durations.build_seconds, budget.durations.timing_seconds = 14.0, 10.0
    budget.durations.short_seconds.append(8.0)
    clock.now += 210.0 - 45.0
    search.loop._evaluator = search.loop._comparing = fake = ComparingFake(search.proposer)
    assert "leaves no room for another trial" in search.loop.run(), "what compiles was not tried"
    assert (len(search.proposer.told), search.proposer.put_offs) == (1, ["compile"])
    assert fake.notes == [], "it did not take too long: there was no time for it"


@pytest.mark.parametrize(("left", "timed_at_once"), [(900.0, 2), (100.0, 0)], ids=["enough time", "little time"])
def test_after_a_dozen_comparisons_what_may_lead_is_timed_and_then_every_proposal(
    left: float, timed_at_once: int
) -> None:
    """Short steps tell what helps; near the best, what they predict for another batch is too rough.

    Plain training counts among the dozen. Where only a few trials fit, more comparisons show more.
    """
    rates = {every: 120 if every == 5 else 60 for every in range(1, 12)}
    candidates = [compared(rate, use("checkpoint", every=every), micro_batch=8) for every, rate in rates.items()]
    at_once = [use("compile"), use("fused_optimizer")]
    proposed = [*candidates, *(measured(50, one) if timed_at_once else compared(50, one) for one in at_once)]
    search = Search(proposed, FakeGuard(), trials=40, earlier=[baseline(100)])
    clock = Clock()
    search.loop._budget = TimeBudget(900.0, clock=clock)
    search.loop._budget.durations.trial_seconds += [20.0] * 9
    clock.now += 900.0 - left
    fake = ComparingFake(search.proposer)
    search.loop._evaluator = search.loop._comparing = fake
    beside_leader: list[int] = []
    search.loop.after_trial = beside_leader.append
    search.loop.run()
    assert [one.policy.methods for one in fake.timed] == [(use("checkpoint", every=5),)]
    assert fake.timed_at_once == [(one,) for one in at_once][:timed_at_once]
    if timed_at_once:
        assert beside_leader == [12, 13, 14], "its neighbours take turns with the leader from the last comparison on"
    else:
        assert (beside_leader, len(search.proposer.told)) == ([], 13)


def test_of_what_nothing_is_expected_a_few_short_steps_are_enough() -> None:
    """The time is worth more in the confirmation, whose further pairs of processes make the promise narrower."""
    candidates = [compared(60, use("checkpoint", every=every), micro_batch=8) for every in range(1, 12)]
    last = [compared(50, use("compile")), measured(50, use("fused_optimizer"))]
    search = Search([*candidates, *last], FakeGuard(), trials=40, earlier=[baseline(100)])
    gain, nothing = (GainLeft(expected=one, noise=0.02, measured=9) for one in (0.2, 0.001))
    search.proposer.gains = [gain] * len(candidates) + [nothing, gain]
    search.loop._budget = TimeBudget(9000.0, clock=Clock())
    search.loop._evaluator = search.loop._comparing = fake = ComparingFake(search.proposer)
    search.loop.run()
    assert len(search.proposer.told) == 13
    assert fake.timed_at_once == [(use("fused_optimizer"),)], "only where a gain was expected"


def test_recipes_go_without_what_was_clearly_slower_in_turn() -> None:
    slow = measured(90, BF16, CHECKPOINT)
    faster = in_short_steps(
        measured(130, CHECKPOINT), slow, Speedup(value=1.3, low=1.25, high=1.35, rounds=4), micro_batch=8
    )
    search = Search([measured(50, use("compile"))], FakeGuard(), earlier=[baseline(100), slow, faster])
    search.loop.run()
    assert search.proposer.left_out == {"precision"}
