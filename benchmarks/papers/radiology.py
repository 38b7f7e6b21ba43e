"""Rodriguez et al. 2024, memory in training a U-Net on radiographs: peak memory of both passes, and the final loss.

    python -m benchmarks.papers.radiology --size smoke
    python -m benchmarks.papers.radiology --size paper --device cuda

A U-Net on ResNet-34 with a multi-scale structural similarity loss, at 512, 1,024 and 2,048 pixels, with every technique
of the paper's Section 5.1, alone and combined. The radiographs are synthetic (see ``examples/unet.py``) and the initial
weights are random: no clinical images are used, and the losses say nothing about them. Validation and the paper's runs
on several GPUs are left out.

Peaks include everything that is live during a pass. The paper's values come from NVML and give what each phase adds
(their sum is its total): only ratios to plain training are comparable, and only roughly. A loss is the mean over the
last rounds of four batches; the row for plain training with other random numbers shows the effect of chance. If
``momadvise`` would reject a technique for its loss, the row says so.

8-bit activations stand in for the paper's quantization, which momadvise does not have. Checkpointing applies to the
blocks of the encoder and decoder, momentum to those of the encoder. Both determine what the encoder's blocks save, so
the two together (the combination that destroys the loss in the paper) are rejected; momentum with 16 bits is run
instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.methods.setting import MethodSetting, use
from advisor.trial.process.runner import Runner
from advisor.trial.result import TimeResult
from benchmarks.papers.command import Options, options_of, report
from benchmarks.papers.figures import Figure
from benchmarks.papers.largest import refusal
from benchmarks.papers.learning import Learned, Learning
from benchmarks.papers.runs import WORKLOADS, figure, timed, why
from benchmarks.papers.units import Known, Unit, run_units

__all__ = ["main", "run"]

_PAPER = "radiology"
_WORKLOAD = WORKLOADS / "radiology_unet.py"
_ENCODER = Path(__file__).resolve().parents[2] / "examples" / "unet.py"
"""The same model with only the encoder's blocks declared: an invertible ResNet leaves the decoder unchanged."""

_MEMORY = "Peak memory of the passes (Figure 2, Table 2)"
_LOSS = "Loss after training (Table 1)"

_FORWARD, _BACKWARD, _TIME = "forward peak / plain", "backward peak / plain", "step time / plain"
_TELLING = "forward peak, MiB"
_RATIO, _FINAL, _GRADIENT = "loss / plain", "loss after training", "error of the first gradient"

_PLAIN, _CHANCE = "plain", "plain, other random numbers"
_FP16 = use("precision", dtype="fp16")
_BF16 = use("precision", dtype="bf16")
_QUANTIZED = use("compress_activations", bits=8)
_CHECKPOINT = use("checkpoint", every=1)
_MOMENTUM = use("momentum_residual", momentum=0.9)

# The paper's GPU for this is a Turing, whose AMP uses float16.
_WAYS: dict[str, tuple[MethodSetting, ...]] = {
    _PLAIN: (),
    "AMP (fp16)": (_FP16,),
    "AMP (bf16)": (_BF16,),
    "AMP (tf32)": (use("precision", dtype="tf32"),),
    "quantization": (_QUANTIZED,),
    "checkpointing": (_CHECKPOINT,),
    "momentum": (_MOMENTUM,),
    "AMP (fp16) + checkpointing": (_FP16, _CHECKPOINT),
    "AMP (bf16) + checkpointing": (_BF16, _CHECKPOINT),
    "AMP (fp16) + quantization": (_FP16, _QUANTIZED),
    "checkpointing + momentum": (_CHECKPOINT, _MOMENTUM),
    "AMP (fp16) + momentum": (_FP16, _MOMENTUM),
    "AMP (bf16) + momentum": (_BF16, _MOMENTUM),
    "AMP (fp16) + checkpointing + momentum": (_FP16, _CHECKPOINT, _MOMENTUM),
}

_THEIR_PIXELS = 512
_THEIR_PLAIN = (757.76, 440.32, 35.63)
_THEIR_MEMORY = {
    # Table 2: MB in the forward and the backward phase, and seconds per epoch, at 512 pixels.
    "AMP (fp16)": (481.28, 102.40, 34.02),
    "quantization": (614.40, 450.56, 35.28),
    "checkpointing": (286.72, 655.36, 35.15),
    "momentum": (696.32, 389.12, 37.91),
    "AMP (fp16) + checkpointing": (266.24, 194.56, 34.30),
    "checkpointing + momentum": (337.92, 563.20, 37.52),
    "AMP (fp16) + checkpointing + momentum": (317.44, 286.72, 32.36),
}
_THEIR_PLAIN_LOSS = 4.0504
_THEIR_LOSS = {
    # Table 1: training loss after 50 epochs at 512 pixels.
    "AMP (fp16)": 4.8612,
    "quantization": 4.7272,
    "checkpointing": 4.0482,
    "momentum": 4.1456,
    "AMP (fp16) + checkpointing": 4.8612,
    "checkpointing + momentum": 4.1456,
    "AMP (fp16) + checkpointing + momentum": 15.1742,
}


_FEW = (
    _PLAIN,
    "AMP (bf16)",
    "AMP (tf32)",
    "checkpointing",
    "momentum",
    "AMP (bf16) + checkpointing",
    "AMP (fp16) + checkpointing + momentum",
)
"""One row of every kind."""


class _Size(msgspec.Struct, frozen=True):
    """What to run.

    Attributes:
        ways: Names of methods.
        pixels: Image sizes; losses are for the first.
        width: Channels of the first stage; 64 is ResNet-34's.
        batch: Batch in samples; the paper does not state its own.
        steps: Steps of every training whose loss is compared.
        seconds: Most seconds of timed steps.
    """

    ways: tuple[str, ...]
    pixels: tuple[int, ...]
    width: int
    batch: int
    steps: int
    seconds: float


