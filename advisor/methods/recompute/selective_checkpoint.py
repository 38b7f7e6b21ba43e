"""Recompute only what is cheap to compute and large to keep."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP, judge_blocks
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    from advisor.training.random_state import ContextPair
    from advisor.training.training import Training

__all__ = ["SelectiveCheckpoint"]

_EXPENSIVE = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_scaled_mm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""ATen operators whose outputs are kept, unless they drop out: they hold nearly all arithmetic of a block."""

_COMMUNICATING = ("all_reduce", "reduce_scatter_tensor")
"""Operators whose outputs are kept because they are sums over several devices."""


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

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs attention modules, or repeated blocks."""
        if facts is None:
            return Verdict.yes()
        if parameters["recompute"] == "attention":
            return _judge_attention(facts.attention_count, facts.model_class)
        if parameters["recompute"] == "normalization":
            return _judge_cheap(any(map(is_cheap_module, facts.module_counts)), facts.model_class)
        return judge_blocks(facts.block_count, 1, facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Wrap the attention modules, or the blocks with a policy on their operators."""
        from advisor.methods.recompute.copying_activations import stop_inplace
        from advisor.training.recompute import recompute_modules, stop_key_value_cache
        from advisor.training.structure import find_attention, find_blocks

        if parameters["recompute"] == "normalization":
            self._recompute_outputs(training)
            return
        if parameters["recompute"] == "attention":
            modules = find_attention(training.model)
            verdict = _judge_attention(len(modules), type(training.model).__name__)
        else:
            modules = find_blocks(training.model, training.blocks)
            verdict = judge_blocks(len(modules), 1, type(training.model).__name__)
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
        stop_key_value_cache(training)
        if parameters["recompute"] == "attention":
            recompute_modules(training.model, modules)
        else:
            # A kept convolution output that is then overwritten could not be used again.
            stop_inplace(training, (inner for module in modules for inner in module.modules()))
            recompute_modules(training.model, modules, _contexts_keeping_expensive)

    def _recompute_outputs(self, training: Training) -> None:
        """Have nothing keep what normalizations and activations return."""
        from advisor.methods.recompute._block_costs import can_see_saved_tensors
        from advisor.methods.recompute._selective_checkpoint import OutputRecomputation
        from advisor.methods.recompute.copying_activations import stop_inplace
        from advisor.training.structure import qualified_class_name

        leaves = [module for module in training.model.modules() if not any(True for _ in module.children())]
        modules = [module for module in leaves if is_cheap_module(qualified_class_name(module))]
        verdict = _judge_cheap(bool(modules), type(training.model).__name__)
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
        if not can_see_saved_tensors():
            raise MethodRefusedError("this version of torch does not tell which saved-tensor hooks are in use")
        stop_inplace(training, modules)
        outputs = OutputRecomputation(training.model, modules)
        compute_loss = training.compute_loss
        said = False

        def computing(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            nonlocal said
            with outputs.context():  # Around the loss: inside of the hooks that other methods put around the pass.
                loss = compute_loss(model, batch)
            if outputs.avoided == 0 and not said:
                said = True
                training.notes.append(
                    "selective_checkpoint(recompute=normalization) changed nothing: no saved activation is what a "
                    "normalization or an activation returned"
                )
            return loss

        training.compute_loss = computing


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


def _judge_cheap(found: bool, model_class: str) -> Verdict:
    if found:
        return Verdict.yes()
    return Verdict.no(f"{model_class} has no normalization or activation modules; use recompute=elementwise")


def _judge_attention(count: int, model_class: str) -> Verdict:
    return Verdict.yes() if count else Verdict.no(f"{model_class} has no attention modules; use recompute=elementwise")


def _contexts_keeping_expensive() -> ContextPair:
    import torch
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    # Regions that share a weight would share its autocast copy too; the second would then record one operator less
    # than its recomputation, which starts without the copy, and the two would not match.
    torch.clear_autocast_cache()
    forward, recompute = create_selective_checkpoint_contexts(_keep_expensive)  # type: ignore[no-untyped-call]
    return forward, _Recomputing(recompute)


class _Recomputing(contextlib.AbstractContextManager[None]):
    """Around a recomputation that uses what was kept: says what torch means where that was overwritten since."""

    def __init__(self, inner: contextlib.AbstractContextManager[Any]) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        leaves = self._inner.__exit__(kind, error, traceback)
        if isinstance(error, RuntimeError) and "has been mutated" in str(error):
            raise MethodRefusedError(
                "selective_checkpoint(recompute=elementwise) keeps what products of matrices, convolutions and "
                "attention return, but a block of this model writes over one of these in place; write `x = x + y` "
                "instead of `x += y`, and activations without `inplace=True`, or use checkpoint"
            ) from error
        return leaves


def _keep_expensive(_context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep the outputs of expensive operators, unless they draw random numbers.

    An operator that is kept is not run again, so it would not advance the generator in the recomputation, and every
    dropout after it would draw another mask than in the forward pass.
    """
    from torch.utils.checkpoint import CheckpointPolicy

    if operator not in _expensive_operators() or _dropout(operator, args, kwargs) > 0.0:
        return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def _dropout(operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """The probability of dropout inside an operator, however it was given; 0 if it has none."""
    index = _dropout_index(operator)
    if index is None:
        return 0.0
    default = operator._schema.arguments[index].default_value
    return float(args[index] if index < len(args) else kwargs.get("dropout_p", default or 0.0))


@functools.cache
def _dropout_index(operator: torch._ops.OpOverload) -> int | None:
    names = [argument.name for argument in operator._schema.arguments]
    return names.index("dropout_p") if "dropout_p" in names else None


@functools.cache
def _expensive_operators() -> frozenset[torch._ops.OpOverload]:
    """Those of :data:`_EXPENSIVE` and :data:`_COMMUNICATING` that this torch has."""
    import torch

    wanted = ((torch.ops.aten, _EXPENSIVE), (torch.ops._c10d_functional, _COMMUNICATING))
    packets = [getattr(space, name) for space, names in wanted for name in names if hasattr(space, name)]
    return frozenset(packet.default for packet in packets)
