"""Training with methods compared with plain training: the losses of the same steps on the same batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.decide.guard import why_worse
from advisor.measure.fidelity import FidelityMeasurement, compared, noise_floor
from advisor.methods.catalogue import get_method
from advisor.methods.compose import worst_fidelity
from advisor.methods.setting import MethodSetting
from advisor.trial.process.runner import Runner
from advisor.trial.result import FidelityResult
from advisor.trial.spec import FidelityTrial
from benchmarks.papers.command import Options
from benchmarks.papers.runs import completed
from benchmarks.papers.specs import policy_of, spec_of

__all__ = ["Learned", "Learning"]

_TIME_LIMIT_SECONDS = 180.0


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a training.

    Attributes:
        found: Its losses compared with plain training's; ``None`` if one of them has none.
        reason: Why there is none; or why ``momadvise`` would reject it, empty if it would not.
    """

    found: FidelityMeasurement | None
    reason: str = ""


class Learning:
    """Trains one model for some steps with different methods.

    Plain training runs twice, the second time with other random numbers and one rounding changed: the difference is
    chance.

    Args:
        runner: Runs the trials.
        options: Options of the command.
        batch: Micro-batch size in samples.
        steps: Steps of every training.
        model_size: Arguments of the model file's functions.
        folder: Stores plain training's first gradient.
    """

    def __init__(
        self,
        runner: Runner,
        options: Options,
        *,
        batch: int,
        steps: int,
        model_size: Mapping[str, int | float],
        folder: Path,
    ) -> None:
        self._runner = runner
        self._options = options
        self._batch = batch
        self._steps = steps
        self._model_size = dict(model_size)
        self._gradient = folder / "gradient.pt"
        self._plain: FidelityResult | None = None
        self._chance: FidelityResult | None = None

    def chance(self, workload: Path | str) -> Learned:
        """Plain training compared with its repetition: the effect of chance on the losses."""
        plain, chance = self._exact(workload), self._by_chance(workload)
        found = None if chance is None else self._compare(plain, chance)
        return Learned(found=found, reason="" if found else _no_losses(plain if chance is None else chance))

    def under(self, workload: Path | str, settings: Sequence[MethodSetting]) -> Learned:
        """Train with methods.

        Args:
            workload: A model file; all of one instance build the same model.
            settings: The methods.

        Raises:
            TimeIsUpError: The minutes of this call are over.
        """
        plain = self._exact(workload)
        own = self._run(workload, settings) if settings else plain
        found = self._compare(plain, own)
        if found is None:
            return Learned(found=None, reason=_no_losses(own) or _no_losses(plain) or "too few steps")
        chance = self._by_chance(workload)
        if chance is not None and chance.fidelity is not None and plain.fidelity is not None:
            found = msgspec.structs.replace(found, noise=noise_floor(chance.fidelity, plain.fidelity))
        if not any(get_method(setting.name).learns_slower for setting in settings):
            found = msgspec.structs.replace(found, began=None)
        declared = worst_fidelity(settings, accumulation_steps=1, facts=None)
        finding = why_worse(declared, found)
        against = "" if finding is None else f"momadvise: {finding.what} (tolerated: {finding.tolerated})"
        return Learned(found=found, reason=against)

    def _compare(self, plain: FidelityResult, own: FidelityResult) -> FidelityMeasurement | None:
        if plain.fidelity is None or own.fidelity is None:
            return None
        return compared(own.fidelity, plain.fidelity, reference="plain", micro_batch=self._batch)

    def _exact(self, workload: Path | str) -> FidelityResult:
        if self._plain is None:
            self._plain = self._run(workload, ())
        return self._plain

    def _by_chance(self, workload: Path | str) -> FidelityResult | None:
        """Plain training with other random numbers; ``None`` if plain training itself failed."""
        if self._chance is None and self._exact(workload).fidelity is not None:
            self._chance = self._run(workload, (), other_chance=True)
        return self._chance

    def _run(
        self, workload: Path | str, settings: Sequence[MethodSetting], *, other_chance: bool = False
    ) -> FidelityResult:
        exact = not settings and not other_chance
        # All steps are made, so that all losses are from the same step.
        spec = spec_of(
            FidelityTrial,
            self._options,
            workload,
            policy_of(settings, self._batch),
            steps=self._steps,
            seconds=self._options.at_most(_TIME_LIMIT_SECONDS),
            model_size=self._model_size,
            time_limit_seconds=_TIME_LIMIT_SECONDS,
        )
        spec = msgspec.structs.replace(
            spec,
            write_gradient_to=str(self._gradient) if exact else None,
            reference_gradient=None if exact else str(self._gradient),
            other_chance=other_chance,
        )
        return completed(self._runner, self._options, spec)


def _no_losses(result: FidelityResult) -> str:
    if result.fidelity is not None:
        return ""
    return f"{result.outcome.value}: {result.reason}" if result.reason else result.outcome.value
