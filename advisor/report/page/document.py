"""The document that a report page embeds: everything that its pictures and tables show, as raw numbers and ready text.

Numbers are in bytes, seconds, samples per second and US dollars. Every one that was measured, predicted or simulated
says which in its ``source``; a field that is not there was not obtained. Fields with their default are left out.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = [
    "PAGE_SCHEMA",
    "AnswerPart",
    "Comparison",
    "CourseStep",
    "Curve",
    "CurvePoint",
    "Device",
    "Figure",
    "FrontierPart",
    "FrontierPlace",
    "Gain",
    "GoalPart",
    "GrowthPart",
    "Memory",
    "MemoryTimeline",
    "PageDocument",
    "PagePolicy",
    "PageStudy",
    "PhaseTime",
    "Refusal",
    "SizePlace",
    "Source",
    "StepTime",
    "Verdict",
]

PAGE_SCHEMA = 1
"""Grows when a field changes its meaning or goes; new fields alone do not change it."""


class Source(enum.Enum):
    """How a number was obtained."""

    MEASURED = "measured"
    """By a timed trial."""
    PROFILED = "profiled"
    """Measured, by a few steps of a profiling run: rough."""
    PREDICTED = "predicted"
    """By a model or a trace; nothing of it ran."""
    SIMULATED = "simulated"
    """On a device in software."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the document."""


