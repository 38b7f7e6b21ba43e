"""What is read from an answer: what was compared, and the promise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.choose import choose
from advisor.methods.setting import use
from advisor.trial.outcome import Outcome
from benchmarks.minutes.momadvise_run import combinations_compared, policies_compared, promise_of, run_momadvise
from tests.decide.examples import baseline, goal, lost, measured, on

FUSED = use("fused_optimizer")
CHECKPOINT = use("checkpoint", every=1)


def answer(*candidates: Candidate) -> Recommendation:
    return choose(candidates, goal(), refused_settings={}, untried=0, stopped_because="time is up")


def test_a_combination_counts_once_and_a_policy_once_per_batch() -> None:
    found = answer(
        baseline(100, micro_batch=4),
        measured(120, micro_batch=8),
        measured(150, FUSED, micro_batch=8),
        measured(160, FUSED, micro_batch=16),
    )
    assert combinations_compared(found) == 2
    assert policies_compared(found) == 4


def test_the_same_methods_on_more_devices_are_another_combination() -> None:
    assert combinations_compared(answer(baseline(100), on(2, measured(150, FUSED)), measured(90, FUSED))) == 3


def test_candidates_without_measurements_were_not_compared() -> None:
    found = answer(baseline(100), lost(Outcome.REFUSED, FUSED), lost(Outcome.OUT_OF_MEMORY, CHECKPOINT))
    assert combinations_compared(found) == 1


def test_the_promise_is_the_ratio_in_the_answers_table_with_its_noise() -> None:
    promise = promise_of(answer(baseline(100, spread=0.03), measured(150, FUSED, spread=0.04)))
    assert promise is not None
    assert promise.ratio == pytest.approx(1.5)
    assert (promise.low, promise.high) == pytest.approx((1.5 * 0.95, 1.5 * 1.05))


def test_recommending_the_baseline_promises_a_ratio_of_one() -> None:
    promise = promise_of(answer(baseline(100), measured(90, CHECKPOINT)))
    assert promise is not None
    assert promise.ratio == 1
    assert promise.low < 1 < promise.high


def test_without_a_baseline_nothing_is_promised() -> None:
    assert promise_of(answer(measured(150, FUSED))) is None


@pytest.mark.slow
def test_a_command_without_an_answer_gives_its_own_reason(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def build_model():\n    pass\n")
    found = run_momadvise(file, tmp_path / "study", arguments=["--device", "cpu"], environment=os.environ)
    assert found.reason.startswith("exit status 2: ")
    assert found.batch is None
    assert "make_batch" in (tmp_path / "study.txt").read_text()
