"""Names of candidates and outcomes in tables, sentences and the live display."""

from __future__ import annotations

import re

import msgspec

from advisor.decide.candidate import Candidate, Comparison, Recommendation, Role
from advisor.decide.confirmation import Confirmation
from advisor.decide.eligible import is_measured, is_outpaced
from advisor.decide.frontier import placed
from advisor.decide.preference import beyond_limit
from advisor.goal import Goal, GoalKind, Price
from advisor.hardware.mesh import DATA_ONLY
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import label_words
from advisor.policy.policy import Policy
from advisor.text.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_spread,
    format_times,
    format_times_spread,
    format_usd,
)
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import size_words

__all__ = [
    "baseline_words",
    "batch_words",
    "candidate_words",
    "comparison_words",
    "confirmed_beyond",
    "early_words",
    "gain_words",
    "has_clear_turns",
    "meshed_words",
    "methods_words",
    "of_each_share",
    "on_devices",
    "open_because",
    "outcome_style",
    "parameters_words",
    "peak_words",
    "price_words",
    "promise_words",
    "promised_times",
    "rate_beside_floor",
    "rate_words",
    "result_words",
    "role_words",
    "sentence",
    "subject_words",
    "training_words",
    "trial_words",
    "turns_words",
]

_OUTCOME_STYLES = {
    Outcome.OK: "green",
    Outcome.COMPARED: "cyan",
    Outcome.OUT_OF_MEMORY: "yellow",
    Outcome.SCREENED: "dim",
    Outcome.REFUSED: "dim",
    Outcome.INTERRUPTED: "dim",
}


def methods_words(policy: Policy) -> list[str]:
    """The methods of a policy, one by one; ``["plain"]`` without any."""
    return [setting.words for setting in policy.methods] or ["plain"]


def meshed_words(policy: Policy) -> list[str]:
    """The methods one by one, the last with the mesh, if devices divide more than the data, but not their number."""
    *words, last = methods_words(policy)
    label = policy.axes.label(policy.gpu_count)
    return [*words, f"{last} ({label})" if label else last]


def sentence(words: str) -> str:
    """With a capital and a full stop; a name in code, ``sequence_len``, keeps its spelling."""
    first = words.partition(" ")[0]
    capital = words[0] if re.search(r"[\d_.(]", first) else words[0].upper()
    return f"{capital}{words[1:].rstrip('.')}."


def comparison_words(comparison: Comparison) -> str:
    """The result of short steps alternating with plain training, and the prediction from it."""
    expected = f"{format_rate(comparison.expected_samples_per_second)} samples/s predicted at its own batch"
    speedup = comparison.speedup
    if speedup is None:
        return f"{expected}, {format_spread(comparison.expected_error)}"
    beside = "plain training" if comparison.beside == "plain" else label_words(comparison.beside)
    return (
        f"{format_times(speedup.value)} {beside} in turn at "
        f"batch {comparison.micro_batch:,} ({format_spread(speedup.relative_spread)}); {expected}"
    )


def candidate_words(candidate: Candidate) -> list[str]:
    """The methods of a candidate, one by one, the last with the size of the model if it has one, and its devices."""
    words = methods_words(candidate.policy)
    if candidate.model_size:
        words[-1] += f" at {size_words(candidate.model_size)}"
    words[-1] += on_devices(candidate.policy)
    return words


def parameters_words(count: float) -> str:
    """A number of parameters, three digits: ``"25.6 M"``."""
    for unit, factor in (("", 1.0), (" K", 1e3), (" M", 1e6), (" G", 1e9)):
        if count < 999.5 * factor:
            return f"{count / factor:.3g}{unit}" if unit else f"{count:.0f}"
    return f"{count / 1e12:.3g} T"


def peak_words(candidate: Candidate, goal: Goal) -> str:
    """``"peak of 3.1 GiB is 39% of the 8.00 GiB limit"``."""
    peak, limit = candidate.measured.memory.peak_bytes, goal.limit_on(candidate.policy.gpu_count)
    return f"peak of {format_bytes(peak)} is {format_percent(peak / limit)} of the {format_bytes(limit)} limit"


def batch_words(policy: Policy) -> str:
    """``"16"``, or ``"16 x 4"``: micro-batch x accumulation steps."""
    steps = policy.accumulation_steps
    return f"{policy.micro_batch:,}" if steps == 1 else f"{policy.micro_batch:,} x {steps}"


def training_words(candidate: Candidate) -> str:
    """A policy with its batch, as in a sentence: ``"precision bf16 at batch 16 x 4"``; its devices if several."""
    policy = candidate.policy
    methods = "plain training" if not policy.methods else policy.words
    return f"{methods} at batch {batch_words(policy)}{on_devices(policy)}"


def baseline_words(baseline: Candidate, goal: Goal) -> str:
    """What the baseline is, as in parentheses: ``"plain training at batch 4"``, ``"your own settings: ..."``."""
    words = training_words(baseline)
    return f"your own settings: {words}" if goal.own_settings else words


def of_each_share(policy: Policy) -> str:
    """What follows a batch that several devices have one of each: ``" of each device"``; nothing for one share."""
    if policy.data_degree == 1:
        return ""
    return " of each device" if policy.axes == DATA_ONLY else " of each share"


def on_devices(policy: Policy) -> str:
    """``" on 4 devices"``, or ``" on 4 devices (2 data x 2 tensor)"``; nothing for one."""
    return policy.axes.on_devices(policy.gpu_count)


