"""A candidate: one policy with all that is known of it, and the recommendation made from many."""

from __future__ import annotations

import enum

import msgspec

from advisor.measure.measurement import Measurement
from advisor.policy.policy import Policy
from advisor.problem.goal import Fidelity
from advisor.trial.outcome import Outcome

__all__ = ["Candidate", "Confirmation", "DominatedPoint", "Frontier", "FrontierPoint", "Recommendation", "Role"]


class Role(enum.Enum):
    """Why a candidate is in the table whatever its rank."""

    BASELINE = "baseline"
    """The user's own setting: no methods, at ``BATCH_SIZE`` or else at the largest batch that fits."""
    HAND_TUNED = "hand-tuned"
    """The setting that an experienced person would pick without measuring."""
    SEARCHED = "searched"


class Candidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy and what became of it.

    Attributes:
        policy: The policy.
        role: Why it was tried.
        outcome: How its trial ended; SCREENED and REFUSED ran nothing.
        reason: One line when the outcome is not OK.
        measurement: The figures when the outcome is OK.
        predicted_peak_bytes: Peak predicted from short runs (SCREENED), never shown as measured.
        fidelity: Worst class among its methods and its micro-batching.
        loss_drift: Largest relative difference of the first losses from plain training, same seed and batches;
            ``None`` when it was not measured.
        notes: What its methods said.
        trial_key: Key of the trial behind the figures.
        model_size: ``bigger``: the arguments of ``build_model`` that set the size; empty for the model as it is.
        parameter_count: ``bigger``: parameters of the model at this size.
    """

    policy: Policy
    role: Role
    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None
    predicted_peak_bytes: int | None = None
    fidelity: Fidelity
    loss_drift: float | None = None
    notes: tuple[str, ...] = ()
    trial_key: str | None = None
    model_size: dict[str, int | float] = {}
    parameter_count: int | None = None


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The emitted wrapper, run in a fresh process.

    Attributes:
        outcome: How the run ended.
        reason: Why, when not OK; or why no run was made.
        measurement: Its figures when OK.
        promised_samples_per_second: What the search had measured.
        baseline_samples_per_second: The baseline measured again in the same way right after, if time allowed.
    """

    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None
    promised_samples_per_second: float
    baseline_samples_per_second: float | None = None

    @property
    def kept(self) -> float | None:
        """Confirmed / promised throughput."""
        if self.measurement is None:
            return None
        return self.measurement.samples_per_second / self.promised_samples_per_second


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one iteration of a policy costs; the policy's other figures are in the ranking.

    Attributes:
        policy: The policy.
        latency_seconds: Median time of an iteration.
        cost_usd: Price x devices x time, in US dollars.
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
        point: The policy and its figures.
        by: Position in the frontier of the point that dominates it; ``None`` when its timing was ended early and no
            point dominates the early figure.
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


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer.

    Attributes:
        winner: The candidate to train with.
        baseline: The user's own setting, if it could be measured.
        hand_tuned: The experienced person's setting, if it could be measured.
        ranking: Every measured candidate, best first; the winner is not always the first (ties go to the simpler).
        not_measured: Candidates that were refused, screened or failed, with reasons.
        refused_settings: Method setting -> reason, for settings that no policy could use here.
        tie: Whether the winner's gain over the baseline is inside the noise.
        noise: Relative noise used for ties.
        why: Sentences that explain the choice with figures.
        untried: How many combinations of the space were not tried.
        stopped_because: Why the search ended.
        confirmation: The fresh run of the wrapper.
        frontier: ``cheapest``: the frontier that the winner is a point of.
    """

    winner: Candidate
    baseline: Candidate | None
    hand_tuned: Candidate | None
    ranking: tuple[Candidate, ...]
    not_measured: tuple[Candidate, ...]
    refused_settings: dict[str, str]
    tie: bool
    noise: float
    why: tuple[str, ...]
    untried: int
    stopped_because: str
    confirmation: Confirmation | None = None
    frontier: Frontier | None = None