_SIZES = {
    "smoke": _Size(_FEW, (64,), width=4, batch=2, steps=6, seconds=0.05),
    "paper": _Size(tuple(_WAYS), (512, 1024, 2048), width=64, batch=2, steps=100, seconds=2.0),
}


def run(options: Options) -> None:
    """Measure what is missing, and print the tables."""
    report(_PAPER, options, _figures(options))


def _figures(options: Options) -> Iterator[list[Figure]]:
    size = _SIZES[options.size]
    first, *larger = size.pixels
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        learning = Learning(
            runner,
            options,
            batch=size.batch,
            steps=size.steps,
            model_size={"width": size.width, "pixels": first},
            folder=Path(folder),
        )
        units = [
            *(_memory(options, runner, first, way) for way in size.ways),
            *(_loss(options, learning, first, way) for way in (_PLAIN, _CHANCE, *size.ways[1:])),
            *(_memory(options, runner, pixels, way) for pixels in larger for way in size.ways),
        ]
        yield from run_units(options, _PAPER, units)


def _workload(settings: Sequence[MethodSetting]) -> Path:
    return _ENCODER if _MOMENTUM in settings else _WORKLOAD


def _row(pixels: int, way: str) -> str:
    return f"{pixels:,} pixels, {way}"


def _memory(options: Options, runner: Runner, pixels: int, way: str) -> Unit:
    def make(known: Known) -> Iterator[Figure]:
        # Ratios are between runs of one call: a repeated run is answered from the runner's folder.
        plain = _timed(options, runner, pixels, ())
        reason = refusal(options, _WAYS[way])
        own = None if reason else _timed(options, runner, pixels, _WAYS[way])
        return _peaks(options, pixels, way, own, plain, reason if own is None else why(own, plain))

    return Unit(table=_MEMORY, row=_row(pixels, way), column=_TELLING, make=make)


def _timed(options: Options, runner: Runner, pixels: int, settings: Sequence[MethodSetting]) -> TimeResult:
    size = _SIZES[options.size]
    shape = {"width": size.width, "pixels": pixels}
    return timed(
        runner, options, _workload(settings), settings, batch=size.batch, seconds=size.seconds, model_size=shape
    )


def _peaks(
    options: Options, pixels: int, way: str, result: TimeResult | None, plain: TimeResult, reason: str
) -> Iterator[Figure]:
    """Values of one run, and relative to plain training at the same size in the same call."""
    own, base = None if result is None else result.measurement, plain.measurement
    columns: dict[str, float | None] = {_TELLING: None, "backward peak, MiB": None}
    if own is not None:
        columns[_TELLING] = own.memory.forward_peak_bytes / 2**20
        columns["backward peak, MiB"] = own.memory.backward_peak_bytes / 2**20
    if way != _PLAIN:
        columns |= dict.fromkeys((_FORWARD, _BACKWARD, _TIME))
        if own is not None and base is not None:
            columns[_FORWARD] = own.memory.forward_peak_bytes / base.memory.forward_peak_bytes
            columns[_BACKWARD] = own.memory.backward_peak_bytes / base.memory.backward_peak_bytes
            columns[_TIME] = own.step_seconds / base.step_seconds
    theirs: dict[str, float] = {}
    if pixels == _THEIR_PIXELS and way in _THEIR_MEMORY:
        ratios = (one / of for one, of in zip(_THEIR_MEMORY[way], _THEIR_PLAIN, strict=True))
        theirs = dict(zip((_FORWARD, _BACKWARD, _TIME), ratios, strict=True))
    for column, ours in columns.items():
        expected = theirs.get(column)
        if own is not None or expected is not None or column == _TELLING:  # one line says why there is nothing
            yield figure(options, _PAPER, _MEMORY, _row(pixels, way), column, ours, theirs=expected, reason=reason)


def _loss(options: Options, learning: Learning, pixels: int, way: str) -> Unit:
    def make(known: Known) -> Iterator[Figure]:
        settings = _WAYS.get(way, ())
        reason = refusal(options, settings)
        if reason:
            learned = Learned(found=None, reason=reason)
        else:
            learned = learning.chance(_WORKLOAD) if way == _CHANCE else learning.under(_workload(settings), settings)
        return _of_loss(options, pixels, way, learned)

    return Unit(table=_LOSS, row=_row(pixels, way), column=_FINAL, make=make)


def _of_loss(options: Options, pixels: int, way: str, learned: Learned) -> Iterator[Figure]:
    """The final loss, and relative to plain training's."""
    found = learned.found
    theirs = _THEIR_LOSS.get(way) if pixels == _THEIR_PIXELS else None
    columns: dict[str, float | None] = {_FINAL: None if found is None else found.final_loss}
    if way != _PLAIN:
        columns[_RATIO] = None if found is None else found.final_loss_ratio
        columns[_GRADIENT] = None if found is None or found.gradient is None else found.gradient.error
    for column, ours in columns.items():
        expected = None if theirs is None or column != _RATIO else theirs / _THEIR_PLAIN_LOSS
        reason = found.gradient_reason if found is not None and ours is None else learned.reason
        if found is None and expected is None and column != _FINAL:
            continue  # one line says why there is nothing
        yield figure(options, _PAPER, _LOSS, _row(pixels, way), column, ours, theirs=expected, reason=reason)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run(options_of("benchmarks.papers.radiology", __doc__ or "", arguments))


if __name__ == "__main__":
    main()
