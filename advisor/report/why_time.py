"""Sentences that explain from predictions where a step's time goes, and what the winner changed."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.measure.step_split import StepSplit
from advisor.methods.base import Method, Saves
from advisor.methods.catalogue import get_method
from advisor.methods.setting import MethodSetting
from advisor.phase import Phase
from advisor.predict.roofline import Bound, PredictedPhase, PredictedStep
from advisor.text.units import format_bytes, format_percent, format_rate, format_seconds

__all__ = ["communication_sentence", "explain_time", "time_sentence"]

_SHOWN_FROM = 0.05
"""Changes by a smaller share of plain training's step are within a roofline's error."""

_SAME = 0.02
"""Amounts that differ by at most this share are called the same."""

_PHASES = {Phase.FORWARD: "forward pass", Phase.BACKWARD: "backward pass", Phase.OPTIMIZER: "optimizer step"}

_FELT_IN = {
    Saves.PARAMETERS: {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER},
    Saves.GRADIENTS: {Phase.BACKWARD, Phase.OPTIMIZER},
    Saves.OPTIMIZER_STATE: {Phase.OPTIMIZER},
    Saves.ACTIVATIONS: {Phase.FORWARD, Phase.BACKWARD},
    Saves.LOGITS: {Phase.FORWARD, Phase.BACKWARD},
    Saves.WORKSPACE: {Phase.FORWARD, Phase.BACKWARD},
}
"""The phases that touch what a method lowers."""


def explain_time(plain: PredictedStep, winner: PredictedStep, settings: Iterable[MethodSetting]) -> tuple[str, ...]:
    """Explain from predictions why the winner's steps take less time, and at what price.

    Args:
        plain: Plain training's step.
        winner: The winner's step, of the same model on the same device, at any batch.
        settings: The winner's methods.

    Returns:
        Sentences: where plain training's time goes, the phase that the winner shortens most, the phase that it
        lengthens most; the latter two only if they exceed the prediction's error.
    """
    assert plain.measured_rates == winner.measured_rates, "both predictions rest on the same rates"
    methods = [get_method(setting.name) for setting in settings]
    per_sample = plain.predicted_seconds / plain.batch
    changes = {
        phase: _seconds(winner, phase) / winner.batch - _seconds(plain, phase) / plain.batch for phase in _PHASES
    }
    least, most = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)
    sentences = [time_sentence(plain, "plain training")]
    if changes[least] < -_SHOWN_FROM * per_sample:
        sentences.append(_shortened(plain, winner, least, methods))
    if changes[most] > _SHOWN_FROM * per_sample:
        sentences.append(_lengthened(plain, winner, most))
    return tuple(sentences)


def time_sentence(step: PredictedStep, name: str) -> str:
    """What each phase of a step of that name is bound by, and the step's arithmetic intensity."""
    parts = [
        f"{format_percent(step.share(one.phase))} in the {_PHASES[one.phase]}, bound by {one.bound.value}"
        for one in sorted(step.phases, key=lambda one: -one.predicted_seconds)
        if one.phase in _PHASES
    ]
    basis = "" if step.measured_rates else " at published peak rates"
    return (
        f"Predicted{basis} from the work of its operators, {name} at batch {step.batch:,} spends {'; '.join(parts)}. "
        f"It makes {format_rate(step.intensity)} floating-point operations for each byte that it moves."
    )


def communication_sentence(devices: int, winner: StepSplit, baseline: StepSplit | None) -> str:
    """What of a step on several devices is communication.

    Args:
        devices: How many train together.
        winner: A profiled step of the winner.
        baseline: One of the baseline, if that is another policy on several devices.
    """
    beside = "" if baseline is None else f" (the baseline's: {format_percent(baseline.exposed_share)})"
    others = "the other device" if devices == 2 else "the other devices"
    return (
        f"On the first of {devices} devices {format_percent(winner.exposed_share)} of a step is communication that no "
        f"computation hides, waiting for {others} included{beside}; during another "
        f"{format_percent(winner.hidden_share)} it communicates and computes."
    )


def _shortened(plain: PredictedStep, winner: PredictedStep, phase: Phase, methods: Iterable[Method]) -> str:
    before, after = plain.phase(phase), winner.phase(phase)
    assert before is not None, "only what exists gets shorter"
    if after is None:
        return f"The work of the {_PHASES[phase]} is done within other phases{_credit(methods, phase)}."
    text = (
        f"For each sample the {_PHASES[phase]} is predicted to take {_per_sample(after, winner.batch)} instead of "
        f"{_per_sample(before, plain.batch)}"
    )
    # Compare whole steps: if only the time per sample falls, the batch is the cause.
    if after.predicted_seconds > (1 - _SAME) * before.predicted_seconds and winner.batch > plain.batch:
        return f"{text}: one step is shared by {winner.batch} samples instead of {plain.batch}."
    return f"{text}, {_change(before, plain.batch, after, winner.batch)}{_credit(methods, phase)}."


def _lengthened(plain: PredictedStep, winner: PredictedStep, phase: Phase) -> str:
    before, after = plain.phase(phase), winner.phase(phase)
    assert after is not None, "only what exists gets longer"
    text = f"In exchange the {_PHASES[phase]} is predicted to take {_per_sample(after, winner.batch)}"
    if before is None:
        return f"{text}, which plain training does not have."
    return (
        f"{text} for each sample instead of {_per_sample(before, plain.batch)}, "
        f"{_change(before, plain.batch, after, winner.batch, bound=after.bound)}."
    )


def _change(
    before: PredictedPhase, batch: int, after: PredictedPhase, larger: int, *, bound: Bound | None = None
) -> str:
    """The change per sample in the amount that bounds a phase's time."""
    bound = bound or before.bound
    field, noun, show = _AMOUNTS[bound]
    old, new = getattr(before, field) / batch, getattr(after, field) / larger
    if abs(new - old) <= _SAME * max(old, new):
        return f"with the same {noun} at another rate"
    return f"with {show(new)} {noun} instead of {show(old)}"


_AMOUNTS = {
    Bound.COMPUTE: ("flops", "floating-point operations", format_rate),
    Bound.BANDWIDTH: ("moved_bytes", "moved", format_bytes),
    Bound.LAUNCH: ("launches", "operators to launch", format_rate),
    Bound.TRANSFER: ("transferred_bytes", "copied between host and device", format_bytes),
}
"""What bounds a phase's time -> the field of the amount, its name for people, how it is formatted."""


def _credit(methods: Iterable[Method], phase: Phase) -> str:
    """The methods that declare to lower something the phase touches, or to change only the time."""
    parts = []
    for method in methods:
        felt = sorted(saved.value for saved in method.saves if phase in _FELT_IN[saved])
        if felt:
            parts.append(f"{method.name} lowers {' and '.join(felt)}")
        elif not method.saves:
            parts.append(f"{method.name} changes only the time")
    return f" ({', '.join(parts)})" if parts else ""


def _per_sample(phase: PredictedPhase, batch: int) -> str:
    return format_seconds(phase.predicted_seconds / batch)


def _seconds(step: PredictedStep, phase: Phase) -> float:
    found = step.phase(phase)
    return 0.0 if found is None else found.predicted_seconds
