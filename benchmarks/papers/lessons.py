"""The score of a model trained under a policy, on samples that it was not trained on.

A trial makes a few steps on repeated batches: it measures step time, not learning. So a separate process
(:mod:`benchmarks.papers.learner`) trains as a user would, through ``apply_policy``, and then computes the score. The
model file needs three more functions than ``momadvise`` asks for: ``score(model, device)``, ``rate(progress)`` (the
learning rate factor after that fraction of the steps) and ``data()`` (a description of the training data).
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from advisor.policy.policy import Policy
from advisor.trial.outcome import how_it_ended
from benchmarks.papers.command import TimeIsUpError

__all__ = ["Learned", "Learner", "Lesson", "Stored"]

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "benchmarks.papers.learner")
_ENDING_SECONDS = 5.0


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What to train.

    Attributes:
        workload: Name of a file in ``workloads/``, without its suffix.
        model_size: Arguments of its ``build_model``, ``make_batch`` and ``score``.
        policy: The policy to apply, on one device.
        device: torch's name of it.
        steps: Optimizer steps.
        seed: Seed of the model's initialization and the batches.
        scored: Whether to compute the score; without it the answer gives stored bytes.
    """

    workload: str
    model_size: dict[str, int]
    policy: Policy
    device: str
    steps: int
    seed: int = 0
    scored: bool = True


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of weights, gradients and optimizer state of the layers that a method keeps sparse.

    Attributes:
        dense: As they are stored here.
        masks: Their masks.
        values: Nonzero values only.
        indices: Their positions in compressed sparse row format, shared by all three.
    """

    dense: int
    masks: int
    values: int
    indices: int


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    Attributes:
        score: The file's score; ``None`` if there is none.
        data: A description of the training data.
        stored: With sparse_reparameterization: bytes of its layers, dense and in a sparse format.
        reason: Why there is no score.
    """

    score: float | None = None
    data: str = ""
    stored: Stored | None = None
    reason: str = ""


class Learner:
    """One process that runs one training after another, so that torch is loaded once; any failure starts a new one.

    Use it as a context manager: on exit no process is left.

    Args:
        time_limit_seconds: Time limit of a training, including loading torch.
        command: Program that takes lessons.
    """

    def __init__(self, time_limit_seconds: float, command: Sequence[str] = _COMMAND) -> None:
        self._time_limit_seconds = time_limit_seconds
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Learner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, lesson: Lesson, *, until: float = math.inf) -> Learned:
        """Train; this returns the outcome, whatever happens in the process.

        Args:
            lesson: What to train.
            until: Moment of ``time.monotonic`` at which the caller stops waiting.

        Raises:
            TimeIsUpError: That moment came before the training's own limit.
        """
        if self._process is None:
            self._process = subprocess.Popen(self._command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        left = until - time.monotonic()
        timer = threading.Timer(max(0.0, min(self._time_limit_seconds, left)), end)
        timer.start()
        try:
            process.stdin.write(msgspec.json.encode(lesson) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            timer.cancel()
        try:
            learned = msgspec.json.decode(answer, type=Learned)
        except msgspec.DecodeError:
            status = _status(process)
            if late.is_set() and left < self._time_limit_seconds:
                self._end()
                raise TimeIsUpError from None
            ended = f"took longer than {self._time_limit_seconds:g} s" if late.is_set() else how_it_ended(status)
            learned = Learned(reason=f"the process that trains {ended}")
        if late.is_set() or (learned.score is None and learned.stored is None):
            self._end()
        return learned

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _status(process: subprocess.Popen[bytes]) -> int:
    """How a process ended that closed its output or wrote an invalid answer."""
    try:
        return process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
