"""Runner and real worker together, with torch: what only whole processes can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import ConfirmTrial, ProbeTrial, SizeTrial
from tests.trial.specs import my_children, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One runner, so that trials that end well share a warm worker."""
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


def test_a_study_of_three_trials_in_one_noisy_worker(runner: Runner) -> None:
    probed = runner.run(spec(kind=ProbeTrial))
    assert probed.outcome is Outcome.OK, probed
    assert probed.facts is not None
    assert probed.facts.parameter_count == 64 * 256 + 256 + 256 * 10 + 10
    assert (probed.facts.default_batch, probed.facts.max_grad_norm) == (4, 1.0)
    assert probed.facts.has_dropout
    assert probed.facts.custom_loss

    sized = runner.run(spec(kind=SizeTrial))
    assert sized.warm
    assert sized.sizing is not None
    assert len(sized.sizing.points) >= 2
    assert len(sized.sizing.loss_trace) == 3

    timed = runner.run(spec())
    assert timed.warm
    assert timed.measurement is not None
    assert timed.measurement.samples_per_second > 0
    assert "garbage" in runner.tail_of_log(spec().key)


def test_a_smaller_batch_is_timed_in_the_same_process_with_a_peak_of_its_own(runner: Runner) -> None:
    smaller = Policy(micro_batch=128)
    result = runner.run(msgspec.structs.replace(spec(micro_batch=1024), smaller=smaller))
    alone = runner.run(spec(micro_batch=128))
    assert result.measurement is not None
    assert result.smaller is not None
    assert alone.measurement is not None
    assert (result.measurement.micro_batch, result.smaller.micro_batch) == (1024, 128)
    assert (
        result.smaller.memory.peak_bytes == alone.measurement.memory.peak_bytes < result.measurement.memory.peak_bytes
    )
    assert result.notes == ()
    assert alone.warm, "nothing was left behind"


def test_a_smaller_batch_under_the_same_global_batch_is_accumulated(runner: Runner) -> None:
    smaller = Policy(micro_batch=4, accumulation_steps=2)
    result = runner.run(msgspec.structs.replace(spec(micro_batch=8), smaller=smaller))
    assert result.smaller is not None
    assert result.smaller.accumulation_steps == 2
    assert result.smaller.samples_per_second == pytest.approx(8 / result.smaller.step_seconds)


def test_the_figures_of_the_larger_batch_stand_whatever_becomes_of_the_smaller(runner: Runner) -> None:
    trial = msgspec.structs.replace(spec("refuses_small_batches", micro_batch=8), smaller=Policy(micro_batch=4))
    result = runner.run(trial)
    assert result.outcome is Outcome.OK
    assert result.measurement is not None
    assert result.smaller is None
    assert result.notes == ("batch 4, timed after 8, ended as failed: ValueError: 4 samples are too few",)
    assert runner.run(spec(repeat=7)).warm, "what failed did so in a process of its own"


def test_a_limit_that_is_passed_is_out_of_memory_with_both_figures(runner: Runner) -> None:
    result = runner.run(spec(memory_limit_bytes=300_000))
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert "within 293 KiB, but" in result.reason
    assert result.traceback_text is None


@pytest.mark.parametrize("shared", [True, False], ids=["where it was written", "on a machine without that folder"])
def test_the_emitted_wrapper_is_confirmed_in_a_fresh_process(runner: Runner, tmp_path: Path, shared: bool) -> None:
    policy = Policy(methods=(use("precision", dtype="bf16"),), micro_batch=4, accumulation_steps=2)
    wrapper = tmp_path / "wrapper.py"
    write_wrapper(policy, wrapper, headline="For a test.", details="Nothing measured.")
    trial = spec(kind=ConfirmTrial, wrapper_path=str(wrapper), repeat=int(shared))
    trial = msgspec.structs.replace(trial, policy=policy, wrapper_text=wrapper.read_text())
    if not shared:
        wrapper.unlink()
    result = runner.run(trial)
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(trial.key))
    assert not result.warm
    assert result.measurement is not None
    assert result.measurement.accumulation_steps == 2
    assert my_children() == []


@pytest.mark.parametrize(("name", "how"), [("hard_exit", "exit status 0"), ("segfault", "SIGSEGV")])
def test_a_model_that_takes_the_process_down(runner: Runner, name: str, how: str) -> None:
    result = runner.run(spec(name))
    assert result.outcome is Outcome.CRASHED
    assert how in result.reason
    if name == "segfault":
        assert "string_at" in runner.tail_of_log(spec(name).key, lines=60)


def test_a_leak_does_not_reach_the_next_trial(runner: Runner) -> None:
    """It ends with its process, and the same trial again finds the same memory to the byte."""
    first, second = (runner.run(spec("leaking", micro_batch=256, repeat=repeat)) for repeat in range(2))
    assert first.measurement is not None
    assert second.measurement is not None
    assert second.warm
    held = [
        msgspec.structs.replace(one.memory, peak_resident_bytes=None) for one in (first.measurement, second.measurement)
    ]
    assert held[0] == held[1]
