"""Two trainings take turns in the same processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from advisor.methods.use import MethodUse, use
from advisor.policy.policy import Policy
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


def policy(*methods: MethodUse, micro_batch: int = 4, count: int = 1) -> Policy:
    every = (*methods, *((DDP,) if count > 1 else ()))
    return Policy(methods=tuple(sorted(every, key=lambda one: one.name)), micro_batch=micro_batch, gpu_count=count)


def pair(one: Policy, other: Policy, **changes: object) -> PairTrial:
    trial: PairTrial = spec(kind=PairTrial, policy=one, beside=other, measure_seconds=1.0, **changes)
    return trial


@pytest.mark.parametrize("count", [1, 2])
def test_more_samples_at_once_are_faster_than_one_at_a_time(runner: Runner, count: int) -> None:
    """A tiny model's step takes nearly as long for one sample as for many."""
    trial = pair(policy(micro_batch=32, count=count), policy(micro_batch=1, count=count))
    result = runner.run(trial)
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(trial.key))
    assert result.speedup is not None
    assert result.speedup.value > 2
    assert result.speedup.rounds >= 4
    again = runner.run(pair(policy(micro_batch=1, count=count), policy(micro_batch=32, count=count)))
    assert again.warm, "the ranks serve pair after pair"
    assert again.speedup is not None
    assert again.speedup.value < 1 / 2


def test_ranks_take_turns_with_different_methods(runner: Runner) -> None:
    fused = use("fused_optimizer")
    result = runner.run(pair(policy(fused, count=2), policy(count=2)))
    assert result.outcome is Outcome.OK, result
    assert result.speedup is not None


def test_trainings_that_disagree_on_a_setting_of_the_whole_process_are_not_compared(runner: Runner) -> None:
    threads = use("intraop_threads", threads=1)
    result = runner.run(pair(policy(threads), policy()))
    assert result.outcome is Outcome.OK, result
    assert result.speedup is None
    assert any("not compared in turn" in note for note in result.notes)


def test_a_pair_that_does_not_fit_ends_as_out_of_memory(runner: Runner) -> None:
    result = runner.run(pair(policy(), policy(count=1, micro_batch=8), memory_limit_bytes=2**12))
    assert result.outcome is Outcome.OUT_OF_MEMORY
