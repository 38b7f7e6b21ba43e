"""Words for the comparison with the reference run."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from advisor.decide.candidate import Candidate
from advisor.decide.drift import NOT_FINITE, drift_tolerance
from advisor.decide.guard import observed_class, why_worse
from advisor.measure.fidelity import FidelityMeasurement
from advisor.text.units import format_percent

__all__ = ["comparison_sentence", "comparison_words", "drift_cell", "drift_legend", "drift_words"]

_COMPARED = "*"
"""Mark behind a drift over tens of steps, in tables; an unmarked drift is of the first three losses."""

_WORTH_BOTH_LOSSES = 0.05
"""From this drift on, state whether the loss was higher or lower."""


def drift_words(candidate: Candidate) -> str:
    """The loss drift of a candidate; ``"!"`` behind it when it is above the tolerance of what it declares."""
    guard = candidate.guard
    if guard is not None:
        mark = _COMPARED if observed_class(candidate.fidelity, guard) is candidate.fidelity else f"{_COMPARED}!"
        return (format_percent(guard.loss_drift) if guard.is_finite else "not finite") + mark
    if candidate.loss_drift is None:
        return "-"
    if candidate.loss_drift >= NOT_FINITE:
        return "not finite!"
    mark = "!" if candidate.loss_drift > drift_tolerance(candidate.fidelity) else ""
    return format_percent(candidate.loss_drift) + mark


def drift_cell(candidate: Candidate) -> Text:
    """The loss drift of a candidate, red where it is above the tolerance."""
    words = drift_words(candidate)
    return Text(words, style="red" if words.endswith("!") else "")


def drift_legend(candidates: Iterable[Candidate]) -> str:
    """What the mark behind a drift means; empty where no candidate has one."""
    steps = max((one.guard.steps for one in candidates if one.guard is not None), default=0)
    return f"; {_COMPARED}: smoothed, over {steps} steps" if steps else ""


def comparison_words(found: FidelityMeasurement) -> str:
    """``"over 30 steps its loss stayed within 0.3% of the reference run's; gradient error 0.4%"``."""
    if not found.is_finite:
        return f"its loss became infinite or NaN within {found.steps} steps"
    off = format_percent(found.loss_drift).removeprefix("<")
    stayed = f"loss stayed within {off} of" if found.loss_drift else "losses were"
    text = f"over {found.steps} steps its {stayed} the reference run's"
    if found.loss_drift > _WORTH_BOTH_LOSSES:
        text += f" and ended at {found.final_loss:.3g}, that one at {found.exact_final_loss:.3g}"
        if found.noise is not None:
            by_chance = format_percent(found.noise.loss_drift)
            text += f" (by chance alone that one is {by_chance} off itself, its end {found.noise.final_loss_noise:.3g})"
    if found.gradient is not None:
        text += f"; gradient error {format_percent(found.gradient.error)}"
    elif found.gradient_reason:
        text += f"; gradients were not compared: {found.gradient_reason}"
    if found.learned <= 0:
        text += "; the reference run's own loss did not fall in these steps"
    return text


def comparison_sentence(candidate: Candidate) -> str:
    """The comparison as a sentence, or why there is none; empty if there was nothing to compare."""
    found = candidate.guard
    if found is None:
        return f"Not compared with the reference run: {candidate.not_compared}." if candidate.not_compared else ""
    words = comparison_words(found)
    text = f"{words[0].upper()}{words[1:]}."
    observed, worse = observed_class(candidate.fidelity, found), why_worse(candidate.fidelity, found)
    if worse is not None and observed is not None:
        promise = f"{candidate.fidelity.value} promises ({worse.tolerated})"
        text += f" That is beyond what {promise}: it counts as {observed.value}."
    return text