class Figure(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A number with its 95 % interval, where that is known."""

    value: float
    low: float | None = None
    high: float | None = None
    source: Source


class GoalPart(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for.

    Attributes:
        kind: ``"faster"``, ``"bigger"`` or ``"cheapest"``.
        words: It as a sentence.
        fidelity: The worst class of method that may win.
        global_batch: Samples per optimizer step, where they are fixed.
        floor_samples_per_second: ``bigger``: the throughput to keep.
        own_settings: Where the baseline was read from, if it is the user's own settings.
    """

    kind: str
    words: str
    fidelity: str
    global_batch: int | None = None
    floor_samples_per_second: float | None = None
    own_settings: str = ""


class Device(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """The machine.

    Attributes:
        kind: ``"cpu"`` or ``"cuda"``.
        count: Devices of this kind that were visible.
    """

    kind: str
    name: str
    memory_bytes: int
    count: int
    host_cores: int
    host_memory_bytes: int
    compute_capability: str = ""
    driver: str = ""


class Gain(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """How much the answer brings.

    Attributes:
        times: The winner's metric over the baseline's; for ``cheapest`` its cost, which is below 1 for the better.
        metric: ``"samples per second"``, ``"cost"`` or ``"parameters"``.
        against: The baseline in words.
        words: All of it in a few words.
        tie: Whether it is inside the noise.
    """

    times: Figure
    metric: str
    against: str
    words: str
    tie: bool = False


class Verdict(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the emitted wrapper, run in a fresh process, did what was promised.

    Attributes:
        state: ``"confirmed"``, ``"not confirmed"`` or ``"not run"``.
        words: The sentences.
    """

    state: str
    words: str
    samples_per_second: Figure | None = None
    peak_bytes: Figure | None = None


class AnswerPart(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """What to do.

    Attributes:
        headline: It in one line.
        policy: ID of the winner.
        baseline: ID of the baseline, if it was measured.
        hand_tuned: ID of the hand-tuned default, likewise.
        why: Sentences.
        apply_lines: Lines of Python that apply the wrapper.
        wrapper: Content of ``wrapper.py``, as numbers of ``PageStudy.lines``.
        policy_file: Content of ``policy.yaml``, likewise.
        files: Description -> path of each file of the study.
        commands: Label -> a command to copy.
    """

    headline: str
    policy: str
    baseline: str = ""
    hand_tuned: str = ""
    gain: Gain | None = None
    verdict: Verdict | None = None
    why: tuple[str, ...] = ()
    apply_lines: tuple[str, ...] = ()
    wrapper: tuple[int, ...] = ()
    policy_file: tuple[int, ...] = ()
    files: dict[str, str] = {}
    commands: dict[str, str] = {}


class Memory(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Device memory of one optimizer step, in bytes.

    Attributes:
        activations: What the forward pass keeps for the backward pass.
        forward_peak: Largest live bytes of each phase, of everything.
    """

    source: Source
    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int
    forward_peak: int
    backward_peak: int
    optimizer_peak: int
    workspace: int = 0


class PagePolicy(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A policy that was tried.

    Attributes:
        id: Names it in this study.
        combination: ID of its combination: methods, devices and size, at any batch.
        name: In words.
        methods: In words, one by one; none for plain training.
        samples_per_step: Over all devices and passes.
        devices: How several devices share the work, in words.
        rank: From 1; absent where it was not measured.
        roles: ``"winner"``, ``"baseline"``, ``"hand-tuned"``.
        outcome: How its trial ended, as :class:`~advisor.trial.outcome.Outcome` names it.
        reason: Why, where the outcome is not ``ok``; or why it may not win.
        step_seconds: Of an optimizer step.
        predicted_peak_bytes: From its profiling runs.
        predicted_samples_per_second: Likewise, or from a comparison in turns.
        speedup: Over the baseline in alternating steps.
        cost_usd: ``cheapest``: of one iteration.
        stopped: Why its timing ended.
        comparison: Its steps in turn with another policy's, in words.
        fidelity: Class of its methods.
        observed_fidelity: The class that its training showed, or ``"broken"``; empty where it was not compared.
        loss_drift: Largest relative difference of its first losses from plain training's.
        wrapper: Content of its ``wrapper.py``, as numbers of ``PageStudy.lines``.
        command: Starts a training with the wrapper, or measures the policy alone.
    """

    id: str
    combination: str
    name: str
    methods: tuple[str, ...] = ()
    micro_batch: int
    accumulation_steps: int = 1
    gpu_count: int = 1
    samples_per_step: int
    devices: str = ""
    rank: int | None = None
    roles: tuple[str, ...] = ()
    outcome: str
    reason: str = ""
    source: Source | None = None
    samples_per_second: Figure | None = None
    step_seconds: Figure | None = None
    timed_steps: int | None = None
    stopped: str = ""
    tokens_per_second: float | None = None
    peak_bytes: Figure | None = None
    memory: Memory | None = None
    predicted_peak_bytes: Figure | None = None
    predicted_samples_per_second: Figure | None = None
    speedup: Figure | None = None
    comparison: str = ""
    cost_usd: Figure | None = None
    joules_per_step: Figure | None = None
    fidelity: str
    observed_fidelity: str = ""
    loss_drift: float | None = None
    model_size: dict[str, int | float] = {}
    parameter_count: int | None = None
    notes: tuple[str, ...] = ()
    wrapper: tuple[int, ...] = ()
    command: str = ""


class CurvePoint(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class Curve(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class MemoryTimeline(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class PhaseTime(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A phase of a step.

    Attributes:
        phase: ``"forward"``, ``"backward"``, ...
        bound: What most of it is bound by.
        seconds_by_bound: Its seconds by what bounds them.
    """

    phase: str
    seconds: float
    bound: str
    seconds_by_bound: dict[str, float]


class StepTime(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """Where the time of a step goes.

    Attributes:
        seconds: The measured step.
        phases: That time, divided by the work of the step's operators at the device's rates; so a prediction.
        obtained: How, in words.
        intensity: Floating-point operations for each byte that is moved.
    """

    policy: str
    seconds: Figure
    source: Source
    obtained: str
    phases: tuple[PhaseTime, ...]
    intensity: float


class FrontierPlace(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class FrontierPart(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class SizePlace(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A size of the model, with plain training or with the winner's methods.

    Attributes:
        who: ``"plain"`` or ``"winner"``.
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


class GrowthPart(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class Comparison(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class CourseStep(_Part, frozen=True, kw_only=True, omit_defaults=True):
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


class Refusal(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A setting that no policy could use here."""

    setting: str
    reason: str


class PageStudy(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """A study.

    Attributes:
        id: Names it in the document.
        title: Workload and device.
        lines: Lines of text that wrappers and policy files share; these are lists of their numbers.
        asked: Option -> value, what was asked for.
        command: The command that asks for it again.
        memory_limit_bytes: Of one device.
        complete: Whether the search ended by itself.
        untried: Combinations that were not tried (at least as many if ``untried_is_bound``).
        time_spent: Activity -> seconds of the run.
        missing: What this page cannot show of the study and why, in sentences.
    """

    id: str
    title: str
    workload: str
    goal: GoalPart
    date: str
    folder: str
    versions: dict[str, str]
    device: Device
    memory_limit_bytes: int
    asked: dict[str, str | int | float] = {}
    command: str = ""
    complete: bool = True
    stopped_because: str = ""
    untried: int = 0
    untried_is_bound: bool = False
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    answer: AnswerPart
    policies: tuple[PagePolicy, ...]
    throughput: tuple[Curve, ...] = ()
    memory_over_step: tuple[MemoryTimeline, ...] = ()
    time_of_step: tuple[StepTime, ...] = ()
    frontier: FrontierPart | None = None
    growth: GrowthPart | None = None
    comparisons: tuple[Comparison, ...] = ()
    course: tuple[CourseStep, ...] = ()
    refused: tuple[Refusal, ...] = ()
    time_spent: dict[str, float] = {}
    lines: tuple[str, ...] = ()


class PageDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole page.

    Attributes:
        version: Of momadvise, which made the page.
        made: Day, ISO format.
    """

    schema: int = PAGE_SCHEMA
    version: str
    made: str
    studies: tuple[PageStudy, ...]
