"""The document that a report page embeds: everything that its pictures and tables show, as raw numbers and ready text.

Numbers are in bytes, seconds, samples per second and US dollars. Every one that was measured, predicted or simulated
says which in its ``source``; a field that is not there was not obtained. Fields with their default are left out.
"""

from __future__ import annotations

import msgspec

from advisor.report.page.figure import Figure, Part, Source
from advisor.report.page.pictures import (
    Comparison,
    CourseStep,
    Curve,
    FrontierPart,
    GrowthPart,
    MemoryTimeline,
    StepTime,
)

__all__ = [
    "PAGE_SCHEMA",
    "AnswerPart",
    "Device",
    "Gain",
    "GoalPart",
    "Memory",
    "PageDocument",
    "PagePolicy",
    "PageStudy",
    "Refusal",
    "Verdict",
]

PAGE_SCHEMA = 1
"""Grows when a field changes its meaning or goes; new fields alone do not change it."""


class GoalPart(Part, frozen=True, kw_only=True, omit_defaults=True):
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


class Device(Part, frozen=True, kw_only=True, omit_defaults=True):
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


class Gain(Part, frozen=True, kw_only=True, omit_defaults=True):
    """How much the answer brings.

    Attributes:
        times: The winner's metric over the baseline's; for ``cheapest`` its cost, which is below 1 for the better.
        metric: ``"samples per second"``, ``"cost"`` or ``"parameters"``.
        against: The baseline in words.
        words: All of it in a few words.
        tie: Whether it is inside the noise.
        at_least: Whether the ends of ``times`` are so far apart that only the lower one counts.
    """

    times: Figure
    metric: str
    against: str
    words: str
    tie: bool = False
    at_least: bool = False


class Verdict(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the emitted wrapper, run in a fresh process, did what was promised.

    Attributes:
        state: ``"confirmed"``, ``"not confirmed"`` or ``"not run"``.
        words: The sentences.
    """

    state: str
    words: str
    samples_per_second: Figure | None = None
    peak_bytes: Figure | None = None


class AnswerPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What to do.

    Attributes:
        headline: It in one line.
        policy: ID of the winner.
        baseline: ID of the baseline, if it was measured.
        hand_tuned: ID of the hand-tuned default, likewise.
        facts: What it brings, whether that was confirmed, what it needs: ``(label, words)`` as the command prints them.
        why: Sentences.
        apply_lines: Lines of Python that apply the wrapper.
        wrapper: Content of ``wrapper.py``, as numbers of ``PageStudy.lines``.
        policy_file: Content of ``policy.yaml``, likewise.
        files: Description -> path of each file of the study.
        commands: Label -> a command to copy.
        calls: Label -> lines of a program to copy, as numbers of ``PageStudy.lines``, where functions were tuned.
    """

    headline: str
    policy: str
    baseline: str = ""
    hand_tuned: str = ""
    gain: Gain | None = None
    verdict: Verdict | None = None
    facts: tuple[tuple[str, str], ...] = ()
    why: tuple[str, ...] = ()
    apply_lines: tuple[str, ...] = ()
    wrapper: tuple[int, ...] = ()
    policy_file: tuple[int, ...] = ()
    files: dict[str, str] = msgspec.field(default_factory=dict)
    commands: dict[str, str] = msgspec.field(default_factory=dict)
    calls: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)


class Memory(Part, frozen=True, kw_only=True, omit_defaults=True):
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


class PagePolicy(Part, frozen=True, kw_only=True, omit_defaults=True):
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
        limit_bytes: What each of its devices may take, where they share one memory.
        speedup: Over the baseline in alternating steps.
        cost_usd: ``cheapest``: of one iteration.
        stopped: Why its timing ended.
        comparison: Its steps in turn with another policy's, in words.
        fidelity: Class of its methods.
        observed_fidelity: The class that its training showed, or ``"broken"``; empty where it was not compared.
        loss_drift: Largest relative difference of its first losses from plain training's.
        wrapper: Content of its ``wrapper.py``, as numbers of ``PageStudy.lines``.
        command: Searches its methods alone.
        verify_command: Measures exactly this policy: on one device beside the baseline, on several as the only trial
            of a search.
        call: Instead of ``command`` the lines of a program, as numbers of ``PageStudy.lines``, where functions were
            tuned: no command names them.
        verify_call: Likewise; measures it as the only trial of a search.
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
    limit_bytes: int | None = None
    predicted_peak_bytes: Figure | None = None
    predicted_samples_per_second: Figure | None = None
    speedup: Figure | None = None
    comparison: str = ""
    cost_usd: Figure | None = None
    joules_per_step: Figure | None = None
    fidelity: str
    observed_fidelity: str = ""
    loss_drift: float | None = None
    model_size: dict[str, int | float] = msgspec.field(default_factory=dict)
    parameter_count: int | None = None
    notes: tuple[str, ...] = ()
    wrapper: tuple[int, ...] = ()
    command: str = ""
    verify_command: str = ""
    call: tuple[int, ...] = ()
    verify_call: tuple[int, ...] = ()


class Refusal(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A setting that no policy could use here."""

    setting: str
    reason: str


class PageStudy(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A study.

    Attributes:
        id: Names it in the document.
        title: Workload and device.
        lines: Lines of text that wrappers and policy files share; these are lists of their numbers.
        asked: Option -> value, what was asked for.
        command: The command that asks for it again.
        call: Instead of it the lines of a program, as numbers of ``lines``, where functions were tuned.
        memory_limit_bytes: Of one device.
        complete: Whether the search ended by itself.
        untried: Combinations that were not tried (at least as many if ``untried_is_bound``).
        not_divided: Why the step of winner or baseline is not in ``time_of_step``, in sentences.
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
    asked: dict[str, str | int | float] = msgspec.field(default_factory=dict)
    command: str = ""
    call: tuple[int, ...] = ()
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
    not_divided: tuple[str, ...] = ()
    frontier: FrontierPart | None = None
    growth: GrowthPart | None = None
    comparisons: tuple[Comparison, ...] = ()
    course: tuple[CourseStep, ...] = ()
    refused: tuple[Refusal, ...] = ()
    time_spent: dict[str, float] = msgspec.field(default_factory=dict)
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
