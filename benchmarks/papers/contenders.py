"""The contenders: an expert's hand-tuned default, accelerate, the exhaustive grid, and momadvise."""

from __future__ import annotations

import functools
import importlib.util
import tempfile
import time
from pathlib import Path

import msgspec

from advisor.errors import OptionError
from advisor.goal import GoalKind
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.search.sizing.batching import choose_batch
from advisor.search.sizing.ladder import Climb, Reached
from advisor.search.sizing.size_ladder import chain_of
from advisor.workload.source import resolve_source
from benchmarks.papers.advised import AdviceRequest, Advised
from benchmarks.papers.arena import FIRST_BATCH, FLOOR, Arena, Found
from benchmarks.papers.child import ask
from benchmarks.papers.runs import why
from benchmarks.search.recordings import RECORDINGS
from benchmarks.search.table import Table
from benchmarks.search.table_lines import Header, Line, Paired, Sized, read

__all__ = ["ExecutableBatch", "ExecutableBatchRequest", "accelerate", "grid", "hand_tuned", "momadvise"]

_TABLES = Path(__file__).resolve().parents[1] / "tables"

_COMPILED = use("compile", scope="blocks")
_FUSED = (use("fused_optimizer"),)
_TUNED = (*_FUSED, use("precision", dtype="bf16"))
"""SDPA is the attention of the models' own code and not a method."""

_GROWTH = 4
"""Factor on the samples of a fast step when two formats are compared again."""

_CHILD_SECONDS = 240.0

_BEYOND = 0.5
"""Fraction of momadvise's time limit by which its answer may be late: the current trial finishes and the winner is
confirmed."""

_START_SECONDS = 180.0
"""Time that momadvise may take beyond twice its time limit before it is ended; part of it passes before its clock
starts."""


class ExecutableBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of the program ``benchmarks.papers.executable_batch``.

    Attributes:
        workload: File of the model.
        device: torch's name of it.
        limit_bytes: The memory limit.
        first: The batch to try first.
    """

    workload: str
    device: str
    limit_bytes: int
    first: int


class ExecutableBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Its reply.

    Attributes:
        batch: The batch that ran.
        tried: All batches that were tried.
        seconds: Duration without loading libraries.
    """

    batch: int
    tried: list[int]
    seconds: float


def hand_tuned(arena: Arena, *, compiled: bool) -> Found:
    """bf16 autocast, the fused optimizer, compiled blocks, and the largest batch that fits.

    Without bf16 if it is seen to be slower than 32 bits, as on a device that emulates it. For ``bigger``, the largest
    size of the model that keeps the floor with these methods. Blocks are not compiled then, because every size would be
    compiled anew.

    Args:
        arena: Runs its trials; for ``bigger`` it includes plain training at its own size and batch.
        compiled: Whether to compile blocks where that works.
    """
    before = arena.wall_seconds
    tuned, compared, slower = _tuned(arena)
    if arena.contest.goal is GoalKind.BIGGER:
        found = _climbed(arena, tuned)
    else:
        found = _at_its_largest(arena, tuned, compiled=compiled)
    return msgspec.structs.replace(
        found,
        trials=compared + found.trials,
        seconds=arena.wall_seconds - before,
        reason="; ".join(filter(None, (slower, found.reason))),
    )


def _tuned(arena: Arena) -> tuple[tuple[MethodSetting, ...], int, str]:
    """The methods of the default, the trials it took to choose them, and the reason if bf16 is not among them.

    A fast step of a few samples may be all kernel launches, of which autocast has more: if bf16 loses, it is tried
    again with more samples, as long as steps take no longer than the timing.
    """
    batch, trials, slower = min(FIRST_BATCH, arena.contest.own_batch), 0, ""
    while True:
        wide = arena.time(Policy(methods=_FUSED, micro_batch=batch))
        trials += 1
        if wide.measurement is None:
            break
        narrow = arena.time(Policy(methods=_TUNED, micro_batch=batch))
        trials += 1
        if narrow.measurement is None:
            slower = slower or f"without bf16 ({why(narrow)})"
            break
        ratio = narrow.measurement.step_seconds / wide.measurement.step_seconds
        if ratio <= 1:
            return _TUNED, trials, ""
        slower = f"without bf16, which took {ratio:.2f} times as long here"
        if _GROWTH * narrow.measurement.step_seconds > arena.seconds:
            break
        batch *= _GROWTH
    return _FUSED if slower else _TUNED, trials, slower


