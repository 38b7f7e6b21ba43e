"""Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost": memory against depth, and its cost in time.

    python -m benchmarks.papers.sublinear --size smoke
    python -m benchmarks.papers.sublinear --size paper --device cuda

Residual networks of increasing depth are trained without recomputation and with each way of splitting the chain of
blocks. *activations* are what is saved for the backward pass at the end of the forward pass. The peak of both passes
also includes the segment that is being recomputed, and the parameters, gradients and AdamW state, which recomputation
cannot reduce. *peak beyond them* is the remainder, the memory that the paper analyses. It is slightly too low, because
all bytes of the gradients are subtracted although they only exist in full at the end of the backward pass. The last
rows give the exponents of the best-fitting power laws (1 without recomputation, 1/2 with as many segments as the square
root of the depth, approaching 0 for nested halves). The paper's 48 GB and 7 GB are for images of 224 pixels: only their
ratio carries over.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from advisor.measure.measurement import Measurement
from advisor.methods.setting import MethodSetting, use
from advisor.trial.process.runner import Runner
from advisor.trial.result import TimeResult
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.runs import WORKLOADS, figure, timed, why
from benchmarks.papers.units import Known, Unit, run_units

__all__ = ["main", "run"]

_PAPER = "sublinear"
_WORKLOAD = WORKLOADS / "deep_residual.py"
_TABLE = "Memory and time against depth"

_PLAIN = "plain"
_TELLING = "activations, MiB"
"""The column that tells whether a run was measured."""

_PEAK = "peak, MiB"
_BEYOND = "peak beyond them, MiB"
"""The peak minus the bytes of parameters, gradients, buffers and optimizer state, whenever in the step they appear."""

_WAYS: dict[str, tuple[MethodSetting, ...]] = {
    _PLAIN: (),
    "every block": (use("checkpoint", every=1),),
    "sqrt(n) segments": (use("sqrt_checkpoint"),),
    "nested halves": (use("recursive_checkpoint"),),
    "optimal under a quarter": (use("optimal_checkpoint", budget=0.25),),
}

_THEIR_MEMORY = {"sqrt(n) segments": 7 / 48}
_OTHER_NETWORK = "the paper's is of another residual network, and images of 224 pixels"
_THEIR_TIME = {"sqrt(n) segments": 1.3}
_THEIR_EXPONENT = {_PLAIN: 1.0, "sqrt(n) segments": 0.5}
_DEEPEST_OF_PAPER = 1000


class _Size(msgspec.Struct, frozen=True):
    """What to run."""

    layers: tuple[int, ...]
    channels: int
    batch: int
    seconds: float


_SIZES = {
    "smoke": _Size((8, 32), channels=4, batch=2, seconds=0.2),
    "paper": _Size((100, 200, 500, 1000), channels=32, batch=32, seconds=3.0),
}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[list[Figure]]:
    size = _SIZES[options.size]
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:

        def unit(layers: int, way: str) -> Unit:
            def make(known: Known) -> Iterator[Figure]:
                # Ratios are between runs of one call: a repeated run is answered from the runner's folder.
                plain, own = (_timed(runner, options, size, layers, _WAYS[one]) for one in (_PLAIN, way))
                return _of(options, way, layers, own, plain)

            return Unit(table=_TABLE, row=_row(layers, way), column=_TELLING, make=make)

        def exponents(known: Known) -> Iterator[Figure]:
            for way in _WAYS:
                for column in (_TELLING, _PEAK, _BEYOND):
                    found = [(layers, known.get((_TABLE, _row(layers, way), column))) for layers in size.layers]
                    points = [(layers, one.ours) for layers, one in found if one is not None and one.ours is not None]
                    yield _exponent(options, way, column, points)

        units = [unit(layers, way) for layers in size.layers for way in _WAYS]
        yield from run_units(options, _PAPER, units, exponents)


def _row(layers: int, way: str) -> str:
    return f"{layers:,} layers, {way}"


def _timed(
    runner: Runner, options: Options, size: _Size, layers: int, settings: tuple[MethodSetting, ...]
) -> TimeResult:
    shape = {"layers": layers, "channels": size.channels}
    return timed(runner, options, _WORKLOAD, settings, batch=size.batch, seconds=size.seconds, model_size=shape)


def _of(options: Options, way: str, layers: int, result: TimeResult, plain: TimeResult) -> Iterator[Figure]:
    """The values of one run, relative to plain training of the same depth in the same call."""
    own, base = result.measurement, plain.measurement
    columns: dict[str, tuple[float | None, float | None]] = {
        _TELLING: (None, own.memory.breakdown.activations / 2**20 if own else None),
        _PEAK: (None, own.memory.tensor_peak_of_passes_bytes / 2**20 if own else None),
        _BEYOND: (None, _beyond(own) / 2**20 if own else None),
    }
    if way != _PLAIN:
        deepest = layers == _DEEPEST_OF_PAPER
        kept, peak, seconds = _ratios(own, base) if own and base else (None, None, None)
        columns |= {
            "activations / plain": (None, kept),
            "peak / plain": (_THEIR_MEMORY.get(way) if deepest else None, peak),
            "step time / plain": (_THEIR_TIME.get(way) if deepest else None, seconds),
        }
    for column, (theirs, ours) in columns.items():
        reason = why(result, plain) or ("" if theirs is None else _OTHER_NETWORK)
        yield figure(options, _PAPER, _TABLE, _row(layers, way), column, ours, theirs=theirs, reason=reason)


def _beyond(own: Measurement) -> int:
    kept = own.memory.breakdown
    them = kept.parameters + kept.buffers + kept.gradients + kept.optimizer_state
    return own.memory.tensor_peak_of_passes_bytes - them


def _ratios(own: Measurement, base: Measurement) -> tuple[float, float, float]:
    """Exponents of activations, peaks and step times."""
    return (
        own.memory.breakdown.activations / base.memory.breakdown.activations,
        own.memory.tensor_peak_of_passes_bytes / base.memory.tensor_peak_of_passes_bytes,
        own.step_seconds / base.step_seconds,
    )


def _exponent(options: Options, way: str, of: str, points: Sequence[tuple[int, float]]) -> Figure:
    """The exponent of the depth in the best-fitting power law."""
    theirs = _THEIR_EXPONENT.get(way) if of == _BEYOND else None
    column = f"exponent of the depth, {of.removesuffix(', MiB')}"
    if len(points) < 2:
        return figure(options, _PAPER, "Exponents", way, column, None, theirs=theirs, reason="two depths must have run")
    slope = np.polyfit([math.log(layers) for layers, _ in points], [math.log(needed) for _, needed in points], 1)[0]
    remark = "gradients are subtracted as if all were there at the peak" if theirs is not None and way != _PLAIN else ""
    return figure(options, _PAPER, "Exponents", way, column, float(slope), theirs=theirs, reason=remark)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.sublinear", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