def price_words(price: Price) -> str:
    """A price with its source: the option, or the file that names the document."""
    source = price.source.split(": ")[0]
    return f"{format_usd(price.usd_per_hour)} per device-hour ({source}, {price.date})"


def rate_words(candidate: Candidate) -> str:
    """Samples per second, with a mark in front when the timing was ended early."""
    return ("~" if is_outpaced(candidate) else "") + format_rate(candidate.samples_per_second)


def role_words(candidate: Candidate) -> str:
    """``" [baseline]"`` behind the methods; nothing for what the search proposed."""
    return "" if candidate.role is Role.SEARCHED else f" [{candidate.role.value}]"


def subject_words(candidate: Candidate) -> str:
    """A training as a sentence begins with it: ``"Training with precision bf16 at batch 16"``."""
    name = training_words(candidate)
    return f"Training with {name}" if candidate.policy.methods else name[0].upper() + name[1:]


def early_words(candidate: Candidate) -> str:
    """A mark behind a measurement whose timing was ended early."""
    return " (an early measurement: its timing was cut short)" if is_outpaced(candidate) else ""


def gain_words(share: float) -> str:
    """A gain over a reference, e.g. ``"+31%"``."""
    if abs(share) < 0.0005:
        return "0%"
    return f"{'+' if share > 0 else ''}{format_percent(share)}"


def outcome_style(outcome: Outcome) -> str:
    """The colour that an outcome is shown in."""
    return _OUTCOME_STYLES.get(outcome, "red")


def promised_times(promise: Speedup) -> str:
    """A speedup with its interval: ``"5.20 times"``, or ``"at least 2.00 times"`` where its ends are far apart."""
    certain = promise.is_unsteady and promise.low > 1
    return f"at least {format_times(promise.low)}" if certain else format_times(promise.value)


def turns_words(confirmation: Confirmation) -> str:
    """What a confirmed wrapper took turns with: ``"baseline took 7 turns each in fresh processes"``."""
    if confirmation.speedup is None:
        return "baseline ran one after the other in fresh processes"
    if confirmation.speedup.links:  # over the baseline only by way of another training
        return f"baseline with {confirmation.around_stalls} took turns in fresh processes"
    rounds = confirmation.speedup.rounds if confirmation.promise is None else confirmation.promise.rounds
    return f"baseline took {format_count(rounds, 'turn')} each in fresh processes"


def promise_words(promise: Speedup, baseline_rate: float) -> str:
    """What a speedup over the baseline comes to; rates only where the middle of its interval means something."""
    if promise.is_unsteady:
        ends = f"between {format_times(promise.low)} and {format_times(promise.high)}"
        if promise.low <= 1:
            return f"{promised_times(promise)} the baseline just now, but {ends}: no gain is certain"
        return f"{promised_times(promise)} the baseline; measured {ends}, which is too unsteady to say more"
    spread = format_times_spread(promise.low, promise.high, promise.value)
    rates = f"{format_rate(promise.value * baseline_rate)} instead of {format_rate(baseline_rate)} samples/s"
    certain = "" if promise.low > 1 else "; no gain is certain"
    return f"{promised_times(promise)} the baseline, {spread}: {rates}{certain}"


def trial_words(candidate: Candidate) -> str:
    """A policy in a line on its trial: its methods, batch and role."""
    return f"{' + '.join(candidate_words(candidate))}, batch {batch_words(candidate.policy)}{role_words(candidate)}"


def result_words(candidate: Candidate) -> str:
    """How its trial ended, there."""
    if not is_measured(candidate):
        return candidate.outcome.value + (f" ({candidate.reason})" if candidate.reason else "")
    return f"{rate_words(candidate)} samples/s, {format_bytes(candidate.measured.memory.peak_bytes)}"


def confirmed_beyond(answer: Recommendation, goal: Goal) -> str | None:
    """How far the confirming run is beyond the user's limit or below the floor; ``None`` if it is not."""
    confirmation = answer.confirmation
    if confirmation is None or confirmation.measurement is None:
        return None
    if answer.growth is not None:
        rate, floor = rate_beside_floor(confirmation), answer.growth.floor_samples_per_second
        return None if rate >= floor else f"below the floor of {format_rate(floor)} samples/s"
    if goal.kind is not GoalKind.CHEAPEST:
        return None
    again = msgspec.structs.replace(answer.winner, measurement=confirmation.measurement)
    return beyond_limit(placed(again, goal), goal.preference)


def rate_beside_floor(confirmation: Confirmation) -> float:
    """The confirmed throughput, at the speed that the machine had for the search, as the floor is."""
    assert confirmation.measurement is not None, "it ran"
    if confirmation.speedup is None or confirmation.promise is None:
        return confirmation.measurement.samples_per_second
    return confirmation.promised_samples_per_second * (confirmation.found_share or 1.0)


def has_clear_turns(confirmation: Confirmation) -> bool:
    """Whether a gain is open only because another process of the baseline may be faster, idle machine or not."""
    return bool(confirmation.page_faults) and confirmation.speedup is not None and confirmation.speedup.low > 1


def open_because(confirmation: Confirmation) -> str:
    """Why turns leave a gain open, as a clause: they differed, or another baseline may be as fast."""
    if confirmation.speedup is None or confirmation.speedup.low <= 1:
        return "which leave open which of them is faster"
    if not confirmation.around_stalls:
        return "but other processes may differ by more than that"
    if confirmation.page_faults:
        return "but not every process of the baseline is as slow as the one that was seen"
    return "but without other processes beside it the baseline may be as fast"
