"""The wrapper of any candidate of a study, with what was measured of it in its docstring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.decide.candidate import Candidate
from advisor.goal import Goal
from advisor.hardware.mesh import DATA_ONLY
from advisor.policy.wrapper import size_lines, wrapper_source
from advisor.report.comparison import comparison_sentence
from advisor.search.space.space import Combination
from advisor.text.units import format_bytes, format_rate
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.sizes import size_words

__all__ = ["wrapper_of"]


def wrapper_of(
    candidate: Candidate,
    baseline: Candidate | None,
    *,
    goal: Goal,
    workload: str,
    device: str,
    versions: Mapping[str, str],
    date: str,
    options: Sequence[str],
    size_arguments: Mapping[str, Sequence[str]],
    layout: BatchLayout | None,
) -> str:
    """The text of its ``wrapper.py``.

    Args:
        candidate: Of any outcome.
        baseline: What it is compared with, if that was measured.
        goal: What was asked for.
        workload: Name of the workload.
        device: Name of the device.
        versions: Package -> version, of the study.
        date: Of the study.
        options: Options that the workload defines, to be passed to the wrapper.
        size_arguments: Function -> the size arguments that it takes.
        layout: Where a batch has its samples.
    """
    details = [
        f"Found by momadvise {versions.get('momadvise', '?')} on {date} with torch {versions.get('torch', '?')}, "
        f"goal {goal.kind.value}.",
        f"Measured: {_measured_words(candidate)}."
        if candidate.measurement is not None
        else f"Not measured: its trial ended as {candidate.outcome.value}.",
    ]
    if baseline is not None:
        details.append(f"Baseline: {_measured_words(baseline)}.")
    compared = comparison_sentence(candidate)
    if compared:
        details.append(compared)
    if candidate.model_size:
        parameters = f" ({candidate.parameter_count:,} parameters)" if candidate.parameter_count else ""
        details.append(f"Size of the model: {size_words(candidate.model_size)}{parameters}.")
    name = Combination.of(candidate.policy).words
    return wrapper_source(
        candidate.policy,
        headline=f"How to train {workload} on {device}: {name}.",
        details="\n".join(details),
        options=options,
        size=size_lines(candidate.model_size, size_arguments),
        machines=goal.machines,
        layout=layout,
    )


def _measured_words(candidate: Candidate) -> str:
    measurement, policy = candidate.measured, candidate.policy
    each = " of each device" if policy.gpu_count > 1 else ""
    each = each if policy.axes == DATA_ONLY else " of the fullest device"
    return (
        f"{format_rate(measurement.samples_per_second)} samples/s, peak {format_bytes(measurement.memory.peak_bytes)}"
        f"{each} at {policy.global_batch} samples per optimizer step"
    )
