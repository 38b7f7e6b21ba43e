"""Run trials of one study at one size of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from advisor.policy.policy import Policy
from advisor.session.context import StudyContext
from advisor.trial.process.runner import Runner
from advisor.trial.result import Result
from advisor.trial.spec import Trial

__all__ = ["TrialRuns"]

_R = TypeVar("_R", bound=Result)
_S = TypeVar("_S", bound=Trial[Any])


class TrialRuns:
    """Fills in what all trials of a study have in common, and runs them.

    Attributes:
        most_samples: The most samples that ``make_batch`` makes, if it made fewer than it was asked for.
    """

    def __init__(
        self, context: StudyContext, runner: Runner, model_size: Mapping[str, int | float], most_samples: int | None
    ) -> None:
        layout = context.facts.batch_layout
        self._context = context
        self._runner = runner
        self._model_size = dict(model_size)
        self.most_samples = layout.most_samples if most_samples is None else most_samples
        # A probe of an older version found no layout.
        self._layout = msgspec.structs.replace(layout, most_samples=self.most_samples) if layout.dims else None

    def run(self, spec: Trial[_R]) -> _R:
        """Run a trial, or read its stored result."""
        result = self._runner.run(spec)
        self.most_samples = min(filter(None, (result.most_samples, self.most_samples)), default=None)
        return result

    def spec(
        self,
        kind: type[_S],
        policy: Policy,
        *,
        hard_limit_seconds: float,
        measure_seconds: float | None = None,
        memory_limit_bytes: int | None = None,
        **asked: Any,
    ) -> _S:
        """A trial of this study; ``asked`` are the fields specific to its kind."""
        context = self._context
        limits = context.budget.limits
        return kind(
            workload=context.request.source,
            policy=policy,
            model_size=self._model_size,
            device=context.hardware.device,
            memory_limit_bytes=memory_limit_bytes or context.goal.limit_on(policy.gpu_count),
            seed=context.request.seed,
            layout=self._layout,
            measure_seconds=limits.measure_seconds if measure_seconds is None else measure_seconds,
            time_limit_seconds=hard_limit_seconds,
            **asked,
        )
