"""Recompute only what is cheap to compute and large to keep."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import note_if_idle, require
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP, judge_blocks, require_blocks
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    from advisor.training.random_state import ContextPair
    from advisor.training.training import Training

__all__ = ["SelectiveCheckpoint", "dropout_probability", "is_cheap_module"]

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
"""ATen operators whose outputs are kept, unless they drop out: nearly all arithmetic of a block."""


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
        if facts is None:
            return Verdict.yes()
        if parameters["recompute"] == "attention":
            return _judge_attention(facts.attention_count, facts.model_class)
        if parameters["recompute"] == "normalization":
            return _judge_cheap(any(map(is_cheap_module, facts.module_counts)), facts.model_class)
        return judge_blocks(facts.block_count, 1, facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Wrap the attention modules, or the blocks with a policy on their operators."""
        from advisor.training.recompute import recompute_modules, stop_key_value_cache
        from advisor.training.structure import find_attention

        if parameters["recompute"] == "normalization":
            _recompute_outputs(training)
        elif parameters["recompute"] == "attention":
            modules = find_attention(training.model)
            require(_judge_attention(len(modules), type(training.model).__name__))
            stop_key_value_cache(training)
            recompute_modules(training.model, modules)
        else:
            blocks = require_blocks(training)
            stop_key_value_cache(training)
            # A kept convolution output that is then overwritten could not be used again.
            _stop_inplace(training, (inner for block in blocks for inner in block.modules()))
            recompute_modules(training.model, blocks, _contexts_keeping_expensive)


def _recompute_outputs(training: Training) -> None:
    """Have nothing keep what normalizations and activations return."""
    from advisor.methods.recompute._block_costs import require_visible_hooks
    from advisor.methods.recompute._selective_checkpoint import OutputRecomputation
    from advisor.training.structure import qualified_class_name

    leaves = [module for module in training.model.modules() if not any(True for _ in module.children())]
    modules = [module for module in leaves if is_cheap_module(qualified_class_name(module))]
    require(_judge_cheap(bool(modules), type(training.model).__name__))
    require_visible_hooks()
    _stop_inplace(training, modules)
    outputs = OutputRecomputation(training.model, modules)
    compute_loss = training.compute_loss

    def computing(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        with outputs.context():  # Around the loss: inside the hooks that other methods put around the pass.
            return compute_loss(model, batch)

    training.compute_loss = computing
    note_if_idle(
        training,
        lambda: outputs.avoided,
        "selective_checkpoint(recompute=normalization) changed nothing: no saved activation is what a normalization or "
        "an activation returned",
    )


def _stop_inplace(training: Training, modules: Iterable[torch.nn.Module]) -> None:
    """Have activations copy: what is recomputed from must not be written over."""
    from advisor.training.replaced_attribute import replace_attribute

    for module in modules:
        if getattr(module, "inplace", False) is True:
            replace_attribute(training, module, "inplace", False)


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

    from advisor.training.random_state import Repeated

    # Regions that share a weight would share its autocast copy too; the second would then record one operator less
    # than its recomputation, which starts without the copy, and the two would not match.
    torch.clear_autocast_cache()
    forward, recompute = create_selective_checkpoint_contexts(_keep_expensive)  # type: ignore[no-untyped-call]
    return forward, Repeated(functools.partial(_explained, recompute))


@contextlib.contextmanager
def _explained(recompute: contextlib.AbstractContextManager[Any]) -> Generator[None, None, None]:
    """Around a recomputation that uses what was kept: explains torch's error where that was overwritten since."""
    try:
        with recompute:
            yield
    except RuntimeError as error:
        if "has been mutated" not in str(error):
            raise
        raise MethodRefusedError(
            "selective_checkpoint(recompute=elementwise) keeps what products of matrices, convolutions and "
            "attention return, but a block of this model writes over one of these in place; write `x = x + y` "
            "instead of `x += y`, and activations without `inplace=True`, or use checkpoint"
        ) from error


def _keep_expensive(_context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep the outputs of expensive operators, unless they draw random numbers.

    An operator that is kept does not run again, so it would not advance the generator in the recomputation, and all
    dropout after it would draw other masks.
    """
    from torch.utils.checkpoint import CheckpointPolicy

    if operator not in _expensive_operators() or dropout_probability(operator, args, kwargs):
        return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def dropout_probability(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The probability of dropout inside an operator, however it was given; ``None`` if it has none."""
    place = _dropout_argument(operator)
    if place is None:
        return None
    index, default = place
    return args[index] if index < len(args) else kwargs.get("dropout_p", default)


@functools.cache
def _dropout_argument(operator: torch._ops.OpOverload) -> tuple[int, Any] | None:
    """The index and default of an operator's argument ``dropout_p``, if it has one."""
    arguments = enumerate(operator._schema.arguments)
    return next(((index, one.default_value) for index, one in arguments if one.name == "dropout_p"), None)


@functools.cache
def _expensive_operators() -> frozenset[torch._ops.OpOverload]:
    """Those of :data:`_EXPENSIVE` that this torch has."""
    import torch

    packets = [getattr(torch.ops.aten, name) for name in _EXPENSIVE if hasattr(torch.ops.aten, name)]
    return frozenset(packet.default for packet in packets)
