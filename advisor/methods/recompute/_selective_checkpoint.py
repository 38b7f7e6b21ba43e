"""Recomputing what cheap modules return: nobody keeps their outputs, or what they make inside.

Checkpointing a normalization alone saves nothing, because the convolution that reads its output saves that as its own
input. Here a saved tensor that is such an output is replaced by a note of where it came from; when the backward pass
asks for it, the module runs again, on an input that is kept anyway, or is itself the output of such a module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from advisor.training.block_call import BlockCall
from advisor.training.recompute import region_contexts
from advisor.training.saved.packed_tensors import PassedTensor

__all__ = ["OutputRecomputation"]


class OutputRecomputation:
    """Saved-tensor hooks, and the modules whose outputs they do not keep.

    Args:
        model: Changed in place.
        modules: Modules of it that take one tensor, return another, never in place, and draw no random numbers.

    Attributes:
        avoided: Saved tensors that were not kept, since the hooks were made.
    """

    def __init__(self, model: nn.Module, modules: list[nn.Module]) -> None:
        self.avoided = 0
        self._outputs: dict[int, _Output] = {}
        self._hooks: _Hooks | None = None
        wanted = {id(module) for module in modules}

        def wrap(module: nn.Module) -> nn.Module:
            return checkpoint_wrapper(
                module,
                checkpoint_impl=CheckpointImpl.NO_REENTRANT,
                checkpoint_fn=self._run,
                contexts=region_contexts([module], []),
            )

        apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrap, check_fn=lambda each: id(each) in wanted)

    @contextlib.contextmanager
    def context(self) -> Generator[None, None, None]:
        """Enter around a forward pass, inside of all other saved-tensor hooks: these get what is kept after all."""
        self._hooks = _Hooks(torch._C._autograd._top_saved_tensors_default_hooks(False))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._hooks.unpack):
                yield
        finally:
            self._hooks = None
            self._outputs.clear()  # Whoever will ask for one holds it himself.

    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def _run(self, module: nn.Module, *args: Any, contexts: Callable[[], Any], **kwargs: Any) -> Any:
        read = BlockCall.read(module, args, kwargs)
        top = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if top is None or top[0] != self._pack or read is None or not torch.is_grad_enabled():
            return module(*args, **kwargs)  # Also in a region that the model itself recomputes: twice in the same way.
        hidden, call = read

        def region(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            output = call.run(module, hidden)
            return output, _Remember.apply(output)  # type: ignore[no-untyped-call]

        output, token = checkpoint(region, hidden, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        storage = output.untyped_storage()
        if token.grad_fn is not None and storage._cdata != hidden.untyped_storage()._cdata:
            self._outputs[storage._cdata] = _Output(output, token)
        return (output,) if call.in_tuple else output

    def _pack(self, tensor: torch.Tensor) -> Any:
        if type(tensor) is not nn.Parameter and tensor.layout is torch.strided:
            output = self._outputs.get(tensor.untyped_storage()._cdata)
            if output is not None and output.has(tensor):
                self.avoided += 1
                return _Again(output, tensor)
        assert self._hooks is not None, "tensors are packed within the context"
        return self._hooks.keep(tensor)


class _Remember(torch.autograd.Function):
    """Saves a tensor inside of a checkpointed region, so that the region can be asked for it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(output)
        return output.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        return None


class _Output:
    """What a module returned, without its contents.

    Args:
        output: The tensor.
        token: What ``_Remember`` returned for it: its node in the graph gets the tensor again.
    """

    def __init__(self, output: torch.Tensor, token: torch.Tensor) -> None:
        # A weak reference keeps torch from giving the storage's identity to another one.
        self._storage = StorageWeakRef(output.untyped_storage())  # type: ignore[no-untyped-call]
        self._version = output._version
        self._dtype = output.dtype
        self._node: Any = token.grad_fn
        self._again: torch.Tensor | None = None

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor in this storage still has the contents that the module gave it."""
        return tensor._version == self._version and tensor.dtype is self._dtype

    def again(self) -> torch.Tensor:
        """The output, computed again for the first who asks, and held until the last has gone."""
        if self._again is None:
            (self._again,) = self._node.saved_tensors
        assert self._again is not None
        return self._again


class _Again:
    """What the graph holds in place of an output, or of a view of one."""

    def __init__(self, output: _Output, tensor: torch.Tensor) -> None:
        self._output = output
        self._size, self._stride, self._offset = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> torch.Tensor:
        return self._output.again().as_strided(self._size, self._stride, self._offset)


class _Hooks:
    """Of one forward pass: what other hooks make of tensors that are kept."""

    def __init__(self, below: tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]] | None) -> None:
        self._below = below

    def keep(self, tensor: torch.Tensor) -> Any:
        return PassedTensor(tensor) if self._below is None else self._below[0](tensor)

    def unpack(self, kept: Any) -> torch.Tensor:
        if isinstance(kept, _Again):
            return kept.tensor()
        if self._below is not None:
            return self._below[1](kept)
        assert isinstance(kept, PassedTensor)
        return kept.unpack()
