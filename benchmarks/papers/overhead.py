"""The overhead of momadvise: its wrapper compared with a hand-written loop, its startup, trials and predictions.

    python -m benchmarks.papers.overhead --size smoke
    python -m benchmarks.papers.overhead --size paper --device cuda

No paper has these values; *ours* should be small. The generated wrapper and a loop written in plain PyTorch with the
same methods alternate in one process. The wrapper's steps should take at most 1 % longer; the quartiles enclose half of
the turns; losses and live bytes must be identical. The overhead of a warm trial is everything except its timed steps:
building the model, the first steps, the step whose memory is measured, and messages between two processes. A predicted
peak is what `momadvise predict` calculates from traces, here extrapolated to larger batches, compared with the measured
peak; both are live bytes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.trial.process.runner import Runner
from advisor.trial.result import PredictResult
from advisor.trial.spec import PredictTrial
from benchmarks.papers.child import ask
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.loop_messages import LoopComparison, LoopComparisonReply, LoopComparisonRequest, Lost
from benchmarks.papers.runs import WORKLOADS, completed, figure, timed, why
from benchmarks.papers.specs import policy_of, spec_of
from benchmarks.papers.units import Known, Unit, run_units

__all__ = ["main", "run"]

_PAPER = "overhead"
_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = _ROOT / "examples"

_SLOWER = "wrapper slower, % (bar: 1)"
_WALL, _ERROR = "wall, s", "error of the peak, %"
_LOOPS, _START, _TRIALS, _PREDICTED = "Wrapper beside a hand-written loop", "Start", "Trials", "Predicted memory"

_BF16, _EVERY, _FUSED = use("precision", dtype="bf16"), use("checkpoint", every=1), use("fused_optimizer")
_TIME_LIMIT_SECONDS = 180.0
_START_LIMIT_SECONDS = 30.0

_STARTS = {
    "python, nothing": ("-c", "pass"),
    "import advisor": ("-c", "import advisor"),
    "momadvise --help": ("-m", "advisor.cli", "--help"),
}


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model with the policies it is trained with; without batch normalization where blocks are recomputed.

    Plain recomputation would update running statistics twice, which ours does not: the two would differ.
    """

    name: str
    workload: Path
    batch: int
    policies: tuple[tuple[MethodSetting, ...], ...]
    block: str = "GPT2Block"


