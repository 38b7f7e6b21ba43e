"""A finished study as its part of the document."""

from __future__ import annotations

import contextlib
import hashlib

import msgspec

from advisor.decide.answer import Answer
from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.score import gain_over, score
from advisor.goal import Goal, GoalKind
from advisor.methods.setting import label_words
from advisor.policy.wrapper import apply_lines, size_lines
from advisor.report.answer import confirmation_words
from advisor.report.headline import NOTHING_RAN, gain_is_open, headline_lines, title_words
from advisor.report.page.course import course
from advisor.report.page.document import AnswerPart, Device, Gain, GoalPart, PageStudy, Refusal, Verdict
from advisor.report.page.figure import Figure, Source, simulated
from advisor.report.page.finished import FinishedStudy
from advisor.report.page.losses import comparisons
from advisor.report.page.step_views import memory_over_step, not_divided, time_of_step
from advisor.report.page.throughput import curves
from advisor.report.page.tradeoffs import frontier_part, growth_part
from advisor.report.page.tried import Lines, Tried, figure_of_rate, figure_of_speedup
from advisor.report.wording import baseline_words, confirmed_beyond, promise_words
from advisor.search.space.space_file import load_space
from advisor.text.paths import as_seen_from_here
from advisor.text.units import format_spread, format_times
from advisor.trial.outcome import Outcome

__all__ = ["study_part"]

_GOALS = {
    GoalKind.FASTER: "the most samples per second",
    GoalKind.BIGGER: "the largest model that keeps a throughput",
    GoalKind.CHEAPEST: "the least cost of an iteration against its time",
}
_METRICS = {
    GoalKind.FASTER: "samples per second",
    GoalKind.BIGGER: "parameters",
    GoalKind.CHEAPEST: "cost",
}


def study_part(study: FinishedStudy, name: str) -> PageStudy:
    """Everything that a page shows of it.

    Args:
        study: The study.
        name: Its ID in the document.
    """
    answer, tried, lines = study.answer, Tried(study), Lines()
    found, goal = answer.recommendation, answer.goal
    answer_part = _answer(study, tried, lines)
    memory, times = tuple(memory_over_step(tried)), tuple(time_of_step(tried))
    compared, steps = tuple(comparisons(tried)), tuple(course(tried))
    again = tried.commands.of_study()
    part = PageStudy(
        id=name,
        title=f"{answer.workload} on {answer.hardware.title}",
        workload=answer.workload,
        goal=_goal(answer),
        date=answer.date,
        folder=str(as_seen_from_here(study.folder.path)),
        versions=answer.versions,
        device=_device(answer),
        memory_limit_bytes=goal.memory_limit_bytes,
        asked=_asked(study),
        command=again.command,
        call=lines.numbered_lines(again.lines),
        complete=answer.complete,
        stopped_because=found.stopped_because.partition(";")[0],
        untried=found.untried,
        untried_is_bound=found.untried_is_bound,
        notes=(*answer.notes, *found.winner.notes),
        answer=answer_part,
        policies=tuple(tried.policies(lines)),
        throughput=tuple(curves(tried)),
        memory_over_step=memory,
        time_of_step=times,
        not_divided=tuple(not_divided(tried, times)),
        frontier=frontier_part(found, goal, tried),
        growth=growth_part(found),
        comparisons=compared,
        course=steps,
        refused=tuple(
            Refusal(setting=label_words(label), reason=reason) for label, reason in found.refused_settings.items()
        ),
        time_spent=answer.timings,
        lines=lines.lines,
    )
    part = msgspec.structs.replace(part, missing=tuple(_missing(part)))
    return simulated(part) if answer.hardware.simulated else part


def _asked(study: FinishedStudy) -> dict[str, str | int | float]:
    """What was asked for; a search space by its name, of which the record has the digest."""
    asked = {name: value for name, value in study.asked.items() if value is not None}
    typed = {flag.removeprefix("--").replace("-", "_"): value for flag, value in study.options.items()}
    space = load_space("default").canonical_text.encode()
    if asked.get("search_space") == hashlib.sha256(space).hexdigest()[:8]:
        asked["search_space"] = "default"
    return {**asked, **typed}


def _missing(part: PageStudy) -> list[str]:
    """What the page cannot show, and why."""
    sentences = []
    if not part.memory_over_step:
        sentences.append(
            "Memory over one step was not recorded: the steps of winner and baseline are traced at the end of a study, "
            "if time is left. What was measured at the ends of their phases is shown instead."
        )
    if not part.time_of_step:
        sentences.append(
            "Where the time of a step goes is not known: on one device it needs a traced step and the device's rates, "
            "on several some steps that a profiler watched. Both are made at the end of a study, if time is left. "
            + " ".join(part.not_divided)
        )
    if not part.comparisons:
        sentences.append("No losses were compared with a reference run over tens of steps.")
    if part.course and all(one.ended_at_seconds is None for one in part.course):
        sentences.append("When each trial ended was not recorded: the course of the search has its order alone.")
    return sentences


