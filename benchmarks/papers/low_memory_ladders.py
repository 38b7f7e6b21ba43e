"""The settings and results of Sohoni et al. 2019, from 32 bits downward, and the sizes that are run here."""

from __future__ import annotations

import msgspec

from advisor.methods.setting import MethodSetting, use

__all__ = ["LADDERS", "SIZES", "Ladder", "Rung", "Size"]

_HALF = use("half_weights", rounding="nearest")
_RESIDUAL_2 = use("residual_checkpoint", blocks=2, inside="inputs")
_RESIDUAL_1 = use("checkpoint", every=1)


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One setting and the paper's results; ``None`` where it has none.

    Attributes:
        name: Its name.
        settings: The methods, sorted by name.
        micro: Whether it uses micro-batches.
        learns: Whether its score is measured.
        megabytes: Memory in MB.
        times_smaller: Memory reduction relative to plain training.
        activations_times_smaller: Reduction of activations relative to plain training.
        operations: FLOPs of forward, backward and recomputation relative to plain training.
        score: Test accuracy in per cent, or BLEU.
        sparse_megabytes: Memory in MB with sparse tensors stored in a sparse format.
        sparse_times_smaller: Its reduction relative to plain training.
    """

    name: str
    settings: tuple[MethodSetting, ...] = ()
    micro: bool = False
    learns: bool = False
    megabytes: float | None = None
    times_smaller: float | None = None
    activations_times_smaller: float | None = None
    operations: float | None = None
    score: float | None = None
    sparse_megabytes: float | None = None
    sparse_times_smaller: float | None = None


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """One network's settings; the first is plain training.

    Attributes:
        name: Short name.
        table: Heading.
        workload: Name of the model's file.
        profiler_within: Largest error of the paper's profiler relative to the actual peak, in per cent.
        score: Our score.
        their_score: The paper's score.
        emulated: Note on 16-bit runs where a CPU emulates them.
        rungs: The settings.
    """

    name: str
    table: str
    workload: str
    profiler_within: float
    score: str
    their_score: str
    emulated: str
    rungs: tuple[Rung, ...]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        model: Arguments of the model's file; empty for the paper's network.
        batch: Samples per optimizer step.
        micro_batch: Samples per pass for settings with micro-batches.
        seconds: How long steps are timed.
        steps: Optimizer steps of the training for the score.
        predicted: Names of the settings whose memory is predicted too; tracing each takes seconds.
        left_out: Names of the settings that are not run.
    """

    model: dict[str, int]
    batch: int
    micro_batch: int
    seconds: float
    steps: int
    predicted: tuple[str, ...]
    left_out: tuple[str, ...] = ()


_WIDE_RESIDUAL = Ladder(
    name="wide residual",
    table="WRN-28-2",
    workload="wide_residual",
    profiler_within=5,  # Section 2.2.2.
    score="accuracy, %",
    their_score="accuracy, %",
    # torch's slow_conv2d: a buffer of patches in addition to the input of every 3x3 convolution.
    emulated="this CPU emulates 16 bits, and its convolutions hold nine copies of their input meanwhile",
    # Memory, reduction and accuracy: Table 3.
    rungs=(
        Rung(name="32 bit", megabytes=404.8, score=94.37, learns=True),
        # Sections 1 and 3.4; its FLOPs include less recomputation than inside=inputs does.
        Rung(name="residual-2*", settings=(_RESIDUAL_2,), activations_times_smaller=5.8, operations=1.3),
        Rung(name="autocast to float16", settings=(use("precision", dtype="fp16"),)),
        Rung(
            name="16 bit, residual-2*",
            settings=(_HALF, _RESIDUAL_2),
            learns=True,
            megabytes=42.6,
            times_smaller=9.5,
            score=94.43,
        ),
        Rung(
            name="16 bit, residual-2*, micro-batches",
            settings=(_HALF, _RESIDUAL_2),
            micro=True,
            learns=True,
            megabytes=12.2,
            times_smaller=33.2,
            score=94.28,
        ),
        Rung(
            name="16 bit, residual-2*, micro-batches, 30 % nonzero",
            settings=(_HALF, _RESIDUAL_2, use("sparse_reparameterization", nonzero=0.3)),
            micro=True,
            learns=True,
            activations_times_smaller=115,  # Section 4.2.2.
            score=93.95,
            sparse_megabytes=6.7,
            sparse_times_smaller=60.7,
        ),
    ),
)

_DYNAMIC_CONVOLUTION = Ladder(
    name="dynamic convolution",
    table="DynamicConv transformer",
    workload="dynamic_convolution",
    profiler_within=11,  # Section 2.2.2.
    score="loss per token",
    their_score="BLEU",
    emulated="this CPU emulates 16 bits",
    # Memory, reduction and BLEU: Table 4.
    rungs=(
        Rung(name="32 bit", megabytes=2896, score=35.15, learns=True),
        # Section 4.3.2.
        Rung(name="residual-1", settings=(_RESIDUAL_1,), activations_times_smaller=5.7, operations=1.3),
        Rung(
            name="residual-1, micro-batches",
            settings=(_RESIDUAL_1,),
            micro=True,
            megabytes=662,
            times_smaller=4.4,
        ),
        Rung(
            name="16 bit, residual-1, micro-batches",
            settings=(_RESIDUAL_1, _HALF),
            micro=True,
            learns=True,
            megabytes=331,
            times_smaller=8.7,
            score=34.99,
        ),
        # The paper makes embeddings sparse too.
        Rung(
            name="16 bit, residual-1, micro-batches, 50 % nonzero in linear layers",
            settings=(_RESIDUAL_1, _HALF, use("sparse_reparameterization", nonzero=0.5)),
            micro=True,
            learns=True,
            score=34.61,
            sparse_megabytes=201,
            sparse_times_smaller=14.4,
        ),
    ),
)

LADDERS = (_WIDE_RESIDUAL, _DYNAMIC_CONVOLUTION)

SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "wide residual": Size(
            model={"depth": 10, "widen": 1, "pixels": 8, "held_out": 40},
            batch=8,
            micro_batch=4,
            seconds=0.1,
            steps=3,
            predicted=("32 bit",),
            left_out=("autocast to float16", "16 bit, residual-2*"),
        ),
        "dynamic convolution": Size(
            model={
                "encoder_layers": 1,
                "decoder_layers": 1,
                "width": 16,
                "inside": 32,
                "source_vocabulary": 32,
                "target_vocabulary": 32,
                "tokens": 8,
            },
            batch=8,
            micro_batch=4,
            seconds=0.1,
            steps=3,
            predicted=(),
            left_out=("residual-1, micro-batches",),
        ),
    },
    # A micro-batch of 10 images, or of 250 tokens, as in the paper; fewer steps than its 100,000 and 50,000.
    "paper": {
        "wide residual": Size(
            model={},
            batch=100,
            micro_batch=10,
            seconds=3.0,
            steps=150,
            predicted=("32 bit", "16 bit, residual-2*, micro-batches"),
        ),
        "dynamic convolution": Size(
            model={},
            batch=160,
            micro_batch=10,
            seconds=3.0,
            steps=60,
            predicted=("32 bit", "residual-1, micro-batches"),
        ),
    },
}
