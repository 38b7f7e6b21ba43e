"""What the pictures of a page show, one record for each."""

from __future__ import annotations

from advisor.report.page.figure import Figure, Part, Source

__all__ = [
    "Comparison",
    "CourseStep",
    "Curve",
    "CurvePoint",
    "FrontierPart",
    "FrontierPlace",
    "GrowthPart",
    "MemoryTimeline",
    "PhaseTime",
    "SizePlace",
    "StepTime",
]


class CurvePoint(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A batch of a combination.

    Attributes:
        batch: Samples per optimizer step over all devices.
        policy: ID, where a policy of this study stands behind it.
    """

    batch: int
    micro_batch: int
    samples_per_second: Figure
    peak_bytes: Figure | None = None
    policy: str = ""


class Curve(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Throughput and memory against the batch, of one combination.

    Attributes:
        points: Measured and profiled ones, by growing batch.
        predicted: Points of the line that the profiling runs predict, by growing batch.
        out_of_memory_at: The smallest micro-batch that did not fit, if one was met.
    """

    combination: str
    name: str
    points: tuple[CurvePoint, ...] = ()
    predicted: tuple[CurvePoint, ...] = ()
    out_of_memory_at: int | None = None


class MemoryTimeline(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Live bytes over one optimizer step, by category, at moments in the order of its operators.

    Attributes:
        obtained: How, in words.
        phases: ``(position of its first moment, phase)``, in order.
        bytes: Category -> live bytes at each moment; all have the same length. Categories: ``parameters``,
            ``buffers``, ``gradients``, ``optimizer_state``, ``activations``, ``temporaries``, ``batch``.
        operator: The operator whose result made the largest moment.
        limit_bytes: The limit that the study ran under.
    """

    policy: str
    source: Source
    obtained: str
    micro_batch: int
    phases: tuple[tuple[int, str], ...]
    bytes: dict[str, tuple[int, ...]]
    operator: str = ""
    limit_bytes: int


class PhaseTime(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A phase of a step.

    Attributes:
        phase: ``"forward"``, ``"backward"``, ...
        bound: What most of it is bound by; empty where nothing tells it.
        seconds_by_bound: Its seconds by what bounds them.
        unbound: Why it cannot be told, or not more precisely.
    """

    phase: str
    seconds: float
    bound: str
    seconds_by_bound: dict[str, float]
    unbound: str = ""


class StepTime(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Where the time of a step goes.

    Attributes:
        seconds: The measured step.
        source: On one device the division is predicted from the work of the step's operators at the device's rates; on
            several it is measured, and only what bounds the operators is predicted.
        phases: That time, divided; on several devices, ``"communication"`` among them.
        obtained: How, in words.
        intensity: Floating-point operations for each byte that is moved.
    """

    policy: str
    seconds: Figure
    source: Source
    obtained: str
    phases: tuple[PhaseTime, ...]
    intensity: float


class FrontierPlace(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A policy in the plane of cost and latency.

    Attributes:
        on_frontier: Whether no other policy is cheaper and faster.
        by: Position in ``FrontierPart.places`` of the one that dominates it.
        inside_noise: Whether that one is better only if differences inside the noise are left out.
    """

    policy: str
    latency_seconds: Figure
    cost_usd: Figure
    energy_usd: float | None = None
    gpu_count: int
    on_frontier: bool = False
    by: int | None = None
    inside_noise: bool = False


class FrontierPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """``cheapest``: cost of an iteration against its time.

    Attributes:
        places: The frontier first, the cheapest first; then the others.
        pick: Position of the winner.
        knee: Position of the frontier's point with the least cost x latency, which is picked without a limit.
        usd_per_hour: Of one device.
        max_latency_seconds: The limits that were asked for; see :class:`~advisor.goal.Preference`.
    """

    places: tuple[FrontierPlace, ...]
    pick: int
    knee: int
    usd_per_hour: float
    price_source: str
    max_latency_seconds: float | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None
    iterations: int | None = None


class SizePlace(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A size of the model, with the baseline's methods or with the winner's.

    Attributes:
        who: ``"plain"``, which is the baseline, or ``"winner"``.
        size: In words.
    """

    who: str
    size: str
    parameter_count: int
    outcome: str
    reason: str = ""
    samples_per_second: Figure | None = None
    samples_per_step: int | None = None
    peak_bytes: Figure | None = None


class GrowthPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """``bigger``: throughput against the size. Every policy has its own ``parameter_count``, too.

    Attributes:
        own_parameter_count: Of the model as it is.
        fits_up_to: Predicted: the most that one sample fits the limit with, in what ``measure`` names.
    """

    floor_samples_per_second: float
    places: tuple[SizePlace, ...]
    own_parameter_count: int | None = None
    measure: str = "parameter"
    fits_up_to: Figure | None = None


class Comparison(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Losses of a candidate and of the reference run: same parameters, batches and seed in every step; measured.

    Attributes:
        policies: IDs of the policies of this combination.
        reference_name: What the reference run trained with.
        distinct_batches: How many batches are cycled through.
        gradient_error: Relative error of the first gradient; with ``gradient_cosine`` and ``gradient_norm_ratio``.
        gradient_reason: Why the gradients were not compared.
        chance: The reference run with other random numbers, where that was needed.
        verdict: In words.
    """

    combination: str
    name: str
    policies: tuple[str, ...]
    micro_batch: int
    reference_name: str
    reference: tuple[float, ...]
    losses: tuple[float, ...]
    chance: tuple[float, ...] = ()
    distinct_batches: int
    source: Source = Source.MEASURED
    gradient_error: float | None = None
    gradient_cosine: float | None = None
    gradient_norm_ratio: float | None = None
    gradient_reason: str = ""
    loss_drift: float | None = None
    declared: str
    observed: str
    verdict: str


class CourseStep(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A policy in the order in which the search tried them.

    Attributes:
        number: From 1.
        ended_at_seconds: When its trial ended, since the study's first trial began; absent where that was not recorded.
        took_seconds: How long its trial took, with the start of its process.
        best: ID of the best policy so far by the goal's metric; empty before the first measurement.
    """

    number: int
    policy: str
    ended_at_seconds: float | None = None
    took_seconds: float | None = None
    best: str = ""
