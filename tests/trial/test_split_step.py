"""Where the time of a step on two real ranks goes: computing, and communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from advisor.methods.setting import use
from advisor.phase import Phase
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import SplitTrial
from tests.trial.specs import my_children, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DDP = use("ddp", bucket_views=True, static_graph=False)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


def test_each_phase_is_split_and_gradients_are_sent_in_the_backward_pass(runner: Runner) -> None:
    result = runner.run(spec(kind=SplitTrial, policy=Policy(methods=(DDP,), micro_batch=4, gpu_count=2)))
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
    split = result.split
    assert [one.phase for one in split.phases] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    for one in split.phases:
        assert 0 <= one.exposed_seconds <= one.communication_seconds <= one.seconds
    [backward] = [one for one in split.phases if one.phase is Phase.BACKWARD]
    assert backward.communication_seconds > 0
    assert 0 < split.exposed_share < 1


def test_a_sharded_optimizer_communicates_in_its_own_step(runner: Runner) -> None:
    result = runner.run(spec(kind=SplitTrial, policy=Policy(methods=(use("zero_1"),), micro_batch=4, gpu_count=2)))
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
    [optimizer] = [one for one in result.split.phases if one.phase is Phase.OPTIMIZER]
    assert optimizer.exposed_seconds > 0


def test_on_one_device_nothing_is_communicated(runner: Runner) -> None:
    result = runner.run(spec(kind=SplitTrial, policy=Policy(micro_batch=4)))
    assert (result.outcome, result.split) == (Outcome.OK, None)
