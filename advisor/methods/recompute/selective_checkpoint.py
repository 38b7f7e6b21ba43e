"""Recompute only what is cheap to compute and large to keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP, judge_blocks, require_blocks
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["SelectiveCheckpoint", "is_cheap_module"]


class SelectiveCheckpoint(Method):
    """Recomputes the attention modules, all of a block but its matrix products, or normalizations and activations."""

    name = "selective_checkpoint"
    summary = "Recomputes only attention, or only elementwise and normalization work, in the backward pass."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.08
    costs = (
        "a small part of a forward pass; elementwise also costs host time on every operator of a block, normalization "
        "on every tensor that is saved"
    )
    pays = "when checkpointing whole blocks saves more than is needed: most of the memory for little of the time"
    does_not_pay = "attention: with fused kernels, which keep little; elementwise: where kernel launches are the limit"
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    conflicts = (
        Conflict(
            "fsdp",
            "fsdp holds the parameters of one block at a time, but a block's backward pass may need what a "
            "normalization in another block returned",
            own={"recompute": "normalization"},
        ),
    )
    parameters = (
        Parameter(
            "recompute",
            ("attention", "elementwise", "normalization"),
            "attention: the attention modules; elementwise: all of a block but matrix products, convolutions and "
            "fused attention without dropout; normalization: the normalization and activation modules",
        ),
    )
    citation = (
        "Korthikanti et al. 2022, Reducing Activation Recomputation (attention); Sohoni et al. 2019 "
        "(normalization and activation, there checkpoint-no-bn)"
    )

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs attention modules, or repeated blocks."""
        kind = parameters["recompute"]
        if facts is None:
            return Verdict.yes()
        if kind == "elementwise":
            return judge_blocks(facts.block_count, 1, facts.model_class)
        found = facts.attention_count > 0 if kind == "attention" else any(map(is_cheap_module, facts.module_counts))
        return _judge(found, kind, facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Wrap the attention modules, or the blocks with a policy on their operators."""
        from advisor.methods.recompute import _selective_checkpoint as selective
        from advisor.training.recompute import recompute_modules, stop_key_value_cache
        from advisor.training.structure import find_attention, qualified_class_name

        kind = parameters["recompute"]
        if kind == "normalization":
            leaves = [module for module in training.model.modules() if not any(True for _ in module.children())]
            modules = [module for module in leaves if is_cheap_module(qualified_class_name(module))]
            require(_judge(bool(modules), kind, type(training.model).__name__))
            selective.recompute_outputs(training, modules)
        elif kind == "attention":
            modules = find_attention(training.model)
            require(_judge(bool(modules), kind, type(training.model).__name__))
            stop_key_value_cache(training)
            recompute_modules(training.model, modules)
        else:
            blocks = require_blocks(training)
            stop_key_value_cache(training)
            # A kept convolution output that is then overwritten could not be used again.
            selective.stop_inplace(training, (inner for block in blocks for inner in block.modules()))
            recompute_modules(training.model, blocks, selective.contexts_keeping_expensive)


_CHEAP = re.compile(
    r"(?!_)\w*Norm([123]d)?"
    r"|(ReLU6?|LeakyReLU|PReLU|ELU|SELU|CELU|GLU|SiLU|Mish|Sigmoid|LogSigmoid|Tanh|Tanhshrink|Threshold)"
    r"|Hard(swish|sigmoid|tanh|shrink)|Soft(plus|sign|shrink)|\w*GELU\w*|\w+Activation"
)
"""Class names of normalizations and of activations that draw no random numbers."""


def is_cheap_module(qualified_class: str) -> bool:
    """Whether modules of a class normalize, or are an activation, by its name."""
    module, _, name = qualified_class.rpartition(".")
    return _CHEAP.fullmatch(name) is not None and not module.startswith("torch.nn.utils")


def _judge(found: bool, kind: ParameterValue, model_class: str) -> Verdict:
    wanted = "attention" if kind == "attention" else "normalization or activation"
    return judged(found, f"{model_class} has no {wanted} modules; use recompute=elementwise")
