"""What methods must know about an optimizer before they shard, rebuild or replace it, in one table.

Keyed by qualified class name, so that the parent process reads it without torch. ``tests/methods/test_traits.py`` holds
every row against the class itself. An optimizer of ours declares the same as ``traits`` in its class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["BITSANDBYTES_8BIT", "TORCHAO", "UNKNOWN", "OptimizerTraits", "Quantized", "named", "of_torch"]


class Quantized(msgspec.Struct, frozen=True):
    """How large parameters keep their state: in blocks of short numbers with one float32 scale each.

    Attributes:
        bits: Of a number.
        block: Numbers that share a scale.
        whole_blocks: Whether a parameter that is not made of whole blocks keeps long numbers.
        table: Values of the lookup table that comes with every state tensor.
        smallest: Numbers from which a parameter is large.
    """

    bits: int
    block: int
    whole_blocks: bool = False
    table: int = 0
    smallest: int = 4096

    def takes(self, numbers: int) -> bool:
        """Whether a parameter of so many numbers has its state in few bits."""
        return numbers >= self.smallest and not (self.whole_blocks and numbers % self.block)

    def tensor_bytes(self, numbers: int) -> int:
        """Bytes of one tensor of its state."""
        return numbers * self.bits // 8 + 4 * math.ceil(numbers / self.block) + 4 * self.table


class OptimizerTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of an optimizer class. The defaults hold for most.

    Attributes:
        state: State tensors of the size of a parameter. Single numbers, such as a count of steps, are left out.
        state_with: Option -> how many more there are where it is on.
        factored: Whether those of a matrix are one number per row and one per column.
        itemsize: Bytes of a number in the state; ``None``: as in the parameter.
        quantized: How the state of large parameters is kept short.
        per_parameter: Whether it updates each parameter from that one's gradient and state alone.
        param_groups: Whether it takes more than one parameter group.
        dense: Whether it takes dense gradients.
        fused: Whether torch has a kernel that steps all parameters at once (``fused=True``).
        rebuilds: Whether its class makes the same optimizer from the groups and defaults of another.
        adam: Whether its update is Adam's, with the options of torch.optim.Adam.
        decays_apart: Whether weight decay is applied to the parameters instead of being added to the gradients.
    """

    state: int
    state_with: dict[str, int] = {}
    factored: bool = False
    itemsize: int | None = None
    quantized: Quantized | None = None
    per_parameter: bool = True
    param_groups: bool = True
    dense: bool = True
    fused: bool = False
    rebuilds: bool = True
    adam: bool = False
    decays_apart: bool = False

    def state_tensors(self, options: Mapping[str, Any]) -> int:
        """State tensors of the size of a parameter, with the options of its group."""
        return self.state + sum(more for option, more in self.state_with.items() if options.get(option))

    def state_bytes(self, shape: Sequence[int], itemsize: int, options: Mapping[str, Any]) -> int:
        """Bytes of the state of a parameter whose numbers have ``itemsize`` bytes, with the options of its group."""
        numbers = math.prod(shape)
        if self.quantized is not None and self.quantized.takes(numbers):
            return self.state_tensors(options) * self.quantized.tensor_bytes(numbers)
        if self.factored and len(shape) > 1 and numbers:
            numbers = numbers // shape[-1] + numbers // shape[-2]
        return self.state_tensors(options) * numbers * (self.itemsize or itemsize)


UNKNOWN = OptimizerTraits(state=3, per_parameter=False, param_groups=False, dense=False, rebuilds=False)
"""The traits of an unknown optimizer: it supports nothing special, and keeps as much state as any other."""


def named(optimizer: str) -> OptimizerTraits:
    """The traits of a class, by its qualified name as a probe notes it (``"torch.optim.adamw.AdamW"``)."""
    if optimizer.startswith("torch.optim."):  # Not all of its classes say in which module they are.
        return _TORCH.get(optimizer.rpartition(".")[2], UNKNOWN)
    return _OTHERS.get(optimizer, UNKNOWN)


def of_torch(holds: Callable[[OptimizerTraits], bool]) -> list[str]:
    """The classes of torch.optim with a trait, as a refusal lists them."""
    return sorted(name for name, traits in _TORCH.items() if holds(traits))


_ADAM = OptimizerTraits(state=2, state_with={"amsgrad": 1}, fused=True, adam=True)
_ADAMW = msgspec.structs.replace(_ADAM, decays_apart=True)

_TORCH = {
    "Adadelta": OptimizerTraits(state=2),
    "Adafactor": OptimizerTraits(state=1, factored=True),
    "Adagrad": OptimizerTraits(state=1, fused=True),
    "Adam": _ADAM,
    "Adamax": OptimizerTraits(state=2),
    "AdamW": _ADAMW,
    "ASGD": OptimizerTraits(state=1),
    "LBFGS": msgspec.structs.replace(UNKNOWN, dense=True),  # Its state is one history of the whole model.
    "Muon": OptimizerTraits(state=1),
    "NAdam": OptimizerTraits(state=2),
    "RAdam": OptimizerTraits(state=2),
    "RMSprop": OptimizerTraits(state=1, state_with={"momentum": 1, "centered": 1}),
    "Rprop": OptimizerTraits(state=2),
    "SGD": OptimizerTraits(state=0, state_with={"momentum": 1}, fused=True),
    "SparseAdam": OptimizerTraits(state=2, dense=False),
}

_BITSANDBYTES = {
    "adagrad.Adagrad": 1,
    "adam.Adam": 2,
    "adam.PagedAdam": 2,
    "adamw.AdamW": 2,
    "adamw.PagedAdamW": 2,
    "ademamix.AdEMAMix": 3,
    "ademamix.PagedAdEMAMix": 3,
    "lamb.LAMB": 2,
    "lars.LARS": 1,
    "lion.Lion": 1,
    "lion.PagedLion": 1,
    "rmsprop.RMSprop": 1,
    "sgd.SGD": 1,
}
"""Class -> tensors of its state. Each has versions whose names end in 32bit and 8bit."""

BITSANDBYTES_8BIT = Quantized(8, 256)

TORCHAO = {
    "8bit": Quantized(8, 256, whole_blocks=True, table=256),
    "4bit": Quantized(4, 128, whole_blocks=True, table=16),
    "fp8": Quantized(8, 256, whole_blocks=True),
}
"""The formats of its Adams, by what ends the name of their class in lower case."""


_OTHERS = {
    **{
        f"bitsandbytes.optim.{name}{bits}": OptimizerTraits(
            state=state, itemsize=4, quantized=quantized, rebuilds=False
        )
        for name, state in _BITSANDBYTES.items()
        for bits, quantized in (("", None), ("32bit", None), ("8bit", BITSANDBYTES_8BIT))
        if not (bits == "32bit" and "AdEMAMix" in name)  # Those two make a state of the wrong shape.
    },
    **{
        f"torchao.optim.adam.Adam{decay}{bits.replace('fp', 'Fp')}": OptimizerTraits(
            state=2, quantized=quantized, rebuilds=False
        )
        for decay in ("", "W")
        for bits, quantized in TORCHAO.items()
    },
}
