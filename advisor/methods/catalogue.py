"""The methods that exist: one line each, in the order in which people read about them."""

from __future__ import annotations

import difflib

from advisor.errors import MethodRefusedError
from advisor.methods.adafactor import Adafactor
from advisor.methods.adam_8bit import Adam8bit
from advisor.methods.adam_low_bit import AdamLowBit
from advisor.methods.attention_backend import AttentionBackend
from advisor.methods.base import Method
from advisor.methods.channels_last import ChannelsLast
from advisor.methods.checkpoint import Checkpoint
from advisor.methods.chunked_cross_entropy import ChunkedCrossEntropy
from advisor.methods.compile import Compile
from advisor.methods.compile_budget import CompileBudget
from advisor.methods.compress_activations import CompressActivations
from advisor.methods.ddp import Ddp
from advisor.methods.expandable_segments import ExpandableSegments
from advisor.methods.few_bit_activation import FewBitActivation
from advisor.methods.float8 import Float8
from advisor.methods.fp8_activations import Fp8Activations
from advisor.methods.fsdp import Fsdp
from advisor.methods.fused_optimizer import FusedOptimizer
from advisor.methods.gradient_compression import GradientCompression
from advisor.methods.half_weights import HalfWeights
from advisor.methods.host_optimizer import HostOptimizer
from advisor.methods.intraop_threads import IntraopThreads
from advisor.methods.lora import Lora
from advisor.methods.momentum_residual import MomentumResidual
from advisor.methods.muon import Muon
from advisor.methods.optimal_checkpoint import OptimalCheckpoint
from advisor.methods.optimizer_in_backward import OptimizerInBackward
from advisor.methods.overlapped_swap import OverlappedSwap
from advisor.methods.precision import Precision
from advisor.methods.pure_bf16 import PureBf16
from advisor.methods.qlora import Qlora
from advisor.methods.randomized_linear import RandomizedLinear
from advisor.methods.recursive_checkpoint import RecursiveCheckpoint
from advisor.methods.residual_checkpoint import ResidualCheckpoint
from advisor.methods.retain_freed_memory import RetainFreedMemory
from advisor.methods.selective_checkpoint import SelectiveCheckpoint
from advisor.methods.sparse_reparameterization import SparseReparameterization
from advisor.methods.sqrt_checkpoint import SqrtCheckpoint
from advisor.methods.swap import Swap
from advisor.methods.zero_1 import Zero1
from advisor.problem.printable import quoted

__all__ = ["CATALOGUE", "get_method"]

CATALOGUE: tuple[Method, ...] = (
    # Float formats.
    Precision(),
    PureBf16(),
    HalfWeights(),
    Float8(),
    # Recomputation.
    Checkpoint(),
    ResidualCheckpoint(),
    SqrtCheckpoint(),
    RecursiveCheckpoint(),
    OptimalCheckpoint(),
    SelectiveCheckpoint(),
    CompileBudget(),
    # Activations in fewer bytes.
    CompressActivations(),
    Fp8Activations(),
    FewBitActivation(),
    RandomizedLinear(),
    # Activations on the host.
    Swap(),
    OverlappedSwap(),
    # Optimizers.
    Adam8bit(),
    AdamLowBit(),
    Adafactor(),
    Muon(),
    FusedOptimizer(),
    HostOptimizer(),
    OptimizerInBackward(),
    # The shape of a step.
    ChunkedCrossEntropy(),
    Compile(),
    ChannelsLast(),
    AttentionBackend(),
    ExpandableSegments(),
    RetainFreedMemory(),
    IntraopThreads(),
    # What is learned.
    MomentumResidual(),
    SparseReparameterization(),
    Lora(),
    Qlora(),
    # Several devices.
    Ddp(),
    Zero1(),
    Fsdp(),
    GradientCompression(),
)


def get_method(name: str) -> Method:
    """The method of that name.

    Raises:
        MethodRefusedError: There is none; the message names the nearest, and the command that lists all.
    """
    for method in CATALOGUE:
        if method.name == name:
            return method
    near = difflib.get_close_matches(name, [method.name for method in CATALOGUE], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise MethodRefusedError(f"there is no method {quoted(name)}{hint} `momadvise methods` lists all of them")
