"""What each block of a chain costs, measured in a training step that recomputes every block.

Such a step needs little memory, so it fits wherever any plan does. A block's bytes are counted in its forward pass,
from what autograd would save; its seconds are those of its recomputation, since the first run also pays for setup.
Fake tensors take no time: there, a block's work is its arithmetic and the bytes it makes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from advisor.errors import MethodRefusedError
from advisor.methods.recompute.optimal_plan import Unit, evened
from advisor.training.block_call import BlockCall
from advisor.training.chain import Segment
from advisor.training.random_state import RandomSource
from advisor.training.recompute import region_contexts

__all__ = ["BlockCosts", "require_visible_hooks"]

_FLOPS_PER_BYTE = 100
"""Roughly what devices compute in the time they take to move a byte."""


def require_visible_hooks() -> None:
    """Raise :class:`MethodRefusedError` if this torch does not tell which saved-tensor hooks are in use."""
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        raise MethodRefusedError("this version of torch does not tell which saved-tensor hooks are in use")


class BlockCosts:
    """Segments of one recomputed block of a chain each, which measure it."""

    def __init__(self, blocks: Sequence[nn.Module], generators: Sequence[RandomSource]) -> None:
        self._kinds = [(type(block), tuple(tuple(one.shape) for one in block.parameters())) for block in blocks]
        self._measured = [_Measured([block], generators) for block in blocks]

    def segments(self) -> tuple[Segment, ...]:
        """The segments, for the chain to run."""
        return tuple(Segment(number, number + 1, each) for number, each in enumerate(self._measured))

    def units(self) -> list[Unit]:
        """The most bytes and fewest seconds of each block, made even by :func:`evened`. Every block must have run."""
        return evened([Unit(each.seconds, each.kept, each.output) for each in self._measured], self._kinds)


class _Measured:
    def __init__(self, modules: Sequence[nn.Module], generators: Sequence[RandomSource]) -> None:
        self._contexts = region_contexts(modules, generators)
        self._warm = False
        self.seconds = 0.0
        self.kept = 0
        self.output = 0

    def __call__(self, blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
        (block,) = blocks
        ran_before = False

        def through(hidden: torch.Tensor) -> torch.Tensor:
            nonlocal ran_before
            again, ran_before = ran_before, True
            with self._timed(hidden, again=again):
                return call.run(block, hidden) if again else self._weighed(block, hidden, call)

        output: torch.Tensor = checkpoint(
            through, hidden, use_reentrant=False, preserve_rng_state=False, context_fn=self._contexts
        )
        return output

    def _weighed(self, block: nn.Module, hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
        """Run the block and count the storages that autograd would save, without keeping one."""
        own = _identities([hidden, *call.tensors()])
        seen: dict[int, tuple[StorageWeakRef, int]] = {}
        made: dict[int, tuple[StorageWeakRef, int]] = {}
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)

        def weigh(tensor: torch.Tensor) -> Any:
            _see(seen, tensor)
            return pack(tensor)

        with torch.autograd.graph.saved_tensors_hooks(weigh, unpack):
            output = call.run(block, hidden)
        own |= _identities([*block.parameters(), *block.buffers()])
        _see(made, output)
        self.kept = max(self.kept, sum(size for key, (_, size) in (seen | made).items() if key not in own))
        self.output = max(self.output, sum(size for key, (_, size) in made.items() if key not in own))
        return output

    @contextlib.contextmanager
    def _timed(self, hidden: torch.Tensor, *, again: bool) -> Generator[None, None, None]:
        if isinstance(hidden, FakeTensor):
            with FlopCounterMode(display=False) as flops:
                yield
            if not again:
                self.seconds = max(self.seconds, flops.get_total_flops() / _FLOPS_PER_BYTE + self.kept)
            return
        _wait(hidden.device)
        start = time.perf_counter()
        try:
            yield
        finally:  # A recomputation ends by an exception as soon as it has all that the backward pass needs.
            _wait(hidden.device)
            seconds = time.perf_counter() - start
            if again == self._warm:
                self.seconds = min(self.seconds or seconds, seconds)
            elif again:
                self.seconds, self._warm = seconds, True


def _see(seen: dict[int, tuple[StorageWeakRef, int]], tensor: torch.Tensor) -> None:
    """Note a tensor's storage; a weak reference keeps its identity, not its memory."""
    if tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]


def _identities(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
