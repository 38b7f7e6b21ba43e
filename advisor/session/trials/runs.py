"""Run trials of one study at one size of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from advisor.policy.policy import Policy
from advisor.session.context import StudyContext
from advisor.session.trials.known import ran_not_even_once
from advisor.session.trials.micro_batches import usual_batch
from advisor.session.trials.probe import first_batch
from advisor.text.printable import shown
from advisor.text.units import format_count
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import Result, SizeResult
from advisor.trial.spec import SizeTrial, Trial

__all__ = ["TrialRuns"]

_R = TypeVar("_R", bound=Result)
_S = TypeVar("_S", bound=Trial[Any])

_LONGEST_REASON = 300


class TrialRuns:
    """Fills in what all trials of a study have in common, and runs them.

    Attributes:
        first_batch: The first micro-batch of every sizing; the same for all, so that their losses compare.
        most_samples: The most samples that ``make_batch`` makes, if it made fewer than it was asked for, or that the
            training takes.
    """

    def __init__(
        self, context: StudyContext, runner: Runner, model_size: Mapping[str, int | float], most_samples: int | None
    ) -> None:
        layout = context.facts.batch_layout
        self._context = context
        self._runner = runner
        self._model_size = dict(model_size)
        self.most_samples = layout.most_samples if most_samples is None else most_samples
        self.first_batch = first_batch(context.request, layout)
        self._fails = ""
        # A probe of an older version found no layout.
        self._layout = msgspec.structs.replace(layout, most_samples=self.most_samples) if layout.dims else None

    def run(self, spec: Trial[_R]) -> _R:
        """Run a trial, or read its stored result."""
        result = self._runner.run(spec)
        self.most_samples = min(filter(None, (result.most_samples, self.most_samples)), default=None)
        return result

    @property
    def why_no_more(self) -> str:
        """Why there are no larger batches, to end a sentence."""
        return self._fails or f"make_batch makes no more than {format_count(self.most_samples or 0, 'sample')}"

    def sized(self, spec: SizeTrial, *, for_all: bool) -> SizeResult:
        """Run profiling runs; again with smaller batches if a larger one than the first fails.

        A model may take no more samples than a buffer of it has room for, which nothing but a failure tells. The user's
        own batch is tried before anything below it.

        Where losses become infinite or NaN at the first batch, they may not at the user's own: few samples are noise to
        a learning rate that was chosen for many, and to normalization over a batch.

        Args:
            spec: The trial.
            for_all: Whether it is plain training: no other trial of the study goes beyond what it takes.
        """
        own, failed = self._context.facts.default_batch or 0, self.run(spec)
        if failed.outcome is Outcome.DIVERGED and failed.failed_at is None:
            return self._sized_from_own_batch(spec, failed, for_all=for_all)
        result = failed
        while result.outcome is Outcome.FAILED and spec.policy.micro_batch < (at := result.failed_at or 0):
            if at == spec.compare_at:
                return result  # the comparison would fail again
            half = max(spec.policy.micro_batch, at // 2)
            largest = own if half < own < at else half
            # How far a trial goes is not part of its key: the repetition is.
            spec = msgspec.structs.replace(spec, largest_batch=largest, repeat=spec.repeat + 1)
            failed, result = result, self.run(spec)
        if result is failed or result.outcome is not Outcome.OK or spec.largest_batch is None or not for_all:
            return result
        passes = spec.policy.global_batch // spec.policy.micro_batch
        most = min(spec.largest_batch * passes, self.most_samples or spec.largest_batch * passes)
        self.most_samples = most
        reason = shown(failed.reason, _LONGEST_REASON)
        self._fails = f"with more than {format_count(most, 'sample')} plain training was seen to fail ({reason})"
        return result

    def _sized_from_own_batch(self, spec: SizeTrial, diverged: SizeResult, *, for_all: bool) -> SizeResult:
        """Profiling runs from the user's own batch on, or the largest half of it that fits."""
        facts, few, result = self._context.facts, spec.policy.micro_batch, diverged
        most = [one for one in (usual_batch(facts), spec.largest_batch, self.most_samples) if one is not None]
        batch = facts.batch_layout.fitted(min(most))
        while batch > few:
            policy = msgspec.structs.replace(spec.policy, micro_batch=batch)
            result = self.run(msgspec.structs.replace(spec, policy=policy))
            if not ran_not_even_once(result):
                break
            batch = facts.batch_layout.fitted(batch // 2)
        if result.outcome is Outcome.DIVERGED and result is not diverged:
            samples = format_count(few, "sample")
            reason = f"{diverged.reason} in batches of {samples}, and {result.reason} in batches of {batch}"
            return msgspec.structs.replace(diverged, reason=reason)
        if result.outcome is Outcome.OK and for_all:
            self.first_batch = batch
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