def _goal(answer: Answer) -> GoalPart:
    goal, growth = answer.goal, answer.recommendation.growth
    return GoalPart(
        kind=goal.kind.value,
        words=_GOALS[goal.kind],
        fidelity=goal.fidelity.value,
        global_batch=goal.global_batch,
        floor_samples_per_second=None if growth is None else growth.floor_samples_per_second,
        own_settings=goal.own_settings,
    )


def _device(answer: Answer) -> Device:
    hardware = answer.hardware
    return Device(
        kind=hardware.kind.value,
        name=hardware.title,
        memory_bytes=hardware.memory_bytes,
        count=hardware.device_count,
        host_cores=hardware.host_cores,
        host_memory_bytes=hardware.host_memory_bytes,
        compute_capability=".".join(map(str, hardware.compute_capability or ())),
        driver=hardware.driver_version or "",
    )


def _answer(study: FinishedStudy, tried: Tried, lines: Lines) -> AnswerPart:
    answer = study.answer
    found = answer.recommendation
    winner = found.winner
    policy_file, commands = _policy_file(study), tried.commands.of_answer()
    return AnswerPart(
        headline=title_words(found),
        facts=tuple(
            (one.label, one.words)
            for one in headline_lines(found, answer.goal, beyond=confirmed_beyond(found, answer.goal))
        ),
        policy=tried.id_of(winner),
        baseline=tried.id_of(found.baseline),
        hand_tuned=tried.id_of(found.hand_tuned),
        gain=_gain(found, answer.goal),
        verdict=_verdict(found, answer.goal),
        why=found.why,
        apply_lines=(
            *size_lines(winner.model_size, answer.facts.size_arguments),
            *apply_lines(winner.policy, answer.facts.workload_options, answer.goal.machines),
        ),
        wrapper=lines.numbered(tried.wrapper(winner)),
        policy_file=() if policy_file is None else lines.numbered(policy_file),
        files=_files(study),
        commands={label: one.command for label, one in commands.items() if one.command},
        calls={label: lines.numbered_lines(one.lines) for label, one in commands.items() if one.lines},
    )


def _policy_file(study: FinishedStudy) -> str | None:
    """The text of ``policy.yaml``, if it is still the one that this answer wrote."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        content = study.folder.policy.read_bytes()
        if hashlib.sha256(content).hexdigest() == study.answer.digests.get(study.folder.policy.name):
            return content.decode()
    return None


def _files(study: FinishedStudy) -> dict[str, str]:
    """Its files where they are now, as they would be typed from here."""
    found = study.answer.files
    return {what: str(as_seen_from_here(study.folder.path / path.name)) for what, path in found.items()}


def _gain(found: Recommendation, goal: Goal) -> Gain | None:
    """What the winner brings over the baseline, from the confirmation where that took turns with it."""
    winner, baseline = found.winner, found.baseline
    if baseline is None or baseline.measurement is None or winner == baseline:
        return None
    promise = None if found.confirmation is None else found.confirmation.promise
    against = baseline_words(baseline, goal)
    if goal.kind is GoalKind.FASTER and promise is not None:
        return Gain(
            times=figure_of_speedup(promise),
            metric=_METRICS[goal.kind],
            against=against,
            words=promise_words(promise, baseline.samples_per_second),
            tie=found.tie,
            at_least=promise.is_unsteady and promise.low > 1,
        )
    times = _times(winner, baseline, goal)
    if times is None:
        return None
    words = {
        GoalKind.FASTER: f"{format_times(times)} the baseline's samples per second",
        GoalKind.BIGGER: f"{format_times(times)} the size of the baseline's model",
        GoalKind.CHEAPEST: f"{format_times(times)} the baseline's cost of an iteration",
    }[goal.kind]
    if found.tie:
        words += f", a tie: {format_spread(found.noise)} would be noise"
    return Gain(
        times=Figure(value=times, source=Source.MEASURED),
        metric=_METRICS[goal.kind],
        against=against,
        words=words,
        tie=found.tie,
    )


def _times(winner: Candidate, baseline: Candidate, goal: Goal) -> float | None:
    if goal.kind is GoalKind.BIGGER:
        gain = gain_over(winner, baseline, goal)
        return None if gain is None else 1 + gain
    return score(winner, goal) / score(baseline, goal)


def _verdict(found: Recommendation, goal: Goal) -> Verdict | None:
    confirmation = found.confirmation
    if confirmation is None:
        return None
    measured, beyond = confirmation.measurement, confirmed_beyond(found, goal)
    state = "not run" if confirmation.outcome in NOTHING_RAN else "not confirmed"
    kept = confirmation.outcome is Outcome.OK and confirmation.as_promised and beyond is None
    if measured is not None and kept and not gain_is_open(found):
        state = "confirmed"
    floor = None if found.growth is None else found.growth.floor_samples_per_second
    return Verdict(
        state=state,
        words=confirmation_words(confirmation, floor=floor, beyond=beyond, open_gain=gain_is_open(found)),
        samples_per_second=None if measured is None else figure_of_rate(measured),
        peak_bytes=None if measured is None else Figure(value=measured.memory.peak_bytes, source=Source.MEASURED),
    )
