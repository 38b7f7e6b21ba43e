"""Two trainings take turns in the same processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.training.process_setting import disputed, hold
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import PairTrial
from tests.trial.specs import my_children, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DDP = use("ddp", bucket_views=True, static_graph=False)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


def policy(*methods: MethodSetting, micro_batch: int = 4, count: int = 1) -> Policy:
    every = (*methods, *((DDP,) if count > 1 else ()))
    return Policy(methods=tuple(sorted(every, key=lambda one: one.name)), micro_batch=micro_batch, gpu_count=count)


def pair(one: Policy, other: Policy, **changes: object) -> PairTrial:
    asked = {"measure_seconds": 1.0, **changes}
    trial: PairTrial = spec(kind=PairTrial, policy=one, beside=other, **asked)
    return trial


@pytest.mark.parametrize("count", [1, 2])
def test_two_batches_take_turns_in_the_same_processes_pair_after_pair(runner: Runner, count: int) -> None:
    one, other = policy(micro_batch=32, count=count), policy(micro_batch=1, count=count)
    first, second = (runner.run(trial) for trial in (pair(one, other), pair(one, other, repeat=1)))
    for result in (first, second):
        assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
        assert result.speedup is not None
        assert result.speedup.rounds >= 1
        assert result.speedup.low < result.speedup.value < result.speedup.high
    assert second.warm


def test_a_pair_ends_once_its_ratio_is_known_as_well_as_was_asked(runner: Runner) -> None:
    one, other = policy(micro_batch=32), policy(micro_batch=1)
    roughly, exactly = (
        runner.run(pair(one, other, repeat=repeat, measure_seconds=4.0, target_spread=spread)).speedup
        for repeat, spread in ((20, 100.0), (21, 1e-6))
    )
    assert roughly is not None
    assert exactly is not None
    assert roughly.rounds == 4 < exactly.rounds, "the fewest, and as many as there is time for"


def test_ranks_take_turns_with_different_methods(runner: Runner) -> None:
    fused = use("fused_optimizer")
    result = runner.run(pair(policy(fused, count=2), policy(count=2)))
    assert result.outcome is Outcome.OK, result
    assert result.speedup is not None


class Open:
    """A training that only holds settings of the process."""

    def __init__(self, **settings: int) -> None:
        self.on_close = (undo := []).append
        self.close = lambda: [one() for one in undo]
        for name, value in settings.items():
            hold(self, name, value, read=int, write=lambda value: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [({"threads": 1}, {"threads": 1}, []), ({"threads": 1}, {"threads": 2}, ["threads"]), ({"tf32": 1}, {}, ["tf32"])],
)
def test_two_trainings_dispute_what_they_set_differently_for_the_whole_process(
    one: dict[str, int], other: dict[str, int], differ: list[str]
) -> None:
    """Both step in the same process, with the settings of the one that was opened last."""
    both = Open(**one), Open(**other)
    assert disputed(2) == differ
    for training in both:
        training.close()
    assert disputed(2) == []


def test_a_pair_that_does_not_fit_ends_as_out_of_memory(runner: Runner) -> None:
    result = runner.run(pair(policy(), policy(count=1, micro_batch=8), memory_limit_bytes=2**12))
    assert result.outcome is Outcome.OUT_OF_MEMORY
