"""Every allocation of one step on a CUDA device, from the log that torch's caching allocator can keep."""

from __future__ import annotations

from typing import Any

import torch

from advisor.measure.memory.timeline import MemoryTimeline, note_span, timeline_of
from advisor.training.training import Phase

__all__ = ["CudaHistory"]

_MOST_ENTRIES = 2**20
"""Of the log, some hundred bytes each; a step that changes more is not followed."""

_SIGNS = {"alloc": 1, "free_requested": -1}
"""Entries that change what tensors hold. That memory is given back for good, or fetched, changes what is reserved."""


class CudaHistory:
    """Follows one step, if the allocator is torch's own, which keeps a log.

    The log has no phases, but the allocator also counts; so a phase begins at a number of changes. If log and counters
    disagree in the end, there is no timeline. ``cuda`` is ``torch.cuda``, or an object with the same functions.
    """

    def __init__(self, cuda: Any, device: torch.device) -> None:
        self._cuda = cuda
        self._device = device
        self._before = int(cuda.memory_allocated(device))
        self._first = self._changes()
        self._phases: list[tuple[int, Phase]] = []
        self._in_chunks: list[tuple[int, int]] = []
        try:
            # No stacks are kept; those of C++, the default, would be prepared for all the same.
            cuda.memory._record_memory_history(
                "all", context=None, stacks="python", max_entries=_MOST_ENTRIES, clear_history=True
            )
        except Exception:  # whatever a backend without a log says
            self._recording = False
        else:
            self._recording = True

    def begin(self, phase: Phase) -> None:
        """A phase begins."""
        self._phases.append((self._changes() - self._first, phase))

    def hear(self, begins: bool) -> None:
        """Work in chunks begins or has ended."""
        note_span(self._in_chunks, self._changes() - self._first, begins=begins)

    def close(self) -> MemoryTimeline | None:
        """Stop, and return what happened; ``None`` if that is not known. To be called in any case."""
        if not self._recording:
            return None
        count = self._changes() - self._first
        try:
            entries = self._cuda.memory._snapshot(self._device)["device_traces"][self._device.index or 0]
            changes = [_SIGNS[one["action"]] * int(one["size"]) for one in entries if one["action"] in _SIGNS]
        except Exception:  # whatever another version of this private log makes of it
            return None
        finally:
            self._recording = False
            self._cuda.memory._record_memory_history(None)
        if len(changes) != count:
            return None
        return timeline_of(self._before, list(enumerate(changes)), self._phases, self._in_chunks)

    def _changes(self) -> int:
        """Allocations and frees since the process began."""
        stats = self._cuda.memory_stats(self._device)
        return int(stats.get("allocation.all.allocated", 0)) + int(stats.get("allocation.all.freed", 0))
