"""The search of bigger: few trials, the record to beat, budgets, resume; on trials that are simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.decide.choose import choose
from advisor.goal import Fidelity, Floor, Goal, GoalKind
from advisor.measure.measurement import Sizing
from advisor.methods.setting import MethodSetting, use
from advisor.policy.baseline import Baseline
from advisor.policy.policy import Policy
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Axis, Combination, ResolvedSpace
from advisor.search.study.sampler import Proposer
from advisor.session.climb import SizeSearch
from advisor.session.request import TuneRequest
from advisor.session.trials.candidates import CandidateMaker
from advisor.session.trials.sized_trials import SizedTrials
from advisor.trial.outcome import Outcome
from advisor.trial.result import SizeResult, TimeResult
from advisor.workload.sizes import CountedSize, SizeCounts
from tests.decide.examples import goal, measurement
from tests.decide.test_guard import found as found_beside
from tests.search.test_build_space import FACTS
from tests.session.contexts import SOURCE, study
from tests.session.ledgers import InMemory
from tests.session.unguarded import UNGUARDED

MIB = 2**20
CHECKPOINT = use("checkpoint", every=1)
LAYERS = list(range(1, 33))


class World:
    """A device: 4 MiB and 1 ms for each layer and sample, 16 MiB for each layer; checkpointing halves and slows."""

    def __init__(self, *, limit: int = 1_000_000 * MIB, speed_up: float = 1.0) -> None:
        self.limit = limit
        self.speed_up = speed_up
        self.timed: list[tuple[str, int]] = []
        self.sized: list[tuple[str, int]] = []

    def model(self, layers: int, settings: tuple[MethodSetting, ...]) -> MemoryModel:
        activations, seconds = (2, 0.001 / self.speed_up) if settings else (4, 0.001)
        return MemoryModel(
            lines=(Line(16 * MIB * layers, activations * MIB * layers),),
            time=Line(0, seconds * layers),
        )


class FakeTrials:
    """The trials of one size."""

    first_batch = 2
    most_samples: int | None = None

    def __init__(self, world: World, layers: int = 4) -> None:
        self.world, self.layers = world, layers
        self.models: dict[str, MemoryModel] = {}

    def at_size(self, size: dict[str, int | float]) -> FakeTrials:
        return FakeTrials(self.world, int(size["layers"]))

    def reference(self, gpu_count: int) -> Combination:
        return Combination(gpu_count=gpu_count)

    def size(
        self, combination: Combination, largest: int | None, *, alone: bool = False
    ) -> tuple[MemoryModel | None, SizeResult]:
        self.world.sized.append((combination.label, self.layers))
        model = self.world.model(self.layers, combination.settings)
        if model.predict(1) > self.world.limit:
            return None, SizeResult(key="size", outcome=Outcome.OUT_OF_MEMORY, reason="it did not fit")
        self.models[combination.label] = model
        return model, SizeResult(key="size", outcome=Outcome.OK)

    def model_of(self, combination: Combination) -> MemoryModel | None:
        return self.models.get(combination.label)

    def sizing_of(self, combination: Combination) -> Sizing | None:
        known = combination.label in self.models
        return Sizing(points=(), out_of_memory_at=None, loss_trace=(1.0,)) if known else None

    def drift(self, combination: Combination) -> float | None:
        return 0.0 if Combination().label in self.models and combination.label in self.models else None

    def time(self, policy: Policy, *, outpaced_below: float | None, repeat: int = 0, **_: Any) -> TimeResult:
        self.world.timed.append((policy.label, self.layers))
        model = self.world.model(self.layers, policy.methods)
        figures = measurement(
            policy.micro_batch / model.seconds(policy.micro_batch),
            micro_batch=policy.micro_batch,
            peak=model.predict(policy.micro_batch),
        )
        kept = msgspec.structs.replace(
            figures.memory.breakdown, parameters=4 * MIB * self.layers, gradients=4 * MIB * self.layers,
            optimizer_state=8 * MIB * self.layers,
        )  # fmt: skip
        figures = msgspec.structs.replace(figures, memory=msgspec.structs.replace(figures.memory, breakdown=kept))
        return TimeResult(key="time", outcome=Outcome.OK, measurement=figures)


def counted(layers: int) -> CountedSize:
    return CountedSize(size={"layers": layers}, parameter_count=1_000_000 * layers)


COUNTS = SizeCounts(own=counted(4), listed=tuple(counted(layers) for layers in LAYERS))
SPACE = ResolvedSpace(
    name="test",
    fidelity=goal().fidelity,
    axes=(Axis(method="checkpoint", settings=(CHECKPOINT,)),),
    batch_fractions=(1.0,),
    recipes=(),
    refused={},
    dropped_recipes={},
    conflicts={},
)


@pytest.fixture
def proposer() -> Iterator[Proposer]:
    made = Proposer(SPACE, storage=None, study_name="test", maximize=(True,))
    yield made
    made.close()


class Search:
    """A search, what it has tried, and what it was for."""

    def __init__(self, search: SizeSearch, sized: SizedTrials, aim: Goal) -> None:
        self.run = search.run
        self.sized = sized
        self.goal = aim

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.sized.candidates


def search(
    proposer: Proposer,
    world: World,
    *,
    floor: Floor,
    candidates: list[Candidate] | None = None,
    trial_budget: int = 100,
    batch: int | None = 4,
    ledger: InMemory | None = None,
    counts: SizeCounts = COUNTS,
    guard: Any = UNGUARDED,
    own: Baseline | None = None,
) -> Search:
    aim = msgspec.structs.replace(goal(kind=GoalKind.BIGGER), floor=floor, memory_limit_bytes=world.limit)
    if own is not None:
        aim = msgspec.structs.replace(aim, own_settings=own.origin, fidelity=Fidelity.LOSSY)
    fake: Any = FakeTrials(world)
    context = study(
        aim,
        seconds=10_000.0,
        request=TuneRequest(source=SOURCE, goal=aim.kind, trials=trial_budget, baseline=own),
        facts=msgspec.structs.replace(FACTS, default_batch=batch),
        ledger=InMemory(candidates or ()) if ledger is None else ledger,
    )
    sized = SizedTrials(context, fake, guard, counts)
    return Search(SizeSearch(context, proposer, sized), sized, aim)


def winner_of(found: Search) -> Candidate:
    return choose(found.candidates, found.goal, refused_settings={}, untried=0, stopped_because="it ended").winner


HALF = Floor(share_of_baseline=0.49)  # a little below, so that no boundary depends on the last bit


def test_the_baseline_is_measured_first_at_the_own_size_and_batch(proposer: Proposer) -> None:
    found = search(proposer, World(), floor=HALF)
    assert found.run() == "every combination of the search space was tried"
    first = found.candidates[0]
    assert (first.role, first.model_size, first.policy.micro_batch) == (Role.BASELINE, {"layers": 4}, 4)
    assert first.parameter_count == 4_000_000


def test_plain_training_climbs_to_the_boundary_in_few_trials(proposer: Proposer) -> None:
    """Half of the throughput at 4 layers is reached at 8, where throughput goes with the inverse of the depth."""
    world = World()
    found = search(proposer, world, floor=HALF)
    found.run()
    assert winner_of(found).model_size == {"layers": 8}
    plain = [layers for name, layers in world.timed if name == "plain"]
    assert set(plain) <= {4, 8, 9}
    assert len(world.timed) <= 6


def test_a_combination_that_cannot_beat_the_record_is_tried_at_one_size(proposer: Proposer) -> None:
    world = World()
    search(proposer, world, floor=HALF).run()
    assert {layers for name, layers in world.sized if name != "plain"} == {9}


def test_a_combination_that_beats_the_record_climbs_on(proposer: Proposer) -> None:
    world = World(speed_up=2.0)
    found = search(proposer, world, floor=HALF)
    found.run()
    best = winner_of(found)
    assert (best.policy.methods, best.model_size) == ((CHECKPOINT,), {"layers": 16})
    assert best.loss_drift == 0.0
    assert {layers for name, layers in world.timed if name != "plain"} <= {9, 16, 17}


class BrokenAbove:
    """Finds training with a method broken at larger sizes than one."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.checks: list[float] = []

    def checked(self, candidate: Candidate) -> Candidate:
        self.checks.append(candidate.model_size["layers"])
        worse = 2.0 if self.checks[-1] > self.layers else 0.0
        return msgspec.structs.replace(candidate, guard=found_beside(worse / 5, excess=worse))