def _at_its_largest(arena: Arena, tuned: tuple[MethodSetting, ...], *, compiled: bool) -> Found:
    """The methods at the largest batch that fits, with compiled blocks where that works."""
    policy, trials, reason = None, 0, ""
    if compiled:
        policy, _, trials, reason = arena.largest((_COMPILED, *tuned))
    if policy is None:
        given_up = f"not compiled ({reason})" if reason else "not compiled"
        policy, _, more, reason = arena.largest(tuned)
        trials, reason = trials + more, reason or given_up
    return Found(policy=policy, trials=trials, reason=reason)


def _climbed(arena: Arena, settings: tuple[MethodSetting, ...]) -> Found:
    """The largest size at which the methods keep the floor, a fraction of plain training's throughput."""
    counted = arena.count()
    plain = arena.time(Policy(micro_batch=arena.contest.own_batch)).measurement
    if counted.counts is None or plain is None:
        return Found(reason=why(counted) or "plain training has no figure that a floor could be a share of")
    rungs, floor = chain_of(counted.counts), FLOOR * plain.samples_per_second
    climb = Climb(rungs, floor=floor, limit_bytes=arena.limit_bytes)
    policies: dict[int, Policy] = {}
    trials = 1
    while (place := climb.next()) is not None:
        policy, model, more, _ = arena.largest(settings, rungs[place].size)
        trials += more
        measured = None if policy is None else arena.time(policy, rungs[place].size).measurement
        if policy is not None:
            policies[place] = policy
        rate = None if measured is None else measured.samples_per_second
        climb.tell(
            place,
            Reached(
                kept=rate is not None and rate >= floor,
                samples_per_second=rate,
                need_bytes=None if model is None else model.predict(1),
            ),
        )
    if climb.best is None:
        return Found(trials=trials, reason="no size keeps the floor")
    return Found(policy=policies[climb.best], model_size=rungs[climb.best].size, trials=trials)


def accelerate(arena: Arena, first: int) -> Found:
    """Plain training at the batch that ``find_executable_batch_size`` finds.

    If the global batch is fixed, the micro-batch is its largest divisor that is no larger than the batch found.

    Args:
        arena: Holds the question.
        first: The batch to begin with.
    """
    contest = arena.contest
    if contest.goal is GoalKind.BIGGER:
        return Found(reason="it looks for a batch, not for a size of the model")
    if importlib.util.find_spec("accelerate") is None:
        return Found(reason="accelerate is not installed")
    request = ExecutableBatchRequest(
        workload=str(contest.workload),
        device=arena.options.hardware.device,
        limit_bytes=arena.limit_bytes,
        first=first,
    )
    arena.leave()
    found, reason, seconds = _executable(request, arena.options.at_most(_CHILD_SECONDS), arena.options.end)
    if found is None:
        return Found(seconds=seconds, reason=reason)
    batch = choose_batch(largest=found.batch, fraction=1.0, global_batch=contest.global_batch)
    assert batch is not None, "a batch that ran holds samples"
    exactly = found.batch if contest.global_batch is None else batch.micro_batch
    policy = Policy(micro_batch=exactly, accumulation_steps=batch.accumulation_steps)
    return Found(policy=policy, trials=len(found.tried), seconds=seconds)


@functools.cache
def _executable(
    request: ExecutableBatchRequest, limit: float, until: float
) -> tuple[ExecutableBatch | None, str, float]:
    """Its answer or why there is none, and the seconds. It runs once for all goals, which do not affect it."""
    begin = time.monotonic()
    program = "benchmarks.papers.executable_batch"
    found, reason = ask(program, request, ExecutableBatch, time_limit_seconds=limit, until=until)
    return found, reason, time.monotonic() - begin


