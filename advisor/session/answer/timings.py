"""Where the seconds of a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.text.units import format_count
from advisor.trial.spec import TrialKind

__all__ = ["timings_of"]

_NAMES = {
    TrialKind.PROBE: "loading the libraries, the probe",
    TrialKind.COUNT: "counting parameters",
    TrialKind.SIZE: "profiling runs and comparisons",
    TrialKind.TIME: "timing",
    TrialKind.FIDELITY: "comparing losses",
    TrialKind.CONFIRM: "confirming",
    TrialKind.PREDICT: "tracing where time goes",
}


def timings_of(spent: Mapping[TrialKind, Sequence[float]], elapsed_seconds: float) -> dict[str, float]:
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
