"""Small models with everything that trips memory methods: dropout, BatchNorm, in-place activations, tied weights."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import nn

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.kernels._linear_head import exposes_linear_head
from advisor.training.forward_probe import ChainProbe, FunctionCounts
from advisor.training.structure import (
    buffer_bytes,
    find_attention,
    find_blocks,
    has_batchnorm,
    has_dropout,
    hidden_matrices,
    matrix_shapes,
    module_counts,
    parameter_bytes,
    parameter_count,
    parameter_dtypes,
    stages_of,
    trainable_parameter_count,
)
from advisor.training.training import Training
from advisor.workload.facts import Facts

VOCABULARY = 512


def gpt2(layers: int = 4, dropout: float = 0.1) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=64,
        n_layer=layers,
        n_head=4,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def text(samples: int = 8, length: int = 64, seed: int = 0) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY, (samples, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens.clone()}


class ConvBlock(nn.Module):
    """Convolution, BatchNorm, in-place ReLU, dropout; a residual when the shape allows."""

    def __init__(self, channels_in: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.activation = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.activation(self.norm(self.conv(images))))


class ConvNet(nn.Module):
    """Four blocks and a classifier; returns its loss."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        widths = [3, 32, 32, 32, 32]  # adam_8bit leaves parameters of fewer than 4096 elements alone.
        pairs = itertools.pairwise(widths)
        self.blocks = nn.ModuleList(ConvBlock(before, after, dropout) for before, after in pairs)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = block(images)
        return nn.functional.cross_entropy(self.head(images.mean((2, 3))), labels)


def convnet(dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return ConvNet(dropout)


def images(samples: int = 8, seed: int = 0, side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(samples, 3, side, side, generator=generator)
    return pixels, torch.randint(0, 10, (samples,), generator=generator)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[..., Any]]] = {
    "gpt2": (gpt2, text),
    "convnet": (convnet, images),
}


def training_of(model: str, *, dropout: float = 0.1, layers: int = 4, **options: Any) -> Training:
    built = gpt2(layers, dropout) if model == "gpt2" else convnet(dropout)
    return Training(built, **{"build_optimizer": adamw, **options})


def facts_of(model: str, **changes: Any) -> Facts:
    """Facts as a probe learns them, with the same functions."""
    build, make_batch = MODELS[model]
    training = Training(build(), build_optimizer=adamw)
    linear_head, reason = exposes_linear_head(training, make_batch(2))
    blocks = find_blocks(training.model)
    chain, functions = ChainProbe(blocks, stages_of(training.model, blocks)), FunctionCounts()
    with chain.watching(), functions:
        training.forward(make_batch(2))
    optimizer = training.optimizer
    known: dict[str, Any] = {
        "model_class": type(training.model).__name__,
        "parameter_count": parameter_count(training.model),
        "parameter_bytes": parameter_bytes(training.model),
        "trainable_parameter_count": trainable_parameter_count(training.model),
        "buffer_bytes": buffer_bytes(training.model),
        "block_class": type(blocks[0]).__name__ if blocks else None,
        "block_count": len(blocks),
        "attention_count": len(find_attention(training.model)),
        "has_batchnorm": has_batchnorm(training.model),
        "has_dropout": has_dropout(training.model),
        "optimizer_class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "optimizer_options": {"amsgrad": False, "maximize": False, "weight_decay": 0.01},
        "max_grad_norm": None,
        "custom_loss": False,
        "linear_head": linear_head,
        "linear_head_reason": reason,
        "tokens_per_sample": None,
        "default_batch": None,
        "first_loss": 1.0,
        "module_counts": module_counts(training.model),
        "function_counts": dict(functions.counts),
        "matrices": matrix_shapes(training.model),
        "hidden_matrices": len(hidden_matrices(training.model, blocks)),
        "parameter_dtypes": parameter_dtypes(training.model),
        "chain_length": 0 if chain.reason else len(blocks),
        "chain_reason": chain.reason,
        "staged_blocks": 0 if chain.staged_reason else len(blocks),
        "staged_reason": chain.staged_reason,
        "shape_keeping_blocks": chain.shape_keeping,
        "torch_version": torch.__version__,
        "libraries": {"bitsandbytes": "0.50", "peft": "0.21", "torchao": "0.18"},
    }
    return Facts(**(known | changes))


def cpu(**changes: Any) -> Hardware:
    gib = 2**30
    known: dict[str, Any] = {
        "kind": DeviceKind.CPU,
        "device": "cpu",
        "name": "a CPU",
        "memory_bytes": 8 * gib,
        "free_bytes": 8 * gib,
        "host_memory_bytes": 8 * gib,
        "host_free_bytes": 8 * gib,
        "host_cores": 2,
    }
    return Hardware(**(known | changes))


def gpu(capability: tuple[int, int]) -> Hardware:
    return cpu(kind=DeviceKind.CUDA, device="cuda:0", name="a GPU", compute_capability=capability)


def import_bitsandbytes() -> None:
    """Import it once with warnings silenced: what it (or torchao beside it) says on import is not ours to test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import bitsandbytes  # noqa: F401


def import_torchao() -> None:
    """Import its optimizers once with warnings silenced: what it says on import is not ours to test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchao.optim  # noqa: F401


@contextlib.contextmanager
def uncompiled_optimizers() -> Generator[None, None, None]:
    """Steps of torchao's optimizers without kernels, which take seconds to compile for every shape."""
    import_torchao()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("advisor.methods.optimizers._adam_low_bit.kernels_are_compiled", lambda: False)
        yield
