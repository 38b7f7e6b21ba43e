"""What to train with: momadvise's advice compared with that of others, for each goal of Liu et al. 2023.

    python -m benchmarks.papers.advice --size smoke
    python -m benchmarks.papers.advice --size paper --device cuda

No paper has these values. All contenders get the same model, device and memory. One harness then measures their
answers, regardless of what they measured themselves, relative to the unmodified file: plain training at its own batch
size, measured in the same call. *hand-tuned* is bf16 autocast, the fused optimizer, compiled blocks and the largest
batch that fits, without bf16 if a short trial shows that it is slower than 32 bits. *accelerate* is plain training at
the batch size found by its `find_executable_batch_size`, which tries 128 and less. *grid* is the best of a recorded
exhaustive table. Such tables exist for small models on a CPU, each with its own memory limit; these models come first,
for `faster`, so that all contenders can be compared with a known optimum. Trials are the policies or batches that were
run to find the answer. Wall seconds are the time until the answer, as a user would wait for it, excluding the harness.
`faster` compares samples per second; `cheapest` device-seconds per iteration at the file's own batch size, on one
device; `bigger` the size of the model (in parameters, or if these do not change in the product of the arguments that
do) that keeps half of the unmodified throughput. At size paper a call stops after eight minutes, and the next one
continues; momadvise has 90 seconds per question instead of its default of 210. `--patience` multiplies both.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.goal import GoalKind
from advisor.hardware.hardware import DeviceKind
from advisor.policy.policy import Policy
from advisor.trial.process.fork_client import servers_are_kept
from advisor.trial.process.runner import Runner
from advisor.trial.result import TimeResult
from benchmarks.papers import contenders
from benchmarks.papers.arena import FLOOR, Arena, Contest, Found
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.runs import WORKLOADS, figure, why
from benchmarks.papers.units import Known, Unit, run_units
from benchmarks.search.recordings import RECORDINGS

__all__ = ["main", "run"]

_PAPER = "advice"
_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_TELLING = "samples/s"
"""The column that tells whether an answer was measured."""

_TRIAL_SECONDS = 150.0
"""Time limit of a trial: compiling the blocks of a model may take more than a minute."""

_ANSWER_SECONDS = 120.0
"""Time that must be left for a contender to start. Most answers take less; one that is cut short starts over."""

_GAIN = "throughput / untouched"

_BEHIND = 1.02
"""A contender further ahead of momadvise's answer than this is named next to it, with the reason."""

