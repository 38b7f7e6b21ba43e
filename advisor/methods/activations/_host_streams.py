"""Copies between device and host: on streams of their own on a GPU, at once elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.methods.activations._host_copies import HostCopy, is_on_gpu

__all__ = ["Copier", "copier_by_device"]


class Copier:
    """Begins copies, and makes computation wait for them; the host never waits.

    This one copies at once: for a CPU, where results can be compared, and for fake tensors.
    """

    def copy_out(self, flat: torch.Tensor) -> HostCopy:
        """Begin to copy to the host, after all computation so far. ``flat`` must live until :meth:`release`."""
        return HostCopy(flat)

    def is_out(self, copy: HostCopy) -> bool:
        """Whether the copy has reached the host."""
        return True

    def release(self, copy: HostCopy) -> None:
        """Have further computation wait until ``copy`` is out: the memory it was made from can then be used again."""

    def copy_in(self, copy: HostCopy) -> tuple[torch.Tensor, Any]:
        """Begin to copy back, to new memory; the second value is for :meth:`wait`."""
        return copy.to_device(), None

    def wait(self, arriving: Any) -> None:
        """Have further computation wait until a tensor is in."""


class _StreamCopier(Copier):
    """Copies on one stream per direction of a CUDA device: they delay neither each other nor computation."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy_out(self, flat: torch.Tensor) -> HostCopy:
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            return HostCopy(flat)

    def is_out(self, copy: HostCopy) -> bool:
        assert copy.copied is not None, "a copy from a GPU has an event"
        return bool(copy.copied.query())  # type: ignore[no-untyped-call]

    def release(self, copy: HostCopy) -> None:
        torch.cuda.current_stream(self._device).wait_event(copy.copied)  # type: ignore[arg-type]

    def copy_in(self, copy: HostCopy) -> tuple[torch.Tensor, Any]:
        # The memory that it goes to is free when all computation so far is done.
        flat = torch.empty(copy.host.shape, dtype=copy.host.dtype, device=self._device)
        self._in.wait_stream(torch.cuda.current_stream(self._device))
        self._in.wait_event(copy.copied)
        with torch.cuda.stream(self._in):
            flat.copy_(copy.host, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._in)
        flat.record_stream(self._in)  # Its graph may be dropped before anyone waits for it.
        return flat, arrived

    def wait(self, arriving: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(arriving)


def copier_by_device() -> Callable[[torch.Tensor], Copier]:
    """A function that finds the copier for a tensor; one for each device, made when first needed."""
    copiers: dict[torch.device, Copier] = {}

    def find(tensor: torch.Tensor) -> Copier:
        if tensor.device not in copiers:
            copiers[tensor.device] = _StreamCopier(tensor.device) if is_on_gpu(tensor) else Copier()
        return copiers[tensor.device]

    return find
