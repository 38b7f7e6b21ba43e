"""Where the seconds of a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.text.units import format_count
from advisor.trial.spec import (
    ConfirmTrial,
    CountTrial,
    FidelityTrial,
    PairTrial,
    PredictTrial,
    ProbeTrial,
    SizeTrial,
    TimeTrial,
    Trial,
)

__all__ = ["timings_of"]

_NAMES: dict[type[Trial[Any]], str] = {
    ProbeTrial: "loading the libraries, the probe",
    CountTrial: "counting parameters",
    SizeTrial: "profiling runs and comparisons",
    TimeTrial: "timing",
    PairTrial: "comparing leaders",
    FidelityTrial: "comparing losses",
    ConfirmTrial: "confirming",
    PredictTrial: "tracing where time goes",
}


def timings_of(spent: Mapping[type[Trial[Any]], Sequence[float]], elapsed_seconds: float) -> dict[str, float]:
    """What a run was busy with.

    Args:
        spent: Kind of trial -> the seconds of each.
        elapsed_seconds: Of the whole run so far.

    Returns:
        What -> seconds; what no trial took is momadvise's own: choosing, writing, and the start.
    """
    timings = {
        f"{_NAMES[kind]} ({format_count(len(seconds), 'trial')})": sum(seconds) for kind, seconds in spent.items()
    }
    timings["momadvise itself"] = max(0.0, elapsed_seconds - sum(timings.values()))
    return timings