class _Size(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[_Model, ...]
    seconds: float
    starts: int


_TINY = _Model(
    name="tiny transformer",
    workload=WORKLOADS / "tiny_transformer.py",
    batch=4,
    policies=((), (_EVERY, _FUSED, _BF16)),
    block="Block",
)
"""Steps of a millisecond or two on a GPU, nearly all of it Python: an upper bound on the wrapper's overhead."""

_SIZES = {
    "smoke": _Size(models=(_TINY,), seconds=0.2, starts=1),
    "paper": _Size(
        models=(
            _TINY,
            _Model(
                name="GPT-2", workload=_EXAMPLES / "gpt2.py", batch=8, policies=((), (_BF16,), (_EVERY, _FUSED, _BF16))
            ),
            _Model(name="ResNet-50", workload=_EXAMPLES / "resnet50.py", batch=64, policies=((), (_FUSED, _BF16))),
        ),
        seconds=10.0,
        starts=5,
    ),
}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[list[Figure]]:
    size = _SIZES[options.size]
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        units = [_start(options, name, arguments, size.starts) for name, arguments in _STARTS.items()]
        units += [
            _comparison(options, model, settings, size.seconds) for model in size.models for settings in model.policies
        ]
        for model in size.models:
            seconds = min(size.seconds, 3.0)
            units.append(_trials(runner, options, model, seconds))
            units += [_predicted(runner, options, model, settings, seconds) for settings in model.policies]
        yield from run_units(options, _PAPER, units)


def _row(model: _Model, settings: Sequence[MethodSetting]) -> str:
    return f"{model.name}, {Policy(methods=tuple(settings), micro_batch=model.batch).label}"


def _start(options: Options, name: str, arguments: tuple[str, ...], count: int) -> Unit:
    """The median of some runs, after a first one that reads the files from disk."""

    def make(known: Known) -> Iterator[Figure]:
        seconds = []
        for _ in range(count + 1):
            begin = time.perf_counter()
            command = [sys.executable, *arguments]
            try:
                done = subprocess.run(
                    command, cwd=_ROOT, capture_output=True, check=False, timeout=_START_LIMIT_SECONDS
                )
            except subprocess.TimeoutExpired:
                yield figure(options, _PAPER, _START, name, "seconds", None, reason=f"over {_START_LIMIT_SECONDS:g} s")
                return
            seconds.append(time.perf_counter() - begin)
            if done.returncode:
                reason = f"exit status {done.returncode}: {done.stderr.decode(errors='replace')[-200:]}"
                yield figure(options, _PAPER, _START, name, "seconds", None, reason=reason)
                return
        yield figure(options, _PAPER, _START, name, "seconds", statistics.median(seconds[1:]))

    return Unit(table=_START, row=name, column="seconds", make=make)


def _comparison(options: Options, model: _Model, settings: tuple[MethodSetting, ...], seconds: float) -> Unit:
    """One comparison, in a process of its own."""
    row = _row(model, settings)

    def make(known: Known) -> Iterator[Figure]:
        request = LoopComparisonRequest(
            workload=str(model.workload),
            policies=(settings,),
            block=model.block,
            batch=model.batch,
            device=options.hardware.device,
            seconds=seconds,
        )
        limit = options.at_most(_TIME_LIMIT_SECONDS) + seconds
        answer, reason = ask(
            "benchmarks.papers.loop_comparison",
            request,
            LoopComparisonReply,
            time_limit_seconds=limit,
            until=options.end,
        )
        (found,) = [Lost(reason=reason)] if answer is None else answer.found
        if isinstance(found, Lost):
            yield figure(options, _PAPER, _LOOPS, row, _SLOWER, None, reason=found.reason)
            return
        for column, ours in _columns(found).items():
            yield figure(options, _PAPER, _LOOPS, row, column, ours)

    return Unit(table=_LOOPS, row=row, column=_SLOWER, make=make)


def _columns(found: LoopComparison) -> dict[str, float]:
    apart = (abs(ours - theirs) for ours, theirs in zip(found.losses, found.loop_losses, strict=True))
    return {
        _SLOWER: _percent(found.ratio),
        "its standard error, %": 100 * found.error,
        "lower quartile of the turns, %": _percent(found.low),
        "upper quartile of the turns, %": _percent(found.high),
        "turns": found.turns,
        "step of the loop, ms": found.loop_seconds * 1e3,
        "largest difference of losses": max(apart),
        "more live bytes at the peak, %": _percent(found.peak_bytes / found.loop_peak_bytes),
    }


def _percent(ratio: float) -> float:
    """The ratio minus one, in per cent."""
    return 100 * (ratio - 1)


def _trials(runner: Runner, options: Options, model: _Model, seconds: float) -> Unit:
    """The time of a warm trial other than its timed steps."""
    row = _row(model, ())

    def make(known: Known) -> Iterator[Figure]:
        # Another batch: an identical trial would be answered from the folder.
        timed(runner, options, model.workload, (), batch=max(1, model.batch // 2), seconds=0.1)
        plain = timed(runner, options, model.workload, (), batch=model.batch, seconds=seconds)
        own = plain.measurement
        if own is None:
            yield figure(options, _PAPER, _TRIALS, row, _WALL, None, reason=why(plain))
            return
        stepped = own.step_seconds * own.timed_steps
        parts = {
            _WALL: plain.wall_seconds,
            "of timed steps, s": stepped,
            "of all else, s": plain.wall_seconds - stepped,
        }
        for column, ours in parts.items():
            reason = "" if plain.warm else "the worker was not warm"
            yield figure(options, _PAPER, _TRIALS, row, column, ours, reason=reason)

    return Unit(table=_TRIALS, row=row, column=_WALL, make=make)


def _predicted(
    runner: Runner, options: Options, model: _Model, settings: tuple[MethodSetting, ...], seconds: float
) -> Unit:
    """The predicted peak of a trial, from traces."""
    row = _row(model, settings)

    def make(known: Known) -> Iterator[Figure]:
        result = timed(runner, options, model.workload, settings, batch=model.batch, seconds=seconds)
        error, reason = None, why(result)
        if result.measurement is not None:
            traced = _traced(runner, options, model, settings)
            if traced.prediction is None:
                reason = f"no trace: {traced.reason or traced.outcome.value}"
            else:
                error = _percent(traced.prediction.peak(model.batch) / result.measurement.memory.tensor_peak_bytes)
        yield figure(options, _PAPER, _PREDICTED, row, _ERROR, error, reason=reason)

    return Unit(table=_PREDICTED, row=row, column=_ERROR, make=make)


def _traced(runner: Runner, options: Options, model: _Model, settings: tuple[MethodSetting, ...]) -> PredictResult:
    """Trace a step at batches around twice the measured one, so that the measured batch itself is not traced."""
    policy = policy_of(settings, 4 * model.batch)
    spec = spec_of(PredictTrial, options, model.workload, policy)
    # It is compared with the bytes of tensors, not with what the allocator reserved.
    return completed(runner, options, msgspec.structs.replace(spec, allocator_limit_bytes=None))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.overhead", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
