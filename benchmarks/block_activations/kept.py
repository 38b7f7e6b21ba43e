"""What a block keeps between its forward and its backward pass, tensor by tensor, with who made it."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.methods.tensor_parallel._collectives import ProcessRanks
from advisor.methods.tensor_parallel._derivation import derive
from advisor.methods.tensor_parallel._region_calls import Tokens
from advisor.methods.tensor_parallel._slicing import slice_block
from advisor.training.recompute import recompute_modules
from advisor.training.training import Training
from benchmarks.block_activations.forms import FORMS, HEADS, SAMPLES, TOKENS, WIDTH, Form
from benchmarks.workloads.transformer_block import Block

__all__ = ["Kept", "of_all_forms"]

_DROPOUT = 0.1
_WAITS, _WAIT_SECONDS = 10, 0.02

_USES = {
    "block": (use("checkpoint", every=1),),
    "attention": (use("selective_checkpoint", recompute="attention"),),
    "elementwise": (use("selective_checkpoint", recompute="elementwise"),),
}


class Kept(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which of the tensors that were made inside of it are still alive.

    Args:
        block: The block; its parameters and buffers do not count.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, tuple[StorageWeakRef, int, str]] = {}
        self._of_block = {one.untyped_storage()._cdata for one in (*block.parameters(), *block.buffers())}
        self._inside: list[str] = []
        for name, module in block.named_modules():
            plain = name.replace("_checkpoint_wrapped_module.", "").removesuffix("_checkpoint_wrapped_module")
            module.register_forward_pre_hook(self._entering(plain))
            module.register_forward_hook(self._leaving)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator, and note who made what it returns."""
        made = operator(*args, **(kwargs or {}))
        where = " ".join(filter(None, (self._inside[-1] if self._inside else "", operator._schema.name.split("::")[1])))
        for each in torch.utils._pytree.tree_leaves(made):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                known = self._made.get(storage._cdata)
                if known is None or _is_gone(known[0]):
                    self._made[storage._cdata] = (_reference(storage), storage.nbytes(), where)
        return made

    def besides(self, output: torch.Tensor) -> list[tuple[str, int]]:
        """Maker and bytes of each tensor that is alive, but for the block's output."""
        left_out = {output.untyped_storage()._cdata, *self._of_block}
        return [
            (where, size)
            for key, (alive, size, where) in self._made.items()
            if key not in left_out and not _is_gone(alive)
        ]

    def _entering(self, name: str) -> Any:
        return lambda module, args: self._inside.append(name)

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        self._inside.pop()


def of_all_forms() -> dict[str, list[tuple[str, int]]]:
    """Name of a form -> what one block in 16 bits keeps on this rank."""
    group = dist.group.WORLD
    assert group is not None, "it runs on ranks"
    ranks = ProcessRanks(group)
    hidden = torch.randn(SAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain = Block(WIDTH, HEADS, _DROPOUT).bfloat16()
    model = nn.Sequential(plain, copy.deepcopy(plain))
    derivation = derive(model, list(model), lambda model: model(hidden), ranks.size)
    derivation.require(sequence=True)
    found = {}
    for form in FORMS:
        holder = nn.Sequential(copy.deepcopy(plain))
        if form.tensor:
            tokens = Tokens.of(hidden) if form.sequence else None
            slice_block(holder[0], derivation.plans[0].regions, ranks, tokens=tokens)
        _recompute(holder, form)
        found[form.name] = _kept(holder, ranks.part(hidden, 1) if form.sequence else hidden)
    return found


def _reference(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _is_gone(storage: StorageWeakRef) -> bool:
    gone: bool = storage.expired()  # type: ignore[no-untyped-call]
    return gone


def _recompute(holder: nn.Sequential, form: Form) -> None:
    if form.recompute == "core":
        block = holder[0]
        assert isinstance(block, Block)
        recompute_modules(holder, [block.attention.core])
    elif form.recompute:
        apply_settings(Training(holder, blocks=(Block,)), _USES[form.recompute])


def _kept(holder: nn.Sequential, own: torch.Tensor) -> list[tuple[str, int]]:
    block = holder[0]
    with Kept(block) as kept:
        output = block(own.clone().requires_grad_())
    found = []
    for _ in range(_WAITS):  # A thread of gloo may hold what it has sent a moment longer.
        found.append(kept.besides(output))
        time.sleep(_WAIT_SECONDS)
    return min(found, key=lambda tensors: sum(size for _, size in tensors))
