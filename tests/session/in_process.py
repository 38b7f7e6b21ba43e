"""Trials of a guard run in this process: what is patched here is what runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from advisor.policy.policy import Policy
from advisor.search.space.space import Combination
from advisor.trial.result import FidelityResult
from advisor.trial.spec import FidelityTrial
from advisor.trial.worker.run_trial import run_trial
from advisor.workload.batch_layout import ANY_SIZE
from advisor.workload.workload import WorkloadSource

__all__ = ["InProcess"]


class InProcess:
    """Answers a guard's questions; remembers what was run.

    Args:
        source: The workload.
        folder: For gradients.
        model_size: Arguments of its functions.
        steps: Of every run.
    """

    first_batch = 2
    layout = ANY_SIZE

    def __init__(
        self, source: WorkloadSource, folder: Path, model_size: Mapping[str, int] | None = None, steps: int = 30
    ) -> None:
        self._source = source
        self._folder = folder
        self._size: dict[str, Any] = dict(model_size or {})
        self._steps = steps
        self._results: dict[str, FidelityResult] = {}
        self.ran: list[str] = []

    def model_of(self, combination: Combination) -> None:
        """None was sized: nothing is compared in a larger batch."""

    def reference(self, gpu_count: int) -> Combination:
        return Combination(gpu_count=gpu_count)

    def fidelity(
        self,
        combination: Combination,
        micro_batch: int,
        *,
        exact: FidelityResult | None = None,
        other_chance: bool = False,
        passes: int = 1,
    ) -> FidelityResult:
        spec = FidelityTrial(
            workload=self._source,
            policy=Policy(methods=combination.settings, micro_batch=micro_batch, accumulation_steps=passes),
            model_size=self._size,
            device="cpu",
            memory_limit_bytes=2**33,
            fidelity_steps=self._steps,
            measure_seconds=600.0,
            time_limit_seconds=600.0,
            other_chance=other_chance,
        )
        if exact is None:
            spec = msgspec.structs.replace(spec, write_gradient_to=str(self._folder / f"{spec.key}.pt"))
        else:
            assert exact.fidelity is not None, exact
            spec = msgspec.structs.replace(
                spec,
                reference_gradient=str(self._folder / f"{exact.key}.pt"),
                watched_state=tuple(exact.fidelity.state),
            )
        if spec.key not in self._results:
            self.ran.append(combination.label + (" by chance" if other_chance else ""))
            self._results[spec.key] = run_trial(spec, lambda text: None)[0]
        return self._results[spec.key]
