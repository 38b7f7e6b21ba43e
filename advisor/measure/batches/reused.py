"""Restore batches that are reused, as a training may write to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from advisor.measure.memory.storages import tensors_in

__all__ = ["ReusedBatches"]


class _Kept(NamedTuple):
    tensor: torch.Tensor
    copy: torch.Tensor
    version: int


class ReusedBatches:
    """Undoes what a step has written to its batch.

    A loss may mask tokens in its batch. A training gets another batch in every step; trials reuse a few, in which all
    would be masked after some steps. On a GPU a step works on a copy anyway.

    Copies are kept until the first step shows whether it writes at all.
    """

    def __init__(self) -> None:
        self._writes: bool | None = None
        self._kept: list[_Kept] = []

    def keep(self, batches: list[Any]) -> list[torch.Tensor]:
        """Use these batches from now on; return the copies, which are also data on the host."""
        self._kept = []
        return self.keep_too(batches)

    def keep_too(self, batches: list[Any]) -> list[torch.Tensor]:
        """Use these batches in addition to the others; return their copies."""
        if self._writes is False:
            return []
        kept = [
            _Kept(tensor, tensor.detach().clone(), tensor._version)
            for tensor in tensors_in(batches)
            if tensor.device.type == "cpu" and not tensor.is_inference()
        ]
        self._kept += kept
        return [one.copy for one in kept]

    def restore(self) -> None:
        """Restore what a step, or a pass without one, has overwritten."""
        if not self._kept:
            return
        written = [one.tensor._version != one.version for one in self._kept]
        self._writes = bool(self._writes) or any(written)
        if not self._writes:
            self._kept = []
            return
        for number, (one, was_written) in enumerate(zip(self._kept, written, strict=True)):
            if was_written:
                with torch.no_grad():
                    one.tensor.copy_(one.copy)
                self._kept[number] = one._replace(version=one.tensor._version)
