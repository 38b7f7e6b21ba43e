"""A candidate, which is one policy with its results, and the recommendation made from many."""

from __future__ import annotations

import enum
import math

import msgspec

from advisor.decide.confirmation import Confirmation
from advisor.goal import Fidelity
from advisor.measure.fidelity import FidelityMeasurement
from advisor.measure.in_turn import Speedup
from advisor.measure.measurement import Measurement
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome

__all__ = [
    "Candidate",
    "Comparison",
    "DominatedPoint",
    "Frontier",
    "FrontierPoint",
    "Growth",
    "Recommendation",
    "Role",
    "SizeOutcome",
    "SizeRow",
]

_WORTH_A_LARGER_BATCH = 0.02
"""Gain below which a larger batch, which takes more memory and changes training, is not worth it."""


class Role(enum.Enum):
    """Why a candidate is in the table whatever its rank."""

    BASELINE = "baseline"
    """The user's own setting: no methods, at ``BATCH_SIZE`` or else at the largest batch that fits."""
    HAND_TUNED = "hand-tuned"
    """The setting that an experienced person would pick without measuring."""
    SEARCHED = "searched"


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A combination compared with another one by alternating short steps, and the prediction for its own batch.

    Attributes:
        speedup: Speedup over the other one at the same batch; ``None`` if their steps did not alternate.
        beside: Label of the other one.
        micro_batch: Micro-batch of the comparison.
        at_batch: Micro-batch of the prediction.
        expected_samples_per_second: Throughput predicted at ``at_batch``, never to be shown as measured.
        expected_error: Standard error of its log.
    """

    speedup: Speedup | None
    beside: str = "plain"
    micro_batch: int
    at_batch: int
    expected_samples_per_second: float
    expected_error: float


class Candidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy and its results.

    Attributes:
        outcome: How its trial ended; SCREENED and REFUSED ran nothing.
        reason: One line when the outcome is not OK.
        measurement: Only when the outcome is OK.
        predicted_peak_bytes: Peak predicted from profiling runs (SCREENED), never shown as measured.
        fidelity: Worst class among its methods and its micro-batching.
        loss_drift: Largest relative difference of the first losses from plain training, same seed and batches.
        guard: Comparison of its training with the reference run over some tens of steps.
        not_compared: Why there is no such comparison, when there should be one.
        trial_key: Key of the trial behind the measurement.
        comparison: Its short steps alternating with plain training's.
        speedup: Speedup over the baseline by timed steps that alternate with the baseline, or with a leader that did.
            Its measurement then states the baseline's throughput times this speedup.
        lead_spread: Half the width of the 95 % interval of its ratio to the fastest leader, relative, where leaders
            were compared in turn with each other before the answer; 0 for that one.
        gain_of_larger: Speedup of a larger batch of the same methods, alternating with it in one process.
        confirmed: Speedup of its emitted wrapper in a fresh process, where that was run.
        not_confirmed: Why it may not win although no alternating run shows that: it was no faster than the baseline
            measured right after it, or it was not run after a better candidate failed to be confirmed.
        model_size: ``bigger``: the arguments of ``build_model`` that set the size; empty for the model as it is.
        parameter_count: ``bigger``: parameters of the model at this size.
        one_sample_bytes: ``bigger``: peak that its profiling runs predict for one sample, never shown as measured.
    """

    policy: Policy
    role: Role
    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None
    predicted_peak_bytes: int | None = None
    fidelity: Fidelity
    loss_drift: float | None = None
    guard: FidelityMeasurement | None = None
    not_compared: str = ""
    notes: tuple[str, ...] = ()
    trial_key: str | None = None
    comparison: Comparison | None = None
    speedup: Speedup | None = None
    lead_spread: float | None = None
    gain_of_larger: Speedup | None = None
    confirmed: Speedup | None = None
    not_confirmed: str = ""
    model_size: dict[str, int | float] = {}
    parameter_count: int | None = None
    one_sample_bytes: int | None = None

    @property
    def measured(self) -> Measurement:
        """Its measurement; it must have one."""
        assert self.measurement is not None, "only measured candidates are ranked"
        return self.measurement

    @property
    def samples_per_second(self) -> float:
        """Measured throughput."""
        return self.measured.samples_per_second

    @property
    def loses_to_larger_batch(self) -> bool:
        """Whether a larger batch of the same methods was faster in alternating steps, by more than the standard error.

        A method must be proven worth it; of two batches the likelier one wins, since being wrong costs the same either
        way.
        """
        gain = self.gain_of_larger
        if gain is None or gain.value < 1 + _WORTH_A_LARGER_BATCH:
            return False
        return math.log(gain.value) > gain.standard_error

    @property
    def size_order(self) -> tuple[int, tuple[int | float, ...]]:
        """Sort key of sizes: parameters, then the values of the size."""
        return self.parameter_count or 0, tuple(self.model_size.values())


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost of one iteration of a policy; the policy's other measurements are in the ranking.

    Attributes:
        latency_seconds: Median time of an iteration.
        cost_usd: Price of the devices for that time, in US dollars.
        joules: Energy of all devices, where it was measured.
        energy_usd: Its price in US dollars, where both are known.
    """

    policy: Policy
    latency_seconds: float
    cost_usd: float
    joules: float | None = None
    energy_usd: float | None = None


class DominatedPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy that another one makes pointless.

    Attributes:
        by: Position in the frontier of the point that dominates it; ``None`` when its timing was ended early and no
            point dominates its early measurement.
        inside_noise: Whether that point is better only if differences inside the noise are left out.
    """

    point: FrontierPoint
    by: int | None
    inside_noise: bool


