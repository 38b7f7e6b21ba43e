"""The experiments of Liu et al. 2023: their methods under our names, their models, and the values in their text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from advisor.methods.setting import MethodSetting, use
from benchmarks.papers.runs import WORKLOADS

__all__ = [
    "AT_LARGEST",
    "BATCH",
    "CASES",
    "EXACT",
    "FIXED",
    "GROWN",
    "MOMS",
    "RATE",
    "THEIR_CROSSINGS",
    "THEIR_FIGURES",
    "THEIR_MEANS",
    "THEIR_MOMS",
    "Case",
    "Fixed",
    "Model",
]

EXACT = "exact"

_CHECKPOINT = use("checkpoint", every=1)
_FOUR_BITS = use("compress_activations", bits=4)
_SWAP = use("swap", min_bytes=2**20)

MOMS: dict[str, tuple[MethodSetting, ...]] = {
    EXACT: (),
    "checkpoint first": (_CHECKPOINT,),
    "selective checkpointing": (use("selective_checkpoint", recompute="attention"),),
    # DTR evicts at run time when memory runs out. Here a plan is made in advance, for a fixed number of bytes.
    "budget": (use("optimal_checkpoint", budget=0.25),),
    "4 bits": (_FOUR_BITS,),
    "swapping": (_SWAP,),
    "checkpoint + 4 bits": (_CHECKPOINT, _FOUR_BITS),
    "checkpoint + swapping": (_CHECKPOINT, _SWAP),
    "4 bits + swapping": (_FOUR_BITS, _SWAP),
}
"""Name -> methods."""

THEIR_MOMS = frozenset(MOMS) - {EXACT, "selective checkpointing"}
"""The methods of their Figure 4, which their means cover; recomputing only attention is in their Figure 7."""

_CONVOLUTIONAL = ("budget", "4 bits", "swapping", "4 bits + swapping")
_BERT = (
    "checkpoint first",
    "selective checkpointing",
    "4 bits",
    "swapping",
    "checkpoint + 4 bits",
    "checkpoint + swapping",
    "4 bits + swapping",
)
_SWIN = ("checkpoint first", "selective checkpointing", "4 bits", "swapping", "4 bits + swapping")
_GPT = (
    "checkpoint first",
    "selective checkpointing",
    "4 bits",
    "swapping",
    "checkpoint + swapping",
    "4 bits + swapping",
)


class Model(msgspec.Struct, frozen=True):
    """A model file and sizes that a CPU trains in milliseconds.

    Attributes:
        workload: The file.
        small: Arguments of its functions in the smoke size.
        small_limit_mib: Memory limit there.
    """

    workload: Path
    small: Mapping[str, int | float]
    small_limit_mib: int


_TEXT = {"layers": 3, "width": 32, "head": 8, "vocabulary": 64, "tokens": 32}
RESNET = Model(WORKLOADS / "moms_resnet.py", {"layers": 35, "width": 4, "pixels": 32, "classes": 10}, 3)
BERT = Model(WORKLOADS / "moms_bert.py", _TEXT, 2)
_SWIN_SIZE = {"width": 8, "third": 1, "others": 1, "head": 4, "pixels": 64, "window": 2, "classes": 10}
SWIN = Model(WORKLOADS / "moms_swin.py", _SWIN_SIZE, 3)
GPT = Model(WORKLOADS / "moms_gpt.py", _TEXT, 2)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A model at one size: its largest batch and throughput with every method.

    Attributes:
        name: Its name in the rows.
        model: The model.
        size: Arguments of the model file's functions.
        moms: Names of methods, in addition to exact training.
        fractions: Fractions of the largest batch to time: 2 means a half.
    """

    name: str
    model: Model
    size: Mapping[str, int | float] = {}
    moms: tuple[str, ...]
    fractions: tuple[int, ...] = (1, 2)


_CURVE = (1, 2, 4, 8)
"""Figure 3 is throughput against the batch."""

_MODELS = (
    Case(name="BERT-Large", model=BERT, moms=_BERT, fractions=_CURVE),
    Case(name="Swin-Large", model=SWIN, moms=_SWIN, fractions=_CURVE),
    Case(name="ResNet-50", model=RESNET, moms=_CONVOLUTIONAL, fractions=_CURVE),
    Case(name="Wide-ResNet-50", model=RESNET, size={"wide": 2}, moms=_CONVOLUTIONAL, fractions=_CURVE),
    Case(name="GPT-Small", model=GPT, moms=_GPT, fractions=_CURVE),
)

_DEEPER = tuple(
    Case(name=f"BERT, {layers} layers", model=BERT, size={"layers": layers}, moms=("checkpoint first", "4 bits"))
    for layers in (36, 48)
)


def _grown(name: str, model: Model, argument: str, values: tuple[int, ...], moms: tuple[str, ...]) -> dict[int, Case]:
    return {
        value: Case(name=f"{name}, {value} {argument}", model=model, size={argument: value}, moms=moms)
        for value in values
    }


