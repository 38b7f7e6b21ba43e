"""Saved tensors on the host, copied while the device goes on computing: when to begin which copy.

Copies out begin as tensors are saved, copies in before the backward pass asks for them, in reverse order. What is saved
last is asked for first and stays. A :class:`Copier` makes the copies, so the schedule can be tested without a GPU.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from advisor.methods.activations._host_copies import HostBound, HostCopy, MoveToHost, is_on_gpu
from advisor.training.saved.packed_tensors import check_version
from advisor.training.saved.tensor_pipeline import Encoded

__all__ = ["Copier", "OverlappedMove", "copier_by_device"]


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


class _Moved:
    """A flat tensor that is on the device, on the host, or on its way."""

    def __init__(self, flat: torch.Tensor, index: int) -> None:
        self.index = index
        self.bytes = flat.nbytes
        self.flat: torch.Tensor | None = flat
        self.version = flat._version
        self.copy: HostCopy | None = None
        self.arriving: Any = None
        self.asked_for = False


class _Pass:
    """The tensors of one forward pass, in the order in which they were saved; dead once their graph is."""

    def __init__(self) -> None:
        self.moved: list[weakref.ref[_Moved]] = []
        self.bytes = 0
        self.staying: deque[weakref.ref[_Moved]] = deque()
        self.staying_bytes = 0
        self.ahead: deque[weakref.ref[_Moved]] = deque()
        self.next_in = -1


class OverlappedMove(MoveToHost):
    """The stage that moves tensors to the host and back, overlapping with computation.

    Args:
        min_bytes: As for :class:`MoveToHost`.
        bound: The host memory that may be taken.
        ahead: Share of the bytes of the pass before. So much of what is saved last stays on the device, so much may be
            on its way out, and so much is brought back early. At least one tensor is on its way.
        copier: Finds what copies a tensor of a device.
    """

    def __init__(
        self, min_bytes: int, bound: HostBound, *, ahead: float, copier: Callable[[torch.Tensor], Copier]
    ) -> None:
        super().__init__(min_bytes, bound)
        self._ahead = ahead
        self._copier_for = copier
        self._pass = _Pass()
        self._limit = 0
        self._leaving: deque[tuple[Copier, HostCopy, torch.Tensor, _Moved]] = deque()
        self._leaving_bytes = 0

    def begin(self) -> None:
        """A new order of tensors, and limits from the sizes in the last one."""
        self._release_down_to(0)
        if self._pass.bytes:
            self._limit = int(self._ahead * self._pass.bytes)
        self._pass = _Pass()

    def encode(self, flat: torch.Tensor) -> Encoded | None:
        """Queue it to be copied out: at once in the first pass, later when enough was saved after it."""
        if not self.accepts(flat):
            return None
        copier, current = self._copier_for(flat), self._pass
        moved = _Moved(flat, len(current.moved))
        current.moved.append(weakref.ref(moved))
        current.next_in = moved.index
        current.bytes += moved.bytes
        current.staying.append(weakref.ref(moved))
        current.staying_bytes += moved.bytes
        while current.staying_bytes > self._limit:
            oldest = current.staying.popleft()()
            if oldest is None:  # Its graph is gone: what it held is counted anew.
                current.staying_bytes = sum(each.bytes for ref in current.staying if (each := ref()) is not None)
            else:
                current.staying_bytes -= oldest.bytes
                self._begin_out(oldest, copier)
        return Encoded(None, lambda _: self._restore(moved, current, copier))

    def _begin_out(self, moved: _Moved, copier: Copier) -> None:
        flat = moved.flat
        if flat is None or flat._version != moved.version:
            return  # Written to since it was saved: it stays, and is an error if the backward pass asks for it.
        copy = self._bound.copied(flat, copier.copy_out)
        moved.copy, moved.flat = copy, None
        self._leaving.append((copier, copy, flat, moved))
        self._leaving_bytes += moved.bytes
        self._release_down_to(self._limit, keep=1)

    def _release_down_to(self, limit: int, keep: int = 0) -> None:
        """Let go of device memory whose copy is out, and, the oldest first, of as much more as exceeds a limit."""
        while self._leaving:
            copier, copy, flat, moved = self._leaving[0]
            if not copier.is_out(copy):
                if self._leaving_bytes <= limit or len(self._leaving) <= keep:
                    return
                copier.release(copy)
            if flat._version != moved.version:
                moved.flat, moved.copy = flat, None  # Written to while it may have been copied: an error if asked for.
            self._leaving.popleft()
            self._leaving_bytes -= moved.bytes

    def _restore(self, moved: _Moved, its_pass: _Pass, copier: Copier) -> torch.Tensor:
        self._release_down_to(0)
        moved.asked_for = True
        if moved.copy is None:
            assert moved.flat is not None
            check_version(moved.flat, moved.version)
            flat = moved.flat
        else:
            if moved.flat is None:
                moved.flat, moved.arriving = copier.copy_in(moved.copy)
            copier.wait(moved.arriving)
            flat, moved.flat, moved.arriving = moved.flat, None, None
        self._bring_ahead(moved.index, its_pass, copier)
        return flat

    def _bring_ahead(self, index: int, its_pass: _Pass, copier: Copier) -> None:
        """Begin to bring back what was saved before ``index``, the last first, within the limit."""
        its_pass.next_in = min(its_pass.next_in, index - 1)
        # What should have been asked for before ``index`` may never be: it counts no longer.
        ahead = [each for ref in its_pass.ahead if (each := ref()) is not None]
        waiting = [each for each in ahead if not each.asked_for and each.index < index]
        count = sum(each.bytes for each in waiting)
        while its_pass.next_in >= 0:
            following = its_pass.moved[its_pass.next_in]()
            if following is not None and following.copy is not None and not following.asked_for:
                if waiting and count + following.bytes > self._limit:
                    break
                following.flat, following.arriving = copier.copy_in(following.copy)
                waiting.append(following)
                count += following.bytes
            its_pass.next_in -= 1
        its_pass.ahead = deque(weakref.ref(each) for each in waiting)
