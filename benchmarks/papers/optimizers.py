"""Gusak et al. 2022, "Survey on Large Scale Neural Network Training", Table 5: optimizers and ZeRO stages.

    python -m benchmarks.papers.optimizers --size smoke
    python -m benchmarks.papers.optimizers --size paper --device cuda

Memory, step time and loss of every optimizer at every stage. The paper finetunes ruDALL-E Malevich on 16 GPUs with
DeepSpeed. Here GPT-2 large (its own implementation of that architecture, with random weights) is trained on the source
code of Python's standard library. What carries over is how each cell compares with Adam at stage 0; the paper's values
are given for this ratio.

Stage 0 is ``ddp``, or plain training on a single GPU. The other stages need several GPUs; without them the row says so.
On a CPU two processes stand in for two devices: memory and loss are real, but the processes share the CPU, which
affects the times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.hardware.hardware import DeviceKind
from advisor.measure.fidelity import smoothed
from advisor.methods.compose import judge
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import FidelityResult, TimeResult
from advisor.trial.spec import FidelityTrial, TimeTrial
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.optimizers_table import (
    ADAM,
    ADAM_8BIT,
    BASE,
    CPU_ADAM,
    FUSED_ADAM,
    ONE_BIT_ADAM,
    STAGES,
    THEIRS,
)
from benchmarks.papers.runs import WORKLOADS, completed, figure, why
from benchmarks.papers.specs import spec_of
from benchmarks.papers.units import Known, Unit, run_units

__all__ = ["main", "run"]

_PAPER = "optimizers"
_TABLE = "Optimizers and stages of ZeRO"
_WORKLOAD = WORKLOADS / "causal_language.py"

_TELLING = "peak, MiB"
"""The column that tells whether a run was measured."""

_OPTIMIZERS: dict[str, tuple[MethodSetting, ...]] = {
    ADAM: (),
    ADAM_8BIT: (use("adam_8bit"),),
    CPU_ADAM: (use("host_optimizer"),),
    FUSED_ADAM: (use("fused_optimizer"),),
}
_LEARNING_SECONDS = 75.0
"""Time limit of the steps; a loss after fewer steps than the others' does not count."""
_NO_ONE_BIT = "the catalogue has no 1-bit Adam; what it has for shorter messages is gradient_compression"


