"""Why a policy was chosen, as its file says it: measured values only."""

from __future__ import annotations

import msgspec

__all__ = ["ComparisonEvidence", "CostEvidence", "Evidence"]


class CostEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an iteration costs, and at which price.

    Attributes:
        latency_seconds: Median time of an iteration.
        usd_per_iteration: Price x devices x time.
        gpu_count: Devices that train together.
        usd_per_hour: Price of an hour of one device.
        price_source: Where the price comes from.
        price_date: Date of the price, as its source states it.
        joules_per_iteration: Energy of all devices, where it was measured.
    """

    latency_seconds: float
    usd_per_iteration: float
    gpu_count: int
    usd_per_hour: float
    price_source: str
    price_date: str
    joules_per_iteration: float | None = None


class ComparisonEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's training compared with the reference run: same seed, same batches.

    Attributes:
        steps: Steps of both.
        loss_drift: Largest difference of the smoothed loss curves, relative.
        final_loss_ratio: Mean of the last losses relative to the reference run's.
        learned: How far the reference run's own loss fell.
        gradient_error: Relative L2 error of the first gradient, if it could be compared.
        gradient_cosine: Cosine of the angle between the two gradients.
        reference: The policy of the reference run.
        observed_fidelity: The best class whose tolerances these values meet.
    """

    steps: int
    loss_drift: float
    final_loss_ratio: float
    learned: float
    gradient_error: float | None = None
    gradient_cosine: float | None = None
    reference: str
    observed_fidelity: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why this policy was chosen: measured values only.

    Attributes:
        goal: The goal it was chosen for.
        date: Date of the measurement, ISO format.
        samples_per_second: Throughput measured by the search.
        relative_spread: Half the width of its 95 % confidence interval, relative.
        peak_bytes: Peak device memory (reserved on CUDA, live tensor storage on CPU).
        memory_limit_bytes: The limit that it had to stay below.
        fidelity: How far training may differ from plain training.
        loss_drift: Largest relative difference of the first losses from plain training, when measured.
        comparison: Its comparison with the reference run, when measured.
        not_compared: Why there is no comparison.
        speedup_over_baseline: Samples per second over the baseline's, from turns in fresh processes, and the ends of
            its 95 % interval: value, low, high.
        baseline_samples_per_second: Plain training at the user's own batch.
        baseline_batch: That batch.
        confirmed_samples_per_second: Throughput of the emitted wrapper in a fresh process, when it was run.
        confirmed_peak_bytes: Its peak.
        tie: Whether the gain over the baseline is inside the noise.
        trials: Policies that were measured.
        cost: What an iteration costs, when that was the goal.
        why: The reasons, in sentences.
        model_size: ``bigger``: the arguments of ``build_model`` and ``make_batch`` that it was measured with.
        parameter_count: ``bigger``: parameters of the model at that size.
        floor_samples_per_second: ``bigger``: the throughput that it had to keep.
    """

    goal: str
    date: str
    samples_per_second: float
    relative_spread: float
    peak_bytes: int
    memory_limit_bytes: int
    fidelity: str
    loss_drift: float | None = None
    comparison: ComparisonEvidence | None = None
    not_compared: str | None = None
    speedup_over_baseline: tuple[float, float, float] | None = None
    baseline_samples_per_second: float | None = None
    baseline_batch: int | None = None
    confirmed_samples_per_second: float | None = None
    confirmed_peak_bytes: int | None = None
    tie: bool
    trials: int
    cost: CostEvidence | None = None
    why: list[str]
    model_size: dict[str, int | float] | None = None
    parameter_count: int | None = None
    floor_samples_per_second: float | None = None
