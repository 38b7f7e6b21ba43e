"""Recompute the outputs of cheap modules, and all that they make inside.

Checkpointing a normalization alone saves nothing, because the convolution that reads its output saves that as its own
input. Here a saved tensor that is such an output is replaced by a note of where it came from; when the backward pass
asks for it, the module runs again, on an input that is kept anyway or is itself recomputed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from advisor.training.block_call import BlockCall
from advisor.training.recompute import region_contexts, wrap_modules
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
        self._keep: Callable[[torch.Tensor], Any] = PassedTensor
        wrap_modules(
            model,
            modules,
            lambda module: {"checkpoint_fn": self._run, "contexts": region_contexts([module], [])},
        )

    @contextlib.contextmanager
    def context(self) -> Generator[None, None, None]:
        """Enter around a forward pass, inside all other saved-tensor hooks: these get what is kept after all."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        self._keep, restore = hooks or (PassedTensor, PassedTensor.unpack)

        def unpack(kept: Any) -> torch.Tensor:
            return kept.tensor() if isinstance(kept, _Again) else restore(kept)

        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, unpack):
                yield
        finally:
            self._keep = PassedTensor
            self._outputs.clear()  # The graph holds what it will ask for.

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
        return self._keep(tensor)


class _Remember(torch.autograd.Function):
    """Saves a tensor inside a checkpointed region, so that the region can be asked for it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(output)
        return output.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        return None


class _Output:
    """What a module returned, without its contents; the graph node of ``token`` recomputes these."""

    def __init__(self, output: torch.Tensor, token: torch.Tensor) -> None:
        # A weak reference keeps torch from giving the storage's identity to another one.
        self._storage = StorageWeakRef(output.untyped_storage())  # type: ignore[no-untyped-call]
        self._version = output._version
        self._dtype = output.dtype
        self._node: Any = token.grad_fn
        self._again: torch.Tensor | None = None

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor in this storage still holds what the module wrote."""
        return tensor._version == self._version and tensor.dtype is self._dtype

    def again(self) -> torch.Tensor:
        """The output, recomputed once and held as long as the graph may ask for it."""
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
