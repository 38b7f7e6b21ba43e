"""A training for a score, and the reason when its process does not answer."""

from __future__ import annotations

import sys
import time

import pytest

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from benchmarks.papers.command import TimeIsUpError
from benchmarks.papers.learner import learn
from benchmarks.papers.lessons import Learner, Lesson

LESSON = Lesson(
    workload="wide_residual",
    model_size={"depth": 10, "widen": 1, "pixels": 8, "held_out": 20},
    policy=Policy(methods=(use("sparse_reparameterization", nonzero=0.3),), micro_batch=4, accumulation_steps=2),
    device="cpu",
    steps=2,
)


def test_a_lesson_ends_with_a_score_and_the_size_of_sparse_weights() -> None:
    learned = learn(LESSON)
    assert learned.score is not None
    assert 0 <= learned.score <= 100
    stored = learned.stored
    assert stored is not None
    # Weights, gradients and momentum in float32; a mask has one byte.
    assert stored.dense == 12 * stored.masks
    assert stored.values == pytest.approx(0.3 * stored.dense, rel=0.01)
    assert learn(LESSON) == learned, "seeded"


@pytest.mark.parametrize(
    ("program", "limit", "reason"),
    [
        ("raise SystemExit(3)", 60.0, "ended with exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", 60.0, "was ended by SIGKILL"),
        ("import time; time.sleep(60)", 0.5, "took longer than 0.5 s"),
    ],
)
def test_a_process_without_an_answer_has_a_reason(program: str, limit: float, reason: str) -> None:
    with Learner(limit, (sys.executable, "-c", program)) as learner:
        for _ in range(2):
            learned = learner.run(LESSON)
            assert learned.score is None
            assert learned.reason == f"the process that trains {reason}"


def test_a_training_cut_short_by_the_end_of_the_call_has_no_answer() -> None:
    with Learner(60.0, (sys.executable, "-c", "import time; time.sleep(600)")) as learner:
        with pytest.raises(TimeIsUpError):
            learner.run(LESSON, until=time.monotonic() + 0.2)
        assert learner._process is None