# Figure 6 does not state the sizes of its curves: these enclose the crossovers that the text states.
_GROWN_PAPER = {
    ("ResNet", "layers"): _grown("ResNet", RESNET, "layers", (101, 200, 302), ("budget", "4 bits")),
    ("GPT", "layers"): _grown("GPT", GPT, "layers", (12, 24, 36), ("checkpoint first", "4 bits")),
    ("ResNet", "width"): _grown("ResNet", RESNET, "width", (128, 192, 256), ("budget", "4 bits")),
    ("GPT", "width"): _grown("GPT", GPT, "width", (1024, 1536, 2048), ("checkpoint first", "4 bits")),
}

# One case of every kind; Swin's rows are like BERT's. Swapping is refused on a CPU, and its row gives the reason.
_SMOKE = (
    Case(
        name="small BERT",
        model=BERT,
        size=BERT.small,
        moms=("checkpoint + 4 bits",),
        fractions=(1,),
    ),
    Case(name="small GPT", model=GPT, size=GPT.small, moms=("checkpoint first",)),
    Case(name="small ResNet", model=RESNET, size=RESNET.small, moms=("budget", "swapping"), fractions=(1,)),
)
# Nothing fits at that width. The other rows of Figures 5 and 6 are the ones above.
_WIDE = Case(name="small ResNet, 8 width", model=RESNET, size={**RESNET.small, "width": 8}, moms=("checkpoint first",))
_GROWN_SMOKE = {("small ResNet", "width"): {8: _WIDE}}

CASES = {"smoke": (_SMOKE, ()), "paper": (_MODELS, _DEEPER)}
"""Size of the command -> what Section 4.3 runs, and its case study."""

GROWN = {"smoke": _GROWN_SMOKE, "paper": _GROWN_PAPER}
"""Size of the command -> (model, what grows) -> value -> case: Figure 6, c to f."""


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """A curve of Figure 2: throughput of growing models at a fixed batch.

    Attributes:
        case: The model; its size is completed by the growing argument.
        batch: Batch in samples.
        argument: The growing argument.
        values: Its values.
    """

    case: Case
    batch: int
    argument: str
    values: tuple[int, ...]


# The batches are Figure 2's; its sizes can only be read off the plot.
_FIG_2_RESNET = Case(name="ResNet", model=RESNET, moms=_CONVOLUTIONAL)
_FIG_2_BERT = Case(name="BERT", model=BERT, moms=tuple(mom for mom in _BERT if mom != "selective checkpointing"))
FIXED = {
    "paper": (
        Fixed(case=_FIG_2_RESNET, batch=64, argument="layers", values=(50, 101, 152, 200)),
        Fixed(case=_FIG_2_BERT, batch=24, argument="layers", values=(12, 24, 36, 48)),
        Fixed(case=_FIG_2_RESNET, batch=64, argument="width", values=(64, 96, 128)),
        Fixed(case=_FIG_2_BERT, batch=24, argument="width", values=(1024, 1536, 2048)),
    ),
    "smoke": (
        Fixed(
            case=Case(name="small ResNet", model=RESNET, size=RESNET.small, moms=("checkpoint first",)),
            batch=16,
            argument="layers",
            values=(50,),
        ),
    ),
}

BATCH, RATE = "largest batch / exact", "largest throughput / exact"
AT_LARGEST = "throughput at the largest batch / largest throughput"
"""Columns for which the paper has values."""

THEIR_MEANS = {
    # Section 4.3, in the order in which it lists the five models.
    "ResNet-50": (2.6, 0.436),
    "Wide-ResNet-50": (2.8, 0.461),
    "BERT-Large": (11.2, 0.506),
    "Swin-Large": (4.5, 0.766),
    "GPT-Small": (1.8, 0.644),
}
"""Model -> mean over their methods of the largest batch and of the highest throughput, both relative to exact training.
"""

THEIR_FIGURES: dict[tuple[str, str, str], tuple[float, str]] = {
    # Section 4.3.
    ("Swin-Large", "checkpoint first", RATE): (76.86 / 70.65, ""),
    ("Swin-Large", "4 bits", RATE): (75.35 / 70.65, ""),
    ("Wide-ResNet-50", "budget", AT_LARGEST): (65.1 / 80.6, ""),
    # Section 4.3.1 names quantization first and checkpointing second, "respectively".
    ("BERT, 48 layers", "4 bits", RATE): (69.7 / 38.7, "by the order in their sentence"),
    ("BERT, 48 layers", "checkpoint first", RATE): (51.2 / 38.7, "by the order in their sentence"),
}
"""Model, method and column -> the paper's value and a note."""

THEIR_CROSSINGS = {
    # Section 5: below these sizes a method slows training down.
    ("ResNet", "layers"): 280,
    ("GPT", "layers"): 18,
    ("ResNet", "width"): 248,
    ("GPT", "width"): 1500,
}
