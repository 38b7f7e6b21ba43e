"""Methods that no configuration says by default: what a trainer's own table does not name is answered from here."""

from __future__ import annotations

from collections.abc import Mapping

from advisor.exports.rules import Rule, adapter, exported

__all__ = ["EVERYWHERE"]

_CHECKPOINTS = "no trainer chooses which segments of blocks are recomputed"
_STORED = "no trainer stores saved activations in fewer bits"
_REASONS: Mapping[str, str] = {
    "pure_bf16": "no key rounds updates stochastically, or computes them in float32 for bfloat16 weights",
    "half_weights": "no key trains float16 weights without a float32 copy of them",
    "float8": "there is no key for torchao's float8 layers",
    "checkpoint": "there is no key that recomputes one block in k",
    "residual_checkpoint": _CHECKPOINTS,
    "sqrt_checkpoint": _CHECKPOINTS,
    "recursive_checkpoint": _CHECKPOINTS,
    "optimal_checkpoint": _CHECKPOINTS,
    "selective_checkpoint": "which parts of a block are recomputed is a function, which no file can hold",
    "compile_budget": "torch's activation_memory_budget is no key",
    "compress_activations": _STORED,
    "fp8_activations": _STORED,
    "few_bit_activation": "no trainer replaces activation functions by such with few-bit derivatives",
    "randomized_linear": "no trainer has linear layers with randomized weight gradients",
    "swap": "no key moves activations to the host without recomputing them",
    "overlapped_swap": "no key moves activations to the host while the device goes on computing",
    "adam_8bit": "the optimizer is built in code",
    "adam_low_bit": "the optimizer is built in code",
    "adafactor": "the optimizer is built in code",
    "muon": "no key gives the matrices of the blocks to torch's Muon and everything else to AdamW",
    "fused_optimizer": "the optimizer is built in code",
    "host_optimizer": "there is no key for an optimizer on the host",
    "optimizer_in_backward": "no trainer updates parameters in the backward pass with a plain optimizer",
    "chunked_cross_entropy": "there is no key for a loss that is computed in chunks",
    "compile": "there is no key that compiles this scope",
    "channels_last": "the layout of images and weights is set in code",
    "attention_backend": "a configuration chooses the model's attention, not the kernel of torch's",
    "momentum_residual": "no trainer makes residual blocks invertible",
    "sparse_reparameterization": "no trainer trains a fixed share of the weights",
    "lora": "adapters are added to the model in code",
    "qlora": "the model is loaded in 4 bits, and adapters are added to it, in code",
    "zero_1": "there is no key for an optimizer whose state is divided",
    "gradient_compression": "communication hooks are functions, which no file can hold",
}

EVERYWHERE: Mapping[str, Rule] = {
    **{name: adapter(name, why) for name, why in _REASONS.items()},
    # Settings of the process, which every trainer takes from its environment.
    "expandable_segments": exported(
        "expandable_segments", outside="PYTORCH_ALLOC_CONF=expandable_segments:True in the environment"
    ),
    "retain_freed_memory": exported(
        "retain_freed_memory", outside="MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 in the environment"
    ),
    "intraop_threads": exported("intraop_threads", outside="OMP_NUM_THREADS={count} in the environment"),
}
"""Method -> its answer wherever a trainer's table has none of its own."""
