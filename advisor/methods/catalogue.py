"""All methods: one line each, in the order of the documentation."""

from __future__ import annotations

import difflib

from advisor.errors import MethodRefusedError
from advisor.methods.activations.compress_activations import CompressActivations
from advisor.methods.activations.few_bit_activation import FewBitActivation
from advisor.methods.activations.fp8_activations import Fp8Activations
from advisor.methods.activations.overlapped_swap import OverlappedSwap
from advisor.methods.activations.randomized_linear import RandomizedLinear
from advisor.methods.activations.swap import Swap
from advisor.methods.adapters.lora import Lora
from advisor.methods.adapters.qlora import Qlora
from advisor.methods.adapters.sparse_reparameterization import SparseReparameterization
from advisor.methods.base import Method
from advisor.methods.distributed.ddp import Ddp
from advisor.methods.distributed.fsdp import Fsdp
from advisor.methods.distributed.gradient_compression import GradientCompression
from advisor.methods.distributed.zero_1 import Zero1
from advisor.methods.formats.float8 import Float8
from advisor.methods.formats.half_weights import HalfWeights
from advisor.methods.formats.precision import Precision
from advisor.methods.formats.pure_bf16 import PureBf16
from advisor.methods.kernels.attention_backend import AttentionBackend
from advisor.methods.kernels.channels_last import ChannelsLast
from advisor.methods.kernels.chunked_cross_entropy import ChunkedCrossEntropy
from advisor.methods.kernels.compile import Compile
from advisor.methods.kernels.compile_budget import CompileBudget
from advisor.methods.optimizers.adafactor import Adafactor
from advisor.methods.optimizers.adam_8bit import Adam8bit
from advisor.methods.optimizers.adam_low_bit import AdamLowBit
from advisor.methods.optimizers.fused_optimizer import FusedOptimizer
from advisor.methods.optimizers.host_optimizer import HostOptimizer
from advisor.methods.optimizers.muon import Muon
from advisor.methods.optimizers.optimizer_in_backward import OptimizerInBackward
from advisor.methods.pipeline.pipeline import Pipeline
from advisor.methods.process.expandable_segments import ExpandableSegments
from advisor.methods.process.intraop_threads import IntraopThreads
from advisor.methods.process.retain_freed_memory import RetainFreedMemory
from advisor.methods.recompute.checkpoint import Checkpoint
from advisor.methods.recompute.momentum_residual import MomentumResidual
from advisor.methods.recompute.optimal_checkpoint import OptimalCheckpoint
from advisor.methods.recompute.recursive_checkpoint import RecursiveCheckpoint
from advisor.methods.recompute.residual_checkpoint import ResidualCheckpoint
from advisor.methods.recompute.selective_checkpoint import SelectiveCheckpoint
from advisor.methods.recompute.sqrt_checkpoint import SqrtCheckpoint
from advisor.methods.tensor_parallel.tensor_parallel import TensorParallelism
from advisor.text.printable import quoted

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
    TensorParallelism(),
    Pipeline(),
)


def get_method(name: str) -> Method:
    """The method of that name.

    Raises:
        MethodRefusedError: It does not exist; the message names the nearest, and the command that lists all.
    """
    for method in CATALOGUE:
        if method.name == name:
            return method
    near = difflib.get_close_matches(name, [method.name for method in CATALOGUE], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise MethodRefusedError(f"There is no method {quoted(name)}.{hint} `momadvise methods` lists all of them.")
