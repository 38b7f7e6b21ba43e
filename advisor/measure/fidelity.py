"""How far a policy's training is from the reference run's over some tens of steps: the figures and how they compare.

Both runs begin with the same parameters, see the same batches in the same order and draw from the same seed in every
step. A single loss says more about its batch than about the training, so curves are smoothed over one round of the
distinct batches before they are held against each other. Imports no torch: the parent compares what workers recorded.
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
"""Stands for a loss or drift that is not finite: beyond every tolerance, and a number that JSON can hold."""

_FEWEST_STEPS = 3
"""Fewer common steps say nothing about where a training goes."""

_STATE_TOLERANCE = 0.02
"""Of a change of what modules keep. An update that is made twice is off by nearly its whole length."""

_SMALL_SHARE = 0.01
"""Losses below this share of the largest are compared with that share: a loss near zero has no relative error."""


class GradientError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first step's whole gradient ``g`` against the reference run's ``e``, both before clipping and unscaled.

    Attributes:
        error: ``||g - e|| / ||e||``.
        cosine: Of the angle between them.
        norm_ratio: ``||g|| / ||e||``; other random numbers turn a gradient, but hardly change its length.
    """

    error: float
    cosine: float
    norm_ratio: float


class FidelityRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run recorded.

    Attributes:
        losses: Of every step.
        distinct_batches: How many batches are cycled.
        gradient: The first gradient against the reference run's; ``None`` for the reference run, or with a reason.
        gradient_reason: Why the gradients were not compared.
        state: By how much the first step changed what modules keep, such as counters and running statistics.
    """

    losses: tuple[float, ...]
    distinct_batches: int
    gradient: GradientError | None = None
    gradient_reason: str = ""
    state: dict[str, float] = {}


class StateError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a step changes otherwise than the reference run's.

    Attributes:
        name: Module and attribute.
        change: By how much it changed.
        exact: By how much it changed in the reference run.
    """

    name: str
    change: float
    exact: float

    @property
    def times(self) -> int:
        """How many times the change was made, if it was made several times; else 1."""
        times = self.change / self.exact
        return round(times) if times > 1.5 and math.isclose(times, round(times), rel_tol=1e-6) else 1


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the reference run is from itself by chance: other dropout masks, parameters one rounding off.

    Attributes:
        loss_drift: As in :class:`FidelityMeasurement`.
        final_loss_gap: Absolute difference of the final losses.
        final_loss_error: By how much these differ as a rule, as the losses of single steps do: where a training jumps
            up and down, two of its runs may end alike by luck.
        gradient: Of the first step, where it was compared.
        state: What chance changes otherwise.
    """

    loss_drift: float
    final_loss_gap: float
    final_loss_error: float = 0.0
    gradient: GradientError | None = None
    state: tuple[StateError, ...] = ()

    @property
    def final_loss_noise(self) -> float:
        """The larger of what chance did in this pair of runs and what it does as a rule."""
        return max(self.final_loss_gap, self.final_loss_error)


class FidelityMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's training beside the reference run's.

    Attributes:
        steps: Steps that both made.
        loss_drift: Largest difference of the smoothed loss curves, relative to the reference run's loss there, or to
            what it learned in all where that is more.
        final_loss: Mean of the last losses.
        exact_final_loss: That of the reference run.
        learned: How far the reference run's own loss fell.
        began: The largest loss of the reference run's first round of batches; ``None`` where no method declares to
            learn more slowly, so that nothing excuses it from learning as fast.
        gradient: The first gradient against the reference run's.
        gradient_reason: Why the gradients were not compared.
        state: What a step changes otherwise.
        noise: What chance alone does; ``None`` where nothing had to be excused by it.
        reference: The policy of the reference run.
        micro_batch: Samples per step of each device, in both.
        model_size: The size of the model, where that has sizes.
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
    reference: str
    micro_batch: int
    model_size: dict[str, int | float] = {}

    @property
    def excess(self) -> float:
        """How much higher the loss ends than the reference run's; below zero where it ends lower."""
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
    """Means over ``window`` neighbours; over all there are where these are fewer.

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
    """Hold a run against the exact one, over the steps that both made.

    Args:
        record: The run.
        exact: The reference run, with as many distinct batches.
        reference: The reference run's policy, in words.
        micro_batch: Samples per step of each device.
        model_size: The size of the model.

    Returns:
        The figures; ``None`` if too few steps are common.
    """
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
    """What chance alone does to the reference run.

    Args:
        chance: The reference run with other random numbers, and parameters one rounding off.
        exact: The reference run.

    Returns:
        ``None`` if too few steps are common.
    """
    apart = compared(chance, exact, reference="", micro_batch=1)
    if apart is None:
        return None
    cycle = min(exact.distinct_batches, apart.steps)
    # At first they are still alike.
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
    """What is changed otherwise: by other than as much, up to the order of sums."""
    return tuple(
        StateError(name=name, change=own[name], exact=change)
        for name, change in exact.items()
        if name in own and not math.isclose(own[name], change, rel_tol=_STATE_TOLERANCE)
    )


def _last(steps: int, cycle: int) -> int:
    """Steps that the final loss is a mean of: two rounds of a long run are still its end, and half the noise."""
    return 2 * cycle if steps >= 4 * cycle else cycle


def diverged(
    exact: FidelityRecord, *, reference: str, micro_batch: int, model_size: dict[str, int | float] | None = None
) -> FidelityMeasurement:
    """The figures of a run whose loss became infinite or NaN where the reference run's did not."""
    with_itself = compared(
        exact, exact, reference=reference, micro_batch=micro_batch, model_size=dict(model_size or {})
    )
    assert with_itself is not None, "the reference run made steps"
    return msgspec.structs.replace(with_itself, loss_drift=NOT_FINITE, final_loss=NOT_FINITE)


def _drift(own: Sequence[float], exact: Sequence[float], learned: float) -> float:
    largest = max(abs(loss) for loss in exact)
    if largest == 0:
        return 0.0 if all(loss == 0 for loss in own) else NOT_FINITE
    least = max(learned, _SMALL_SHARE * largest)
    drift = max(abs(loss - expected) / max(abs(expected), least) for loss, expected in zip(own, exact, strict=True))
    return min(drift, NOT_FINITE)