class _Size(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        model: Arguments of the model's file.
        batch: Samples on each device; the paper's is 3.
        seconds: How long steps are timed.
        steps: Steps until the loss is taken.
        cells: Cells of the table to run; ``None`` for all.
    """

    model: dict[str, int]
    batch: int
    seconds: float
    steps: int
    cells: tuple[tuple[str, int], ...] | None = None


_SIZES = {
    "smoke": _Size(
        model={"layers": 2, "width": 64, "tokens": 16},
        batch=2,
        seconds=0.1,
        steps=8,
        cells=(BASE, (ADAM, 1), (ADAM, 3), (FUSED_ADAM, 0)),
    ),
    "paper": _Size(
        model={"layers": 36, "width": 1280, "tokens": 1024, "vocabulary": 50_257}, batch=3, seconds=4.0, steps=30
    ),
}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[list[Figure]]:
    # By stage: the first row is the reference of all others. 1-bit Adam is at stage 0 only, as in the paper.
    cells = [(optimizer, stage) for stage in STAGES for optimizer in _OPTIMIZERS]
    cells.insert(len(_OPTIMIZERS), (ONE_BIT_ADAM, 0))
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        yield from run_units(options, _PAPER, [_unit(options, runner, cell) for cell in cells])


def _unit(options: Options, runner: Runner, cell: tuple[str, int]) -> Unit:
    size, devices = _SIZES[options.size], _devices(options)
    row = _row(*cell, devices)

    def make(known: Known) -> Iterator[Figure]:
        if reason := _refusal(options, size, cell, devices):
            # One line, and one for each value of the paper.
            for column, theirs in _columns(cell, size):
                if theirs is not None or column == _TELLING:
                    yield figure(options, _PAPER, _TABLE, row, column, None, theirs=theirs, reason=reason)
            return
        # Ratios are between runs of one call: a repeated run is answered from the runner's folder.
        results = [_results(runner, options, size, one, devices) for one in (cell, BASE)]
        yield from _of(options, size, cell, row, *results)

    return Unit(table=_TABLE, row=row, column=_TELLING, make=make)


def _devices(options: Options) -> int:
    """Devices that train together: all GPUs, or two processes on a CPU."""
    hardware = options.hardware
    return 2 if hardware.kind is DeviceKind.CPU else hardware.device_count


def _row(optimizer: str, stage: int, devices: int) -> str:
    return f"{optimizer}, stage {stage}, {devices} device{'s' if devices > 1 else ''}"


def _settings(cell: tuple[str, int], devices: int) -> tuple[MethodSetting, ...]:
    """The methods of a cell, sorted by name."""
    optimizer, stage = cell
    methods = list(_OPTIMIZERS[optimizer])
    offload = optimizer == CPU_ADAM and stage >= 2
    if offload:
        methods = []  # A device's shards are updated on its host.
    if stage == 0 and devices > 1:
        methods.append(use("ddp", bucket_views=True, static_graph=False))
    elif stage == 1:
        methods.append(use("zero_1"))
    elif stage >= 2:
        methods.append(use("fsdp", reshard=stage == 3, mixed_precision="none", offload=offload))
    return tuple(sorted(methods, key=lambda method: method.name))


def _refusal(options: Options, size: _Size, cell: tuple[str, int], devices: int) -> str:
    """Why a cell is not run; empty when it is."""
    if cell[0] == ONE_BIT_ADAM:
        return f"{Outcome.REFUSED.value}: {_NO_ONE_BIT}"
    verdict = judge(_settings(cell, devices), facts=None, hardware=options.hardware, gpu_count=devices)
    if not verdict.applicable:
        return f"{Outcome.REFUSED.value}: {verdict.reason}"
    if size.cells is not None and cell not in size.cells:
        return f"left out of --size {options.size}"
    return ""


def _results(
    runner: Runner, options: Options, size: _Size, cell: tuple[str, int], devices: int
) -> tuple[TimeResult, FidelityResult]:
    """One trial for memory and time, one for the loss."""
    policy = Policy(methods=_settings(cell, devices), micro_batch=size.batch, gpu_count=devices)
    timed = spec_of(TimeTrial, options, _WORKLOAD, policy, seconds=size.seconds, model_size=size.model)
    learned = spec_of(
        FidelityTrial,
        options,
        _WORKLOAD,
        policy,
        seconds=options.at_most(_LEARNING_SECONDS),
        steps=size.steps,
        model_size=size.model,
        time_limit_seconds=2 * _LEARNING_SECONDS,
    )
    return completed(runner, options, timed), completed(runner, options, learned)


def _of(
    options: Options,
    size: _Size,
    cell: tuple[str, int],
    row: str,
    own: tuple[TimeResult, FidelityResult],
    base: tuple[TimeResult, FidelityResult],
) -> Iterator[Figure]:
    """The values of one cell."""
    (timed, learned), (base_timed, base_learned) = own, base
    peak, base_peak = _peak(timed), _peak(base_timed)
    time, base_time = _time(timed), _time(base_timed)
    loss, base_loss = _loss(learned, size), _loss(base_learned, size)
    no_loss, no_base_loss = _why_no_loss(learned, size), _why_no_loss(base_learned, size)
    ours = (
        (peak, why(timed)),
        (time, why(timed)),
        (loss, no_loss),
        (_ratio(peak, base_peak), why(timed, base_timed)),
        (_ratio(time, base_time), why(timed, base_timed)),
        (_ratio(loss, base_loss), no_loss or no_base_loss),
    )
    # Adam at stage 0 has no ratios.
    for (column, theirs), (number, reason) in zip(_columns(cell, size), ours, strict=cell != BASE):
        yield figure(options, _PAPER, _TABLE, row, column, number, theirs=theirs, reason=reason)


def _columns(cell: tuple[str, int], size: _Size) -> list[tuple[str, float | None]]:
    """Columns with the paper's values: ratios, because its model is another one; none for a tiny model."""
    columns: list[tuple[str, float | None]] = [
        (_TELLING, None),
        ("step time, ms", None),
        (f"loss after {size.steps} steps", None),
    ]
    if cell != BASE:
        theirs = THEIRS.get(cell) if size.cells is None else None
        for number, what in enumerate(("peak", "step time", "loss")):
            column = f"{what} / Adam's at stage 0"
            columns.append((column, None if theirs is None else theirs[number] / THEIRS[BASE][number]))
    return columns


def _peak(result: TimeResult) -> float | None:
    """Of the device with the highest peak, in MiB."""
    return None if result.measurement is None else result.measurement.memory.peak_bytes / 2**20


def _time(result: TimeResult) -> float | None:
    """Step time in milliseconds."""
    return None if result.measurement is None else 1000 * result.measurement.step_seconds


def _loss(result: FidelityResult, size: _Size) -> float | None:
    """Loss after all steps: the mean over one round of the batches."""
    record = result.fidelity
    if record is None or len(record.losses) < size.steps:
        return None
    return smoothed(record.losses, record.distinct_batches)[-1]


def _ratio(own: float | None, base: float | None) -> float | None:
    return None if own is None or base is None else own / base


def _why_no_loss(result: FidelityResult, size: _Size) -> str:
    record = result.fidelity
    if record is None:
        return f"{result.outcome.value}: {result.reason}" if result.reason else result.outcome.value
    steps = len(record.losses)
    return "" if steps >= size.steps else f"{steps} steps took {_LEARNING_SECONDS:g} s; {size.steps} are compared"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.optimizers", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
