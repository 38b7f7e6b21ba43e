"""One model and goal, and the harness that measures all answers in the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.goal import GoalKind
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.search.sizing.batching import choose_batch
from advisor.search.sizing.memory_model import MemoryModel
from advisor.session.setup.limits import memory_budget
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import CountResult, Result, TimeResult
from advisor.trial.spec import CountTrial, SizeTrial, TimeTrial, Trial
from benchmarks.papers.command import Options
from benchmarks.papers.runs import completed, why
from benchmarks.papers.specs import spec_of

__all__ = ["FIRST_BATCH", "FLOOR", "Arena", "Contest", "Found"]

_R = TypeVar("_R", bound=Result)
_S = TypeVar("_S", bound=Trial[Any])

FLOOR = 0.5
"""``bigger``: fraction of the unmodified throughput that a larger model must keep."""

FIRST_BATCH = 2
"""First batch of profiling runs: a single sample is a special case for batch normalization."""

_ATTEMPTS = 4
"""Most batches to try until one runs."""


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """The question.

    Attributes:
        model: Name of the model.
        workload: Its file.
        goal: The goal.
        limit_bytes: Most bytes that a training may use; ``None`` for what is free.
    """

    model: str
    workload: Path
    goal: GoalKind
    limit_bytes: int | None = None

    @property
    def own_batch(self) -> int:
        """``BATCH_SIZE`` of the file, which is the global batch if the goal keeps it."""
        found = re.search(r"^BATCH_SIZE = (\d+)$", self.workload.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert found, f"{self.workload} must state BATCH_SIZE"
        return int(found[1])

    @property
    def global_batch(self) -> int | None:
        """Samples per optimizer step, if they are fixed."""
        return self.own_batch if self.goal is GoalKind.CHEAPEST else None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A contender's answer.

    Attributes:
        policy: The policy; ``None`` if there is none.
        model_size: Arguments of ``build_model`` and ``make_batch``, if the goal is ``bigger``.
        trials: Policies or batches that were run to find it.
        seconds: Time it took.
        tried: Label and micro-batch of policies that were measured on the way, with their samples per second where
            known.
        reason: Why there is none, or a note on it.
    """

    policy: Policy | None = None
    model_size: dict[str, int | float] = {}
    trials: int = 0
    seconds: float = 0.0
    tried: list[tuple[str, int, float]] = []
    reason: str = ""


class Arena:
    """Runs the trials of one contest.

    Args:
        runner: Runs them.
        options: Options of the command.
        contest: The question.
        seconds: How long steps are timed.
        time_limit_seconds: Time limit of a trial.

    Attributes:
        options: Options of the command.
        contest: The question.
        seconds: How long steps are timed.
        limit_bytes: Most bytes that a training may use.
        wall_seconds: Duration of its trials; one that ran before, for another goal, counts in full.
    """

    def __init__(
        self, runner: Runner, options: Options, contest: Contest, *, seconds: float, time_limit_seconds: float
    ) -> None:
        self._runner = runner
        self._time_limit_seconds = time_limit_seconds
        self.seconds = seconds
        self.wall_seconds = 0.0
        self.options = options
        self.contest = contest
        self.limit_bytes = memory_budget(options.hardware, contest.limit_bytes).limit_bytes

    def time(self, policy: Policy, size: Mapping[str, int | float] | None = None) -> TimeResult:
        """Measure a policy; one that was measured before keeps its result."""
        return self._completed(self._spec(TimeTrial, policy, size))

    def leave(self) -> None:
        """End the worker, so that it does not disturb other processes; the next trial gets a new one."""
        self._runner.close()

    def count(self) -> CountResult:
        """The sizes of the model with their parameter counts."""
        return self._completed(self._spec(CountTrial, Policy(micro_batch=FIRST_BATCH), None))

    def largest(
        self, settings: Sequence[MethodSetting], size: Mapping[str, int | float] | None = None
    ) -> tuple[Policy | None, MemoryModel | None, int, str]:
        """The methods at the largest batch that fits, found like a careful person: profiling runs, a line, and a run.

        Batches whose step would take longer than the timing are not tried: on a slow device they would never end.

        Args:
            settings: The methods.
            size: Size of the model; its own by default.

        Returns:
            The policy, which was timed; the model from the profiling runs; the trials that were run; and why there is
            no policy.
        """
        spec = self._spec(SizeTrial, Policy(methods=tuple(settings), micro_batch=FIRST_BATCH), size)
        sized = self._completed(msgspec.structs.replace(spec, limit_of_timed_bytes=self.limit_bytes))
        if sized.sizing is None or not sized.sizing.points:
            return None, None, 1, why(sized) or "not even two samples fit"
        model = MemoryModel.fit(sized.sizing, sized.prediction)
        known, result = model, None
        for trials in range(2, _ATTEMPTS + 2):
            largest = min(model.largest_batch(self.limit_bytes), model.largest_within_seconds(self.seconds))
            batch = choose_batch(largest=largest, fraction=1.0, global_batch=self.contest.global_batch)
            if batch is None:
                return None, known, trials - 1, "not even one sample fits"
            policy = Policy(
                methods=tuple(settings),
                micro_batch=batch.micro_batch,
                accumulation_steps=batch.accumulation_steps,
                settled=sized.sizing.settled,
            )
            result = self.time(policy, size)
            if result.outcome is not Outcome.OUT_OF_MEMORY:
                break
            model = model.after_out_of_memory(math.ceil(0.9 * batch.micro_batch))
        if result is None or result.measurement is None:
            return None, known, trials, "" if result is None else why(result)
        return policy, known, trials, ""

    def _spec(self, kind: type[_S], policy: Policy, size: Mapping[str, int | float] | None) -> _S:
        return spec_of(
            kind,
            self.options,
            self.contest.workload,
            policy,
            seconds=self.seconds,
            model_size=size,
            limit_bytes=self.limit_bytes,
            time_limit_seconds=self._time_limit_seconds,
        )

    def _completed(self, spec: Trial[_R]) -> _R:
        result = completed(self._runner, self.options, spec)
        self.wall_seconds += result.wall_seconds
        return result
