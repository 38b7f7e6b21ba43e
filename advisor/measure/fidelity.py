"""How far a policy's training deviates from the reference run over a few dozen steps.

Both runs start from the same parameters, see the same batches in the same order and use the same seed in every step. A
single loss says more about its batch than about the training, so curves are smoothed over one round of the distinct
batches before they are compared. Imports no torch: the parent compares what workers recorded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

__all__ = [
    "NOT_FINITE",
    "FidelityMeasurement",
    "FidelityRecord",
    "GradientError",
    "NoiseFloor",
    "StateError",
    "compared",
    "diverged",
    "noise_floor",
    "smoothed",
]

NOT_FINITE = 1e6
"""Replaces a loss or drift that is not finite: exceeds every tolerance and is valid JSON."""

_FEWEST_STEPS = 3
"""Fewer common steps say nothing about a training's progress."""

_STATE_TOLERANCE = 0.02
"""Relative tolerance for changes of module state. An update made twice is off by nearly 100 %."""

_SMALL_SHARE = 0.01
"""Losses below this share of the largest are compared with that share: a loss near zero has no relative error."""


class GradientError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first step's whole gradient ``g`` against the reference run's ``e``, both before clipping and unscaled.

    Attributes:
        error: ``||g - e|| / ||e||``.
        cosine: Cosine of the angle between them.
        norm_ratio: ``||g|| / ||e||``; other random numbers rotate a gradient, but hardly change its norm.
    """

    error: float
    cosine: float
    norm_ratio: float


class FidelityRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recording of one run.

    Attributes:
        losses: Loss of every step.
        distinct_batches: How many batches are cycled through.
        gradient: The first gradient against the reference run's; ``None`` for the reference run, or with a reason.
        gradient_reason: Why the gradients were not compared.
        state: How much the first step changed module state, such as counters and running statistics.
    """

    losses: tuple[float, ...]
    distinct_batches: int
    gradient: GradientError | None = None
    gradient_reason: str = ""
    state: dict[str, float] = {}


class StateError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Module state that a step changes differently from the reference run.

    Attributes:
        name: Module and attribute.
        change: How much it changed.
        exact: How much it changed in the reference run.
    """

    name: str
    change: float
    exact: float

    @property
    def times(self) -> int:
        """How often the change was applied, if more than once; else 1."""
        times = self.change / self.exact
        return round(times) if times > 1.5 and math.isclose(times, round(times), rel_tol=1e-6) else 1


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reference run's own noise: its distance from a run with other dropout masks and rounding errors.

    Attributes:
        loss_drift: As in :class:`FidelityMeasurement`.
        final_loss_gap: Absolute difference of the final losses.
        final_loss_error: Expected difference of the final losses, from the scatter of single steps: two runs of an
            unsteady training may end alike by luck.
        gradient: Error of the first gradient, if it was compared.
        state: Module state that differs by chance.
    """

    loss_drift: float
    final_loss_gap: float
    final_loss_error: float = 0.0
    gradient: GradientError | None = None
    state: tuple[StateError, ...] = ()

    @property
    def final_loss_noise(self) -> float:
        """The larger of this pair's difference and the expected one."""
        return max(self.final_loss_gap, self.final_loss_error)


class FidelityMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's training compared with the reference run.

    Attributes:
        steps: Steps made by both.
        loss_drift: Largest difference of the smoothed loss curves, relative to the reference run's loss there, or to
            its total decrease if that is larger.
        final_loss: Mean of the last losses.
        exact_final_loss: The reference run's final loss.
        learned: Total decrease of the reference run's loss.
        began: The largest loss of the reference run's first round of batches; ``None`` if no method declares slower
            learning, so that it must learn as fast.
        gradient: The first gradient against the reference run's.
        gradient_reason: Why the gradients were not compared.
        state: Module state that a step changes differently.
        noise: The reference run's own noise; ``None`` if it was not needed.
        noise_of_few: The same in the fewer samples that were compared first, if they did not tell.
        reference: The policy of the reference run.
        micro_batch: Samples per step of each device, in both.
        model_size: The size of the model, if the workload defines sizes.
    """

    steps: int
    loss_drift: float
    final_loss: float
    exact_final_loss: float
    learned: float
    began: float | None = None
    gradient: GradientError | None = None
    gradient_reason: str = ""
    state: tuple[StateError, ...] = ()
    noise: NoiseFloor | None = None
    noise_of_few: NoiseFloor | None = None
    reference: str
    micro_batch: int
    model_size: dict[str, int | float] = {}

    @property
    def excess(self) -> float:
        """Final loss minus the reference run's."""
        return self.final_loss - self.exact_final_loss

    @property
    def final_loss_ratio(self) -> float:
        """Final loss relative to the reference run's."""
        if self.exact_final_loss == 0:
            return 1.0 if self.final_loss == 0 else NOT_FINITE
        return self.final_loss / self.exact_final_loss

    @property
    def is_finite(self) -> bool:
        """Whether every loss was a number."""
        return self.loss_drift < NOT_FINITE


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Moving averages over ``window`` values, or over all if there are fewer.

    Example:
        >>> smoothed([4.0, 2.0, 0.0], 2)
        [3.0, 1.0]
    """
    window = min(window, len(losses))
    return [statistics.fmean(losses[start : start + window]) for start in range(len(losses) - window + 1)]


def compared(
    record: FidelityRecord,
    exact: FidelityRecord,
    *,
    reference: str,
    micro_batch: int,
    model_size: dict[str, int | float] | None = None,
) -> FidelityMeasurement | None:
    """Compare a run with the reference run, over the steps made by both; ``None`` if there are too few."""
    assert record.distinct_batches == exact.distinct_batches, "runs on other batches do not compare"
    steps = min(len(record.losses), len(exact.losses))
    if steps < _FEWEST_STEPS:
        return None
    cycle = min(exact.distinct_batches, steps)
    own, plain = record.losses[:steps], exact.losses[:steps]
    last = _last(steps, cycle)
    final, exact_final = statistics.fmean(own[-last:]), statistics.fmean(plain[-last:])
    learned = statistics.fmean(plain[:cycle]) - exact_final
    return FidelityMeasurement(
        steps=steps,
        loss_drift=_drift(smoothed(own, cycle), smoothed(plain, cycle), learned),
        final_loss=final,
        exact_final_loss=exact_final,
        learned=learned,
        began=max(plain[:cycle]),
        gradient=record.gradient,
        gradient_reason=record.gradient_reason,
        state=_state_errors(record.state, exact.state),
        reference=reference,
        micro_batch=micro_batch,
        model_size=dict(model_size or {}),
    )


def noise_floor(chance: FidelityRecord, exact: FidelityRecord) -> NoiseFloor | None:
    """The reference run's own noise; ``None`` if there are too few common steps.

    ``chance`` is the reference run with other random numbers and parameters one rounding error away.
    """
    apart = compared(chance, exact, reference="", micro_batch=1)
    if apart is None:
        return None
    cycle = min(exact.distinct_batches, apart.steps)
    # The first steps are still alike.
    pairs = zip(chance.losses[cycle : apart.steps], exact.losses[cycle : apart.steps], strict=True)
    squares = [(one - other) ** 2 for one, other in pairs]
    error = math.sqrt(statistics.fmean(squares) / _last(apart.steps, cycle)) if squares else 0.0
    return NoiseFloor(
        loss_drift=apart.loss_drift,
        final_loss_gap=abs(apart.excess),
        final_loss_error=error,
        gradient=apart.gradient,
        state=apart.state,
    )


def _state_errors(own: Mapping[str, float], exact: Mapping[str, float]) -> tuple[StateError, ...]:
    """State changes that differ by more than the order of summation explains."""
    return tuple(
        StateError(name=name, change=own[name], exact=change)
        for name, change in exact.items()
        if name in own and not math.isclose(own[name], change, rel_tol=_STATE_TOLERANCE)
    )


def _last(steps: int, cycle: int) -> int:
    """Number of steps to average for the final loss: in a long run, two rounds halve the noise."""
    return 2 * cycle if steps >= 4 * cycle else cycle


def diverged(
    exact: FidelityRecord, *, reference: str, micro_batch: int, model_size: dict[str, int | float] | None = None
) -> FidelityMeasurement:
    """The measurement of a run whose loss became infinite or NaN when the reference run's did not."""
    with_itself = compared(exact, exact, reference=reference, micro_batch=micro_batch, model_size=model_size)
    assert with_itself is not None, "the reference run made steps"
    return msgspec.structs.replace(with_itself, loss_drift=NOT_FINITE, final_loss=NOT_FINITE)


def _drift(own: Sequence[float], exact: Sequence[float], learned: float) -> float:
    largest = max(abs(loss) for loss in exact)
    if largest == 0:
        return 0.0 if all(loss == 0 for loss in own) else NOT_FINITE
    least = max(learned, _SMALL_SHARE * largest)
    drift = max(abs(loss - expected) / max(abs(expected), least) for loss, expected in zip(own, exact, strict=True))
    return min(drift, NOT_FINITE)