def test_a_size_at_which_training_is_broken_is_no_record(proposer: Proposer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CandidateMaker._fidelity
    monkeypatch.setattr(
        CandidateMaker, "_fidelity", lambda self, policy: Fidelity.LOSSY if policy.methods else real(self, policy)
    )
    guard = BrokenAbove(9)
    found = search(proposer, World(speed_up=2.0), floor=HALF, guard=guard)
    found.run()
    best = winner_of(found)
    assert (best.policy.methods, best.model_size) == ((CHECKPOINT,), {"layers": 9})
    assert 9 in guard.checks
    assert max(guard.checks) > 9
    assert all(layers > 8 for layers in guard.checks), "what is no record is not compared"


class Told(Proposer):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(SPACE, storage=None, study_name="test", maximize=(True,))
        self.told: list[tuple[str, float | None, dict[str, float]]] = []

    def tell(self, proposal: Any, value: Any, constraints: Any = None, *rest: Any, **options: Any) -> None:
        self.told.append((proposal.combination.label, value, {k: v for k, v in constraints.items() if v > 0}))
        super().tell(proposal, value, constraints, *rest, **options)


def test_the_search_hears_that_a_size_which_was_fast_enough_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: fast enough at a size above the record looks like that size reached."""
    monkeypatch.setattr(CandidateMaker, "_fidelity", lambda self, policy: Fidelity.LOSSY)
    told = Told()
    search(told, World(speed_up=2.0), floor=HALF, guard=BrokenAbove(8)).run()
    label, value, violated = told.told[-1]
    assert (label, violated) == (Combination((CHECKPOINT,)).label, {"floor": 1.0, "fidelity": 1.0})
    assert value is not None
    (_, other) = told._model.observations(told._study)
    assert (other.failed, other.counts) == (True, False)
    told.close()


def test_the_search_hears_which_method_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeTrials.size

    def size(self: FakeTrials, combination: Combination, *rest: Any, **options: Any) -> Any:
        if combination.settings:
            return None, SizeResult(key="size", outcome=Outcome.FAILED, reason="it raised")
        return real(self, combination, *rest, **options)

    monkeypatch.setattr(FakeTrials, "size", size)
    told = Told()
    search(told, World(), floor=HALF).run()
    label, value, violated = told.told[-1]
    assert (label, value) == (Combination((CHECKPOINT,)).label, None)
    assert violated["outcome"] == 1.0
    told.close()


def test_at_the_largest_size_the_search_ends_and_says_so(proposer: Proposer) -> None:
    world = World(speed_up=2.0)
    found = search(proposer, world, floor=Floor(samples_per_second=1e-6))
    assert "list larger values in SIZES" in found.run()
    assert winner_of(found).model_size == {"layers": LAYERS[-1]}
    assert all(name == "plain" for name, _ in world.sized), "no other combination could be larger"


def test_where_memory_ends_the_climb_the_next_size_is_screened_with_its_need_and_never_run(proposer: Proposer) -> None:
    world = World(limit=210 * MIB)
    found = search(proposer, world, floor=Floor(samples_per_second=1.0))
    found.run()
    assert winner_of(found).model_size == {"layers": 11}
    assert max(layers for _, layers in world.sized) <= 12
    screened = [one for one in found.candidates if one.outcome is Outcome.SCREENED]
    assert screened
    assert all((one.predicted_peak_bytes or 0) > 0.95 * world.limit for one in screened)


def test_a_size_near_below_the_floor_gets_a_second_try_at_a_smaller_batch(proposer: Proposer) -> None:
    found = search(proposer, World(), floor=HALF)
    found.run()
    tries = [one.policy.micro_batch for one in found.candidates if one.model_size == {"layers": 9}]
    assert len(tries) >= 2
    assert tries[1] < tries[0]


def test_a_share_of_a_baseline_that_does_not_fit_ends_the_search_with_its_reason(proposer: Proposer) -> None:
    found = search(proposer, World(limit=10 * MIB), floor=HALF)
    assert "no measurement that a floor could be a share of" in found.run()


def test_below_the_floor_at_the_own_size_smaller_ones_are_tried(proposer: Proposer) -> None:
    found = search(proposer, World(), floor=Floor(samples_per_second=400.0))
    found.run()
    assert winner_of(found).model_size == {"layers": 2}


def test_the_trial_budget_ends_the_search_and_a_continued_one_repeats_nothing(proposer: Proposer) -> None:
    world, ledger = World(), InMemory()
    cut = search(proposer, world, floor=HALF, trial_budget=2, ledger=ledger)
    assert cut.run() == "the limit of 2 trials was reached"
    assert ledger.written == list(cut.candidates)
    before = list(world.timed)
    again = search(proposer, world, floor=HALF, candidates=list(ledger.written))
    again.run()
    assert winner_of(again).model_size == {"layers": 8}
    assert world.timed[: len(before)] == before
    assert not set(world.timed[len(before) :]) & set(before), "no finished trial is run again"


def test_without_a_batch_of_its_own_the_baseline_is_the_largest_that_fits(proposer: Proposer) -> None:
    found = search(proposer, World(limit=2000 * MIB), floor=HALF, batch=None)
    found.run()
    assert found.candidates[0].role is Role.BASELINE
    assert found.candidates[0].policy.micro_batch > 4


def test_sizes_that_cannot_be_built_are_left_out_and_noted(proposer: Proposer) -> None:
    broken = CountedSize(size={"layers": 99}, parameter_count=None, error="ValueError: no")
    counts = SizeCounts(own=COUNTS.own, listed=(*COUNTS.listed, broken))
    found = search(proposer, World(), floor=HALF, counts=counts)
    assert found.sized.notes == ["1 size could not be built and were left out; the first, layers=99: ValueError: no"]
    found.run()
    assert {"layers": 99} not in [one.model_size for one in found.candidates]
