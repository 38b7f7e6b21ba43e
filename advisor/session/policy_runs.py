"""Trials of one policy file, in a folder that is not kept. Called by verify and check."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.methods.compose import starts_slowly
from advisor.policy.file import PolicyFile
from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.session.setup.limits import CUDA_CONTEXT_BYTES
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ConfirmResult, ProbeResult
from advisor.trial.spec import ConfirmTrial, ProbeTrial, TimeTrial, Trial
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.workload import WorkloadSource

__all__ = ["PolicyRuns", "SideBySide", "speedup_beside_both"]

_S = TypeVar("_S", bound=Trial[Any])

_MEASURE_SECONDS: dict[type[Trial[Any]], float] = {TimeTrial: 4.0, ConfirmTrial: 10.0}
_FIRST_BATCH = 2
"""Of the probe, as in a search."""

_TIME_LIMIT_SECONDS = 180.0
_TIME_LIMIT_TO_COMPILE_SECONDS = 600.0
_APART = 0.1
"""Relative difference always allowed between two runs of one policy that took no turns."""


class SideBySide(NamedTuple):
    """The wrapper's run, and the baseline's.

    Attributes:
        wrapper: The result; its ``speedup`` is missing if the two took no turns.
        plain: The baseline's measurement; ``None`` if it did not run.
        beside: The baseline: the file's own, or plain training.
    """

    wrapper: ConfirmResult
    plain: Measurement | None
    beside: Policy


@dataclass
class PolicyRuns:
    """Runs trials of a policy file.

    Attributes:
        folder: For the wrappers that are run.
        layout: Where batches have their samples and how they differ in size, once :meth:`probe` has found it.
    """

    file: PolicyFile
    source: WorkloadSource
    hardware: Hardware
    limit_bytes: int
    folder: Path
    runner: Runner
    seed: int = 0
    layout: BatchLayout | None = None

    def probe(self) -> ProbeResult:
        """Run a first step of plain training; trials that follow make their batches as it found them."""
        result = self.runner.run(
            self.spec(ProbeTrial, Policy(micro_batch=min(_FIRST_BATCH, self.file.policy.global_batch)))
        )
        if result.facts is not None and result.facts.batch_layout.dims:
            self.layout = result.facts.batch_layout
        return result

    def beside_baseline(self, plain_batch: int) -> SideBySide:
        """Measure the baseline, then the wrapper, in turn with it where both fit.

        Args:
            plain_batch: Samples of plain training, unless the file states a baseline or its batch.
        """
        evidence, policy = self.file.evidence, self.file.policy
        batch = None if evidence is None else evidence.baseline_batch
        beside = self.file.baseline or Policy(micro_batch=batch or plain_batch)
        plain = self.runner.run(self.spec(TimeTrial, beside)).measurement
        in_turn = plain is not None and beside != policy and self._may_alternate(plain, beside)
        several = policy.gpu_count > 1 or beside.gpu_count > 1
        wrapper = self.write_wrapper(policy, "wrapper.py")
        if in_turn:
            result = self.runner.run(self.spec(ConfirmTrial, policy, wrapper_path=wrapper, beside=beside))
            # Each may fit, and both together not; then a group of ranks ends as a whole.
            if result.outcome is Outcome.OK or not (several or result.outcome is Outcome.OUT_OF_MEMORY):
                return SideBySide(result, plain, beside)
        if several:
            return self._between_baselines(plain, beside, wrapper)
        return SideBySide(self.runner.run(self.spec(ConfirmTrial, policy, wrapper_path=wrapper)), plain, beside)

    def _between_baselines(self, before: Measurement | None, beside: Policy, wrapper: str) -> SideBySide:
        """Measure the wrapper, then the baseline once more, where they cannot take turns."""
        result = self.runner.run(self.spec(ConfirmTrial, self.file.policy, wrapper_path=wrapper))
        if result.measurement is None or before is None or beside == self.file.policy:
            return SideBySide(result, before, beside)
        after = self.runner.run(self.spec(TimeTrial, beside, repeat=1)).measurement
        speedup = None if after is None else speedup_beside_both(result.measurement, before, after)
        return SideBySide(msgspec.structs.replace(result, speedup=speedup), before, beside)

    def spec(self, kind: type[_S], policy: Policy, **more: Any) -> _S:
        """A trial of the workload at the file's size of the model; ranks on one CPU share its memory."""
        slow = starts_slowly(self.file.policy.methods)
        return kind(
            workload=self.source,
            policy=policy,
            model_size=self.file.size,
            device=self.hardware.device,
            memory_limit_bytes=self._limit_on(policy.gpu_count),
            seed=self.seed,
            layout=self.layout,
            measure_seconds=_MEASURE_SECONDS.get(kind, _TIME_LIMIT_SECONDS),
            time_limit_seconds=_TIME_LIMIT_TO_COMPILE_SECONDS if slow else _TIME_LIMIT_SECONDS,
            **more,
        )

    def write_wrapper(self, policy: Policy, name: str) -> str:
        """Write the wrapper of a policy, with the file's batch layout: all that applying the file would use."""
        path = self.folder / name
        layout = BatchLayout(
            dims=self.file.sample_dims or {},
            counted_by="",
            is_usual=self.file.sample_dims is None,
            reduction=self.file.reduction,
        )
        write_wrapper(policy, path, headline="The policy that is looked at.", details="", layout=layout)
        return str(path)

    def _limit_on(self, gpu_count: int) -> int:
        return self.limit_bytes // (gpu_count if self.hardware.kind is DeviceKind.CPU else 1)

    def _may_alternate(self, plain: Measurement, beside: Policy) -> bool:
        """Whether the baseline trains on all devices of the policy, or the first one, and there is room for both."""
        evidence, policy = self.file.evidence, self.file.policy
        if beside.gpu_count not in (1, policy.gpu_count):
            return False
        own = plain_bytes = plain.memory.peak_bytes
        if evidence is not None:
            own = max(evidence.peak_bytes, evidence.confirmed_peak_bytes or 0)
        context = CUDA_CONTEXT_BYTES if self.hardware.kind is DeviceKind.CUDA else 0
        return plain_bytes + own + context <= self._limit_on(policy.gpu_count)


def speedup_beside_both(wrapper: Measurement, before: Measurement, after: Measurement) -> Speedup:
    """Throughput of a wrapper relative to a baseline that was measured before and after it.

    The interval is as wide as the noise of all three and what the baseline changed meanwhile.
    """
    value = wrapper.samples_per_second / math.sqrt(before.samples_per_second * after.samples_per_second)
    changed = abs(math.log(after.samples_per_second / before.samples_per_second)) / 2
    spreads = [one.relative_spread for one in (wrapper, before, after)]
    width = max(_APART, math.hypot(changed, *spreads))
    return Speedup(value=value, low=value * math.exp(-width), high=value * math.exp(width), rounds=2)
