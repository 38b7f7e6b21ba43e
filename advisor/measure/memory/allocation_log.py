"""Every allocation of the CPU allocator with its time, including what operations use inside themselves.

A dispatch mode sees results only. Scratch inside an operation (``convolution_backward`` above all) and what the
autograd engine allocates on its own are 4 % of the peak in convolutional networks.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

__all__ = ["AllocationLog"]


class AllocationLog:
    """Context manager that records the CPU allocator with torch's profiler.

    Attributes:
        events: ``(time in ns since the epoch, bytes)`` in order after the context has ended: positive when memory is
            allocated, negative when memory *allocated in this context* is freed.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> AllocationLog:
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if error is None:
            self.events = self._matched()

    def _matched(self) -> list[tuple[int, int]]:
        profiler = self._profile.profiler
        assert profiler is not None, "the context has been entered"
        recorded = profiler.kineto_results
        assert recorded is not None, "the context has been left"
        pending: list[Any] = list(recorded.experimental_event_tree())
        allocations = []
        while pending:
            event = pending.pop()
            tag, fields = event.typed
            if tag == _EventType.Allocation and fields.device.type == "cpu":
                allocations.append((event.start_time_ns, fields.alloc_size, fields.ptr))
            pending.extend(event.children)
        allocations.sort(key=lambda allocation: allocation[0])
        events = []
        taken: dict[int, int] = {}
        for moment, size, address in allocations:
            if size > 0:
                taken[address] = size
                events.append((moment, size))
            # The profiler remembers addresses from earlier uses of it, with sizes that are no longer true.
            elif address in taken:
                events.append((moment, -taken.pop(address)))
        return events
