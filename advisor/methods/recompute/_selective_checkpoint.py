"""What selective checkpointing keeps: the outputs of expensive operators, or all but the outputs of cheap modules.

Checkpointing a normalization alone saves nothing, because the convolution that reads its output saves that as its own
input. Here a saved tensor that is such an output is replaced by a note of where it came from; when the backward pass
asks for it, the module runs again, on an input that is kept anyway or is itself recomputed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from advisor.errors import MethodRefusedError
from advisor.methods.applying import note_if_idle
from advisor.methods.recompute._block_costs import require_visible_hooks
from advisor.training.block_call import BlockCall, as_returned
from advisor.training.random_state import ContextPair, Repeated
from advisor.training.recompute import region_contexts, wrap_modules
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.saved.packed_tensors import PassedTensor
from advisor.training.training import Training

__all__ = ["contexts_keeping_expensive", "dropout_probability", "recompute_outputs", "stop_inplace"]

_EXPENSIVE_NAMES = (
    "mm addmm bmm baddbmm _scaled_mm convolution "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable"
)
_EXPENSIVE = frozenset(
    getattr(operators, name).default
    for operators, names in (
        (torch.ops.aten, _EXPENSIVE_NAMES),
        (torch.ops._c10d_functional, "all_reduce reduce_scatter_tensor"),
    )
    for name in names.split()
    if hasattr(operators, name)
)
"""Operators whose outputs are kept, unless they drop out: nearly all arithmetic of a block, and sums over devices."""


def stop_inplace(training: Training, modules: Iterable[nn.Module]) -> None:
    """Have activations copy: what is recomputed from must not be written over."""
    for module in modules:
        if getattr(module, "inplace", False) is True:
            replace_attribute(training, module, "inplace", False)


def contexts_keeping_expensive() -> ContextPair:
    """Contexts of a region that keeps the outputs of expensive operators and recomputes all else."""
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
    if operator not in _EXPENSIVE or dropout_probability(operator, args, kwargs):
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


def recompute_outputs(training: Training, modules: list[nn.Module]) -> None:
    """Have nothing keep what some cheap modules return."""
    require_visible_hooks()
    stop_inplace(training, modules)
    outputs = _OutputRecomputation(training.model, modules)
    compute_loss = training.compute_loss

    def computing(model: nn.Module, batch: Any) -> torch.Tensor:
        with outputs.context():  # Around the loss: inside the hooks that other methods put around the pass.
            return compute_loss(model, batch)

    training.compute_loss = computing
    note_if_idle(
        training,
        lambda: outputs.avoided,
        "selective_checkpoint normalization changed nothing: no saved activation is what a normalization or "
        "an activation returned",
    )


class _OutputRecomputation:
    """Saved-tensor hooks, and the modules whose outputs they do not keep; counts these as ``avoided``.

    The modules take one tensor, return another, never in place, and draw no random numbers.
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
        return as_returned(output, call.values)

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
    def __init__(self, output: _Output, tensor: torch.Tensor) -> None:
        self._output = output
        self._size, self._stride, self._offset = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> torch.Tensor:
        return self._output.again().as_strided(self._size, self._stride, self._offset)
