"""Copies between device and host: on streams of their own on a GPU, at once elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.methods.activations._host_copies import HostCopy, is_on_gpu
from advisor.methods.activations._overlapped_copies import Copier

__all__ = ["ImmediateCopier", "StreamCopier", "copier_by_device"]


class ImmediateCopier:
    """Copies at once; for a CPU, where results can be compared, and for fake tensors."""

    def copy_out(self, flat: torch.Tensor) -> HostCopy:
        """Copy."""
        return HostCopy(flat, pinned=False)

    def is_out(self, copy: HostCopy) -> bool:
        """Always."""
        return True

    def release(self, copy: HostCopy) -> None:
        """Nothing to wait for."""

    def copy_in(self, copy: HostCopy) -> tuple[torch.Tensor, Any]:
        """Copy back: always to memory of its own."""
        return copy.to_device(), None

    def wait(self, arriving: Any) -> None:
        """Nothing to wait for."""


class StreamCopier:
    """Copies on one stream per direction, so that they wait neither for each other nor computation for them.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy_out(self, flat: torch.Tensor) -> HostCopy:
        """Begin after all computation so far: ``flat`` may only just be computed."""
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            return HostCopy(flat, pinned=True)

    def is_out(self, copy: HostCopy) -> bool:
        """Whether its event has passed."""
        assert copy.copied is not None, "a copy from a GPU has an event"
        return bool(copy.copied.query())  # type: ignore[no-untyped-call]

    def release(self, copy: HostCopy) -> None:
        """Computation waits, not the host; memory given back from now on is used after the copy."""
        torch.cuda.current_stream(self._device).wait_event(copy.copied)  # type: ignore[arg-type]

    def copy_in(self, copy: HostCopy) -> tuple[torch.Tensor, Any]:
        """Begin when the memory it goes to is free, which is when all computation so far is done."""
        current = torch.cuda.current_stream(self._device)
        flat = torch.empty(copy.host.shape, dtype=copy.host.dtype, device=self._device)
        self._in.wait_stream(current)
        self._in.wait_event(copy.copied)
        with torch.cuda.stream(self._in):
            flat.copy_(copy.host, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._in)
        flat.record_stream(self._in)  # Its graph may be dropped before anyone waits for it.
        return flat, arrived

    def wait(self, arriving: Any) -> None:
        """Computation waits for the copy, not the host."""
        torch.cuda.current_stream(self._device).wait_event(arriving)


def copier_by_device() -> Callable[[torch.Tensor], Copier]:
    """A function that finds the copier for a tensor; one for each device, made when first needed."""
    copiers: dict[torch.device, Copier] = {}

    def find(tensor: torch.Tensor) -> Copier:
        if tensor.device not in copiers:
            copiers[tensor.device] = StreamCopier(tensor.device) if is_on_gpu(tensor) else ImmediateCopier()
        return copiers[tensor.device]

    return find