def grid(arena: Arena, *, space: str, tables: Path = _TABLES) -> Found:
    """The best of every valid combination at every recorded batch, if this model was recorded on this device.

    Args:
        arena: Holds the question.
        space: momadvise's search space: if a table has another one, the answer says so.
        tables: Folder of the recordings.
    """
    if arena.contest.goal is not GoalKind.FASTER:
        return Found(reason=f"tables are recorded for faster, not for {arena.contest.goal.value}")
    fingerprint = resolve_source(arena.contest.workload).fingerprint
    for path in sorted([*tables.glob("*.jsonl.gz"), *tables.glob("*.jsonl")]):
        lines = read(path)
        header = next((line for line in lines if isinstance(line, Header)), None)
        if header is None or (header.fingerprint, header.device) != (fingerprint, arena.options.hardware.name):
            continue
        if header.limit_bytes != arena.limit_bytes:
            return Found(reason=f"its table was recorded below {header.limit_bytes / 2**20:,.0f} MiB")
        try:
            table = Table(lines)
        except OptionError as error:
            return Found(reason=str(error))
        best = max(table.estimates.values(), key=lambda one: one.rate)
        settled = {line.combination.label: line.settled for line in lines if isinstance(line, Sized)}
        of = f"the space {header.space_name}" + ("" if header.space_name == space else f", not of {space}")
        return Found(
            policy=Policy(
                methods=best.combination.settings, micro_batch=best.batch, settled=settled[best.combination.label]
            ),
            trials=table.policies,
            seconds=sum(_seconds_of(line) for line in lines),
            reason=f"recorded on {header.date}: the best of all {table.space.count} combinations of {of}",
        )
    return Found(reason=f"no exhaustive table was recorded of this model on this device: {_how_to_record(arena)}")


def _seconds_of(line: Line) -> float:
    """Recording time of a line of a table."""
    if isinstance(line, Paired):
        return line.seconds
    return 0.0 if isinstance(line, Header) else line.wall_seconds


def _how_to_record(arena: Arena) -> str:
    name = next((one.name for one in RECORDINGS.values() if one.workload == arena.contest.workload), None)
    if name is None:
        return "only those of benchmarks.search.record are enumerated"
    return f"python -m benchmarks.search.record --model {name} --device {arena.options.hardware.device}"


def momadvise(arena: Arena, *, space: str, trials: int, time_limit_seconds: float) -> Found:
    """The answer of ``advisor.tune``, run in its own program, which ends with the call.

    Args:
        arena: Holds the question.
        space: The search space.
        trials: Most policies.
        time_limit_seconds: Most seconds.

    Raises:
        TimeIsUpError: Too few minutes of this call are left for its answer.
    """
    contest, options = arena.contest, arena.options
    arena.leave()
    options.check_time((1 + _BEYOND) * time_limit_seconds)  # an answer that was cut short does not count
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        request = AdviceRequest(
            model=str(contest.workload),
            goal=contest.goal.value,
            device=options.hardware.device,
            memory_limit=contest.limit_bytes,
            search_space=space,
            trials=trials,
            time_limit=time_limit_seconds,
            global_batch=contest.global_batch,
            price=1.0 if contest.goal is GoalKind.CHEAPEST else None,  # any price: one device is compared with itself
            min_throughput=f"{FLOOR}x" if contest.goal is GoalKind.BIGGER else None,
            output=str(Path(folder) / "study"),
        )
        limit = 2 * time_limit_seconds + options.at_most(_START_SECONDS)
        program = "benchmarks.papers.advised"
        found, reason = ask(program, request, Advised, time_limit_seconds=limit, until=options.end)
        seconds = time.monotonic() - begin
    if found is None:
        return Found(seconds=seconds, reason=reason)
    return Found(
        policy=found.policy,
        model_size=found.model_size,
        trials=found.trials,
        seconds=seconds,
        tried=found.tried,
        reason=found.reason,
    )