class Frontier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``cheapest``: the policies that no other beats in both cost and latency.

    Attributes:
        points: The cheapest first; each is faster and costs more than the one before.
        dominated: The others that may win, the cheapest first.
        pick: Position in ``points`` of the one that was picked.
        knee: Position in ``points`` of the one with the least cost x latency.
    """

    points: tuple[FrontierPoint, ...]
    dominated: tuple[DominatedPoint, ...]
    pick: int
    knee: int


class SizeOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one combination at one size.

    Attributes:
        outcome: How it ended; SCREENED ran nothing.
        reason: One line when the outcome is not OK, or it may not win all the same.
        samples_per_second: Measured at its best batch.
        samples_per_step: The best batch.
        peak_bytes: Measured peak at that batch.
        predicted_peak_bytes: Predicted peak where nothing was measured.
    """

    outcome: Outcome
    reason: str = ""
    samples_per_second: float | None = None
    samples_per_step: int | None = None
    peak_bytes: int | None = None
    predicted_peak_bytes: int | None = None


class SizeRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One size: plain training beside the winner's methods; ``None`` where it was not tried.

    Attributes:
        model_size: Arguments of ``build_model`` and ``make_batch``.
        winner: ``None`` throughout if the winner is plain training.
    """

    model_size: dict[str, int | float]
    parameter_count: int
    plain: SizeOutcome | None = None
    winner: SizeOutcome | None = None


class Growth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throughput and memory against the size.

    Attributes:
        rows: By growing size.
        plain: The largest size that plain training keeps the floor at, if any.
        own_parameter_count: Parameters of the model as it is.
        measure: What ``memory_per_unit`` counts: ``"parameter"``, or the size's arguments when parameters stay.
        memory_per_unit: Additional bytes per unit for one sample, fitted to the winner's profiling runs; ``None`` for
            fewer than two sizes.
        fits_up_to: Predicted: the most units that one sample with the winner's methods fits the limit with.
    """

    floor_samples_per_second: float
    rows: tuple[SizeRow, ...]
    plain: Candidate | None
    own_parameter_count: int | None
    measure: str = "parameter"
    memory_per_unit: float | None = None
    fits_up_to: float | None = None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer.

    Attributes:
        baseline: The user's own setting, if it could be measured.
        hand_tuned: The experienced person's setting, if it could be measured.
        ranking: Every measured candidate, best first; the winner is not always the first (ties go to the simpler).
        not_measured: Candidates that were refused, screened or failed, with reasons.
        refused_settings: Method setting -> reason, for settings that no policy could use here.
        tie: Whether the winner's gain over the baseline is inside the noise.
        noise: Relative noise used for the tie with the baseline.
        repeats: Relative difference between repetitions of the same policy, a part of the noise between any two.
        why: Sentences that explain the choice with measurements.
        untried: Number of combinations of the space that were not tried.
        untried_is_bound: Whether ``untried`` is a lower bound, in a space too large to count.
        stopped_because: Why the search ended.
    """

    winner: Candidate
    baseline: Candidate | None
    hand_tuned: Candidate | None
    ranking: tuple[Candidate, ...]
    not_measured: tuple[Candidate, ...]
    refused_settings: dict[str, str] = {}
    tie: bool
    noise: float
    why: tuple[str, ...] = ()
    untried: int = 0
    stopped_because: str = ""
    confirmation: Confirmation | None = None
    frontier: Frontier | None = None
    growth: Growth | None = None
    untried_is_bound: bool = False
    repeats: float = 0.0