_UNTOUCHED, _HAND_TUNED, _ACCELERATE, _GRID, _MOMADVISE = "untouched", "hand-tuned", "accelerate", "grid", "momadvise"
_CONTENDERS = (_UNTOUCHED, _HAND_TUNED, _ACCELERATE, _GRID, _MOMADVISE)


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model to ask about.

    Attributes:
        name: Its name.
        workload: Its file.
        limit_bytes: Memory limit, or ``None`` for what is free.
        goals: The goals.
        kind: Kind of device to run on; ``None`` for all.
    """

    name: str
    workload: Path
    limit_bytes: int | None = None
    goals: tuple[GoalKind, ...] = tuple(GoalKind)
    kind: DeviceKind | None = None


def _recorded(name: str, recording: str) -> _Model:
    """A model with a recorded exhaustive table; its limit is below the size of a GPU context."""
    known = RECORDINGS[recording]
    return _Model(
        name=name,
        workload=known.workload,
        limit_bytes=known.limit_bytes,
        goals=(GoalKind.FASTER,),
        kind=DeviceKind.CPU,
    )


class _Size(msgspec.Struct, frozen=True, kw_only=True):
    """The questions, and the options of the contenders.

    Attributes:
        models: The models.
        seconds: How long steps are timed.
        compiled: Whether the hand-tuned default compiles.
        first: The batch that accelerate begins with; its own default is 128.
        space: momadvise's search space.
        trials: momadvise's most trials.
        time_limit_seconds: momadvise's time limit.
    """

    models: tuple[_Model, ...]
    seconds: float
    compiled: bool
    first: int = 128
    space: str
    trials: int
    time_limit_seconds: float


_SIZES = {
    "smoke": _Size(
        models=(_Model(name="tiny transformer", workload=WORKLOADS / "tiny_transformer.py", limit_bytes=8 * 2**20),),
        seconds=0.2,
        compiled=False,
        first=40,
        space="smoke",
        trials=2,
        time_limit_seconds=8.0,
    ),
    "paper": _Size(
        models=(
            _recorded("small GPT-2", "gpt2"),
            _recorded("small BERT", "bert"),
            _recorded("small ResNet", "resnet"),
            _recorded("small U-Net", "unet"),
            _Model(name="GPT-2", workload=_EXAMPLES / "gpt2.py"),
            _Model(name="BERT", workload=WORKLOADS / "bert_sizes.py"),
            _Model(name="ResNet-50", workload=_EXAMPLES / "resnet50.py"),
            _Model(name="U-Net", workload=_EXAMPLES / "unet.py"),
        ),
        seconds=3.0,
        compiled=True,
        space="default",
        trials=40,
        time_limit_seconds=90.0,
    ),
}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[list[Figure]]:
    size = _SIZES[options.size]
    asked = [
        (Contest(model=one.name, workload=one.workload, goal=goal, limit_bytes=one.limit_bytes), who)
        for goal in GoalKind
        for one in size.models
        if goal in one.goals and one.kind in (None, options.hardware.kind)
        for who in _CONTENDERS
    ]
    # Only tests load torch once for all: users of momadvise wait for it too.
    kept = servers_are_kept() if options.size == "smoke" else contextlib.nullcontext()
    with kept, tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        yield from run_units(options, _PAPER, [_unit(options, runner, size, *one) for one in asked])


def _unit(options: Options, runner: Runner, size: _Size, contest: Contest, who: str) -> Unit:
    def make(known: Known) -> Iterator[Figure]:
        arena = Arena(runner, options, contest, seconds=size.seconds, time_limit_seconds=_TRIAL_SECONDS)
        untouched = Policy(micro_batch=contest.own_batch)
        found = Found(policy=untouched) if who == _UNTOUCHED else _asked(who, arena, size)
        # Ratios are between runs of one call: a repeated run is answered from the runner's folder.
        base = None if found.policy is None else arena.time(untouched)
        figures = list(_of(arena, who, found, base))
        if who == _MOMADVISE and contest.goal is GoalKind.FASTER:
            figures = _explained(contest, figures, found, known)
        return iter(figures)

    table, row = _place(contest, who)
    return Unit(table=table, row=row, column=_TELLING, make=make, needed_seconds=options.at_most(_ANSWER_SECONDS))


def _place(contest: Contest, who: str) -> tuple[str, str]:
    return contest.goal.value, f"{contest.model}, {who}"


def _asked(who: str, arena: Arena, size: _Size) -> Found:
    """Ask a contender."""
    if who == _HAND_TUNED:
        return contenders.hand_tuned(arena, compiled=size.compiled)
    if who == _ACCELERATE:
        return contenders.accelerate(arena, size.first)
    if who == _GRID:
        return contenders.grid(arena, space=size.space)
    seconds = arena.options.at_most(size.time_limit_seconds)
    return contenders.momadvise(arena, space=size.space, trials=size.trials, time_limit_seconds=seconds)


def _of(arena: Arena, who: str, found: Found, base: TimeResult | None) -> Iterator[Figure]:
    """The measurements of one answer, made by the harness; without any, a line with the reason."""
    table, row = _place(arena.contest, who)
    result = None if found.policy is None else arena.time(found.policy, found.model_size)
    own, plain = (None if one is None else one.measurement for one in (result, base))
    lost = why(*filter(None, (result, base)))
    words = "" if found.policy is None else _words(found)
    rate = None if own is None else own.samples_per_second
    reason = "; ".join(filter(None, (words, found.reason, lost)))
    yield figure(arena.options, _PAPER, table, row, _TELLING, rate, reason=reason)
    if own is None or plain is None:
        return
    columns: dict[str, float | None] = {}
    gain = own.samples_per_second / plain.samples_per_second
    if arena.contest.goal is GoalKind.BIGGER:
        columns[f"throughput / untouched (floor: {FLOOR})"] = gain
        columns["size / untouched"] = _grown(arena, found)
    elif arena.contest.goal is GoalKind.CHEAPEST:
        columns["device-seconds per iteration"] = own.step_seconds
        columns["cost / untouched"] = own.step_seconds / plain.step_seconds
    else:
        columns[_GAIN] = gain
    if who != _UNTOUCHED:
        columns |= {"wall, s": found.seconds, "trials": found.trials}
    for column, ours in columns.items():
        yield figure(arena.options, _PAPER, table, row, column, ours)


def _explained(contest: Contest, figures: list[Figure], found: Found, known: Known) -> list[Figure]:
    """The same lines with a note on any contender that is ahead of this answer."""
    own = next((one.ours for one in figures if one.column == _GAIN), None)
    others = {who: known.get((*_place(contest, who), _GAIN)) for who in _CONTENDERS if who != _MOMADVISE}
    gains = {who: one.ours for who, one in others.items() if one is not None and one.ours is not None}
    best = max(gains, key=lambda who: gains[who], default=None)
    if own is None or best is None or found.policy is None or gains[best] <= _BEHIND * own:
        return figures
    theirs = known[*_place(contest, best), _TELLING].reason.split("; ")[0]
    rates = {f"{label}, batch {batch}": rate for label, batch, rate in found.tried}
    if theirs in rates and _words(found) in rates:
        why_not = f"measured on the way at {rates[theirs] / rates[_words(found)]:.2f} times this answer"
    else:
        why_not = f"none of the {found.trials} policies that its time allowed"
    remark = f"{best}'s ({theirs}) has {100 * (gains[best] / own - 1):.0f} % more: it was {why_not}"
    return [msgspec.structs.replace(one, reason=remark) if one.column == _GAIN else one for one in figures]


def _words(found: Found) -> str:
    """A short description of an answer."""
    assert found.policy is not None
    passes = found.policy.accumulation_steps
    size = "".join(f", {name} {value}" for name, value in found.model_size.items())
    return f"{found.policy.label}, batch {found.policy.micro_batch}{f' x {passes}' if passes > 1 else ''}{size}"


def _grown(arena: Arena, found: Found) -> float | None:
    """The size of the model relative to the file's own."""
    counts = arena.count().counts
    if counts is None:
        return None
    own = counts.own
    size = found.model_size or own.size
    parameters = next((one.parameter_count for one in counts.listed if one.size == size), own.parameter_count)
    if parameters and own.parameter_count and parameters != own.parameter_count:
        return parameters / own.parameter_count
    return math.prod(size.values()) / math.prod(own.size.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.advice", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
