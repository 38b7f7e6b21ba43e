"""Judge a candidate's fidelity from its comparison with the reference run, by the tolerances of each class.

A method promises the class that it declares. A comparison beyond that class's tolerances moves the candidate to the
next class that admits it; it may still win where the goal allows that class. But a method that promises plain
training's own gradient and misses it is defective on this model (random numbers that are not drawn again, state that a
recomputation changes), and a loss that ends clearly above the reference run's is beyond every class.

The tolerances lie between what sound methods showed over 30 steps (checkpointing 0; bfloat16 0.05 % in the loss, 3 % in
the gradient; 8-bit Adam 0.04 % in the loss) and defects (ten times or a tenth of the learning rate, 3 % to 50 % in the
loss; a gradient 1.3 times too long, 30 % in the gradient). Other dropout masks alone make 0.1 % to 3 % in the loss and
15 % to 70 % in the gradient. So what chance does is measured where a candidate is beyond its class, and twice that is
excused, except where bit-equal gradients are promised. Where a rounding error alone grows to a drift of the loss, luck
decides how far two curves get apart. If the first gradient is right and the loss ends near the reference run's, above
or below, thirty times one such drift (and at most 50 %) is excused there in the class *rounding*, and any in the class
*precision*: bfloat16 alone made 71 % there, so a wrong learning rate beside it may pass.

A method that declares to learn more slowly (LoRA, say, which trains a hundredth of the parameters) is not held to plain
training's pace: it is broken only if its loss ends above where plain training began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from advisor.decide.candidate import Candidate
from advisor.decide.drift import CHANCES, drift_tolerance
from advisor.goal import Fidelity
from advisor.measure.fidelity import FidelityMeasurement, GradientError, NoiseFloor, StateError
from advisor.policy.file import ComparisonEvidence
from advisor.text.units import format_percent

__all__ = [
    "Finding",
    "amplifies_rounding",
    "comparison_evidence",
    "drift_by_chance",
    "ends_clearly_worse",
    "gradient_tolerance",
    "observed_class",
    "refuted_drift",
    "why_worse",
]


_GRADIENT_TOLERANCES = {
    # A GPU's atomic sums may differ between two runs of the same step.
    Fidelity.EXACT: 1e-4,
    Fidelity.ROUNDING: 2e-3,
    # Eight bits and fewer of mantissa in every matrix product.
    Fidelity.PRECISION: 0.2,
}
"""Largest relative error of the first gradient, and difference of its length, which does not depend on the random
numbers. In the other classes a gradient may be right only on average: only the loss can tell."""

_SHARE_OF_LEARNED = 0.1
"""A loss that ends above the reference run's by more than this share of that run's decrease is clearly worse."""

_LEAST_EXCESS = 5e-3
"""Share of the loss itself: smaller differences come from single batches, however little was learned."""

_ANYTHING = 0.2
"""A change proves nothing if chance alters it by more than this share."""

_LOWER_PRECISION = 2.0**16
"""Rounding errors of 16-bit formats relative to float32's. A badly conditioned gradient (BatchNorm over few values of a
deep net) may be off by nearly its whole length in bfloat16; one rounding in float32 shows that."""


_ONLY_ROUNDING = 2e-3
"""Largest error of the first gradient by chance that rounding explains; other dropout masks make far more."""

_CHANCES_OF_ROUNDING, _MOST_BY_ROUNDING = 30.0, 0.5
"""The same as :data:`CHANCES` where a training amplifies rounding, and the largest drift that it excuses. Of a model
with BatchNorm over two samples and a learning rate of 0.05, the drifts of twenty runs one rounding apart were 0.3 % to
37 %; a tenth of that rate made 89 %, ten times that rate 390 %."""


class Finding(NamedTuple):
    """Where a comparison is beyond a tolerance, and the tolerance, in words with their values."""

    what: str
    tolerated: str


def gradient_tolerance(fidelity: Fidelity) -> float | None:
    """The largest relative error of the first gradient that a class allows; ``None`` if it allows any."""
    return _GRADIENT_TOLERANCES.get(fidelity)


def ends_clearly_worse(found: FidelityMeasurement, declared: Fidelity = Fidelity.EXACT) -> bool:
    """Whether the loss ends too far above the reference run's for noise or a different way to learn to explain it.

    One-sided: a loss that falls faster may be another training, but not a broken one. Compares the means of the last
    rounds of batches: the difference must exceed a tenth of the reference run's decrease, half a percent of the loss
    (where little was learned), and twice the effect of chance. Methods that declare to change what is learned may learn
    less than the reference run, but must not end above its initial losses.
    """
    if not found.is_finite:
        return True
    if declared is Fidelity.MODEL and found.began is not None:
        noise = 0.0 if found.noise is None else found.noise.final_loss_noise
        return found.final_loss > found.began + max(_LEAST_EXCESS * abs(found.began), CHANCES * noise)
    return found.excess > _least_gap(found)


def _least_gap(found: FidelityMeasurement) -> float:
    """The smallest difference of the final losses that neither noise nor a different way to learn explains."""
    noise = 0.0 if found.noise is None else found.noise.final_loss_noise
    return max(_SHARE_OF_LEARNED * found.learned, _LEAST_EXCESS * abs(found.exact_final_loss), CHANCES * noise)


def observed_class(declared: Fidelity, found: FidelityMeasurement) -> Fidelity | None:
    """The first class from the declared one on whose tolerances hold; ``None`` if the training is broken.

    A method that promises plain training's own gradient (up to the order of sums) but has another one does not drop to
    a lower class: it is broken on this model.
    """
    if ends_clearly_worse(found, declared) or _state_error(declared, found) is not None:
        return None
    if declared.rank <= Fidelity.ROUNDING.rank and _beyond(declared, found) is not None:
        return None
    return next(one for one in Fidelity if one.rank >= declared.rank and _beyond(one, found) is None)


def why_worse(declared: Fidelity, found: FidelityMeasurement) -> Finding | None:
    """The deviation beyond the tolerances of the declared class; ``None`` if there is none."""
    if not found.is_finite:
        return Finding(f"its loss became infinite or NaN within {found.steps} steps", "")
    if ends_clearly_worse(found, declared):
        if declared is Fidelity.MODEL and found.began is not None:
            what = f"its loss is {found.final_loss:.3g} after {found.steps} steps, above where plain training began"
            return Finding(what, f"{found.began:.3g}")
        ratio = found.excess / abs(found.exact_final_loss) if found.exact_final_loss else found.excess
        what = f"its loss ends {format_percent(ratio)} above the reference run's after {found.steps} steps"
        return Finding(what, f"a tenth of what that one learned ({found.learned:.3g})")
    error = _state_error(declared, found)
    if error is None:
        return _beyond(declared, found)
    step = f"a step changes {error.name} by {error.change:.4g}"
    return Finding(f"{step}, that of plain training by {error.exact:.4g}", "the same")


def drift_by_chance(candidates: Iterable[Candidate]) -> float:
    """How far two runs of plain training drift apart, if a comparison measured that; else 0."""
    guards = [one.guard for one in candidates if one.guard is not None]
    noises = [noise for guard in guards for noise in (guard.noise, guard.noise_of_few) if noise is not None]
    return max((noise.loss_drift for noise in noises), default=0.0)


def refuted_drift(candidates: Iterable[Candidate], fidelity: Fidelity) -> float:
    """How far first losses were off where a longer comparison found nothing wrong, in this class or a stricter one.

    Normalization over the two samples of first losses amplifies what a number format rounds. So nothing follows from
    such a drift of another candidate.
    """
    drifts = (
        one.loss_drift
        for one in candidates
        if one.guard is not None
        and one.loss_drift is not None
        and one.fidelity.rank <= fidelity.rank
        and observed_class(one.fidelity, one.guard) is one.fidelity
    )
    return max(drifts, default=0.0)


def comparison_evidence(candidate: Candidate) -> ComparisonEvidence | None:
    """The comparison as files and scripts see it; ``None`` without one."""
    found = candidate.guard
    if found is None:
        return None
    observed = observed_class(candidate.fidelity, found)
    return ComparisonEvidence(
        steps=found.steps,
        loss_drift=found.loss_drift,
        final_loss_ratio=found.final_loss_ratio,
        learned=found.learned,
        gradient_error=None if found.gradient is None else found.gradient.error,
        gradient_cosine=None if found.gradient is None else found.gradient.cosine,
        reference=found.reference,
        observed_fidelity="broken" if observed is None else observed.value,
    )


def _state_error(declared: Fidelity, found: FidelityMeasurement) -> StateError | None:
    """State that a step does not change as plain training does; in lower classes, that it changes several times."""
    if declared is Fidelity.MODEL:
        return None
    chance = {} if found.noise is None else {error.name: error for error in found.noise.state}
    exactly = declared.rank <= Fidelity.ROUNDING.rank
    for error in found.state:
        excused = _excused(error, chance.get(error.name))
        if not excused and (exactly or error.times > 1):
            return error
    return None


def _excused(error: StateError, chance: StateError | None) -> bool:
    """Whether chance alone changes it as much, or so much that it proves nothing, as with a clock."""
    if chance is None:
        return False
    by_chance = abs(chance.change - chance.exact)
    return by_chance > _ANYTHING * abs(chance.exact) or abs(error.change - error.exact) <= CHANCES * by_chance


def _length_by_chance(noise: GradientError) -> float:
    """How far off the length of a gradient may be by chance, relative.

    One other run may have nearly the same length by accident. Two runs with other masks share a part of their gradient;
    at right angles to it each has a random part, ``error**2 / 2`` of the square of the length. Had one run none of it
    and the other twice as much, which is the most to reckon with, the lengths would differ by ``error**2 / 2``. Masks
    make an ``error`` of up to 0.7, and so 0.25: less than the defects that lengths must show.
    """
    return max(CHANCES * abs(noise.norm_ratio - 1), noise.error**2 / 2)


def amplifies_rounding(noise: NoiseFloor) -> bool:
    """Whether one rounding error of float32 moves the loss by more than is tolerated of bit-equal gradients.

    That happens with a large learning rate or with BatchNorm over few samples. A format that rounds more coarsely then
    cannot stay near either curve, however sound it is: the first gradient and the end of the loss must tell.
    """
    if noise.gradient is None or noise.gradient.error > _ONLY_ROUNDING:
        return False
    return noise.loss_drift > drift_tolerance(Fidelity.EXACT)


def _beyond(fidelity: Fidelity, found: FidelityMeasurement) -> Finding | None:
    gradient, allowed = found.gradient, gradient_tolerance(fidelity)
    # Bit-equal gradients imply the same random numbers: chance excuses only drift from a GPU's unordered sums, if the
    # first gradient is correct.
    exact = fidelity is Fidelity.EXACT
    is_correct = gradient is not None and allowed is not None and gradient.error <= allowed
    noise = None if exact else found.noise
    drifts = found.noise if exact and is_correct else noise
    drift = max(drift_tolerance(fidelity), 0.0 if drifts is None else CHANCES * drifts.loss_drift)
    if is_correct and noise is not None and amplifies_rounding(noise) and -found.excess <= _least_gap(found):
        excused = min(_CHANCES_OF_ROUNDING * noise.loss_drift, _MOST_BY_ROUNDING)
        drift = math.inf if fidelity is Fidelity.PRECISION else max(drift, excused)
    if fidelity is not Fidelity.MODEL and found.loss_drift > drift:
        what = f"over {found.steps} steps its loss is up to {format_percent(found.loss_drift)} off the reference run's"
        return Finding(what, format_percent(drift))
    if gradient is None or allowed is None:
        return None
    by_chance = None if noise is None else noise.gradient
    times = CHANCES * (_LOWER_PRECISION if fidelity is Fidelity.PRECISION else 1.0)
    error = max(allowed, 0.0 if by_chance is None else times * by_chance.error)
    if gradient.error > error:
        what = f"its first gradient is {format_percent(gradient.error)} off the reference run's"
        return Finding(what, format_percent(error))
    norm = max(allowed, 0.0 if by_chance is None else _length_by_chance(by_chance))
    if abs(gradient.norm_ratio - 1) > norm:
        what = f"its first gradient is {gradient.norm_ratio:.3g} times as long as the reference run's"
        return Finding(what, format_percent(norm))
    return None
