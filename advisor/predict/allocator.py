"""Reserved memory from allocated memory: a log of allocations replayed through PyTorch's CUDA caching allocator.

An out-of-memory error occurs when *reserved* bytes reach the limit, and those depend on the order of allocations: on
which blocks were split, which lie between blocks in use, and which could be released. The replay follows the
allocator's default rules (no ``max_split_size_mb``, ``roundup_power2_divisions`` or ``garbage_collection_threshold``),
for one stream and outside CUDA graphs.

Not modelled: the driver's choice of addresses (which only decides between free blocks of equal size), memory held until
another stream is done with it, and the CUDA context, which is not the allocator's.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch; its default settings in ``c10/core/AllocatorConfig.h``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from advisor.predict.blocks import LARGEST_SMALL_BYTES, SMALLEST_BLOCK_BYTES, Block, Pool
from advisor.predict.segments import ExpandableSegments, FixedSegments, segment_bytes
from advisor.predict.whole_numbers import round_up

__all__ = ["CachingAllocator", "Replay", "replay"]

_STEADY_STEPS, _MOST_STEPS = 2, 8


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of a replay.

    Attributes:
        peak_reserved_bytes: Peak reserved memory, as reported by ``torch.cuda.max_memory_reserved``.
        peak_allocated_bytes: Peak memory of blocks in use, as reported by ``torch.cuda.max_memory_allocated``: sizes
            rounded to 512 bytes, including the rest of a large block if that is too small to be split off.
        retries: How often the cache was released because the limit was reached (``num_alloc_retries``).
        out_of_memory: Whether an allocation failed nevertheless, which ends the replay: the peaks are those of the
            events before.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    retries: int
    out_of_memory: bool


def replay(
    events: Iterable[tuple[int, int]],
    *,
    expandable: bool = False,
    expandable_from: int = 0,
    limit_bytes: int | None = None,
    step: int | None = None,
) -> Replay:
    """Play a log of allocations and frees through a model of the caching allocator.

    Args:
        events: ``(identity of the storage, bytes)`` in order: positive when it is allocated, negative when it is
            freed. An identity may be reused once it is free. Empty storages (0 bytes) have no block.
        expandable: Whether ``expandable_segments`` is on.
        expandable_from: Index of the event before which it is switched on and unused memory is released; memory in use
            stays in segments of fixed size.
        limit_bytes: Limit of reserved bytes, as set by ``torch.cuda.set_per_process_memory_fraction``; ``None`` for no
            limit. Expandable segments may exceed it by less than a page, as in PyTorch, which checks the limit for
            the size of a fixed segment but maps whole pages.
        step: Index of the first event of a step to repeat, if it frees all that it allocates: each step finds other
            gaps than the one before, and may need more. It is repeated until ``_STEADY_STEPS`` of them have reserved
            nothing more, or ``_MOST_STEPS`` times.
    """
    log = list(events)
    switched = expandable_from if expandable else 0
    assert 0 <= switched <= len(log), f"event {switched} is not one of {len(log)}"
    allocator = CachingAllocator(expandable=expandable and not switched, limit_bytes=limit_bytes)
    live: dict[int, Block] = {}
    fits = _play(allocator, log[:switched], live)
    if switched:
        allocator.expand()
    fits = fits and _play(allocator, log[switched:], live)
    if step is not None and fits and _is_closed(log[step:]):
        fits = _play_again(allocator, log[step:], live)
    return Replay(
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        retries=allocator.retries,
        out_of_memory=not fits,
    )


def _play(allocator: CachingAllocator, events: Iterable[tuple[int, int]], live: dict[int, Block]) -> bool:
    """Play events; return whether all succeeded."""
    for identity, size in events:
        if size > 0:
            assert identity not in live, f"storage {identity} is allocated twice"
            block = allocator.allocate(size)
            if block is None:
                return False
            live[identity] = block
        elif size < 0:
            assert identity in live, f"storage {identity} is freed, but not allocated"
            block = live.pop(identity)
            assert block.requested == -size, f"storage {identity} has {block.requested} bytes, but {-size} are freed"
            allocator.free(block)
    return True


def _is_closed(step: Sequence[tuple[int, int]]) -> bool:
    """Whether a step frees exactly what it allocates."""
    live: set[int] = set()
    for identity, size in step:
        if size > 0:
            live.add(identity)
        elif size < 0:
            if identity not in live:
                return False
            live.remove(identity)
    return not live


def _play_again(allocator: CachingAllocator, step: Sequence[tuple[int, int]], live: dict[int, Block]) -> bool:
    """Repeat a step until it is steady; return whether all allocations succeeded."""
    steady = 0
    for _ in range(_MOST_STEPS - 1):
        before = allocator.reserved_bytes
        if not _play(allocator, step, live):
            return False
        steady = steady + 1 if allocator.reserved_bytes == before else 0
        if steady == _STEADY_STEPS:
            break
    return True


class CachingAllocator:
    """The allocator's state, with a limit of reserved bytes or none; see :class:`Replay` for its counters."""

    def __init__(self, *, expandable: bool = False, limit_bytes: int | None = None) -> None:
        self.allocated_bytes = 0
        self.retries = 0
        self._source: FixedSegments | ExpandableSegments = ExpandableSegments() if expandable else FixedSegments()
        self._limit_bytes = limit_bytes
        self._small, self._large = Pool(small=True), Pool(small=False)
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved now."""
        return self._source.held_bytes

    def allocate(self, requested: int) -> Block | None:
        """A block of this many bytes (at least 1); ``None`` if there is no room even after releasing the cache."""
        assert requested > 0
        size = round_up(requested, SMALLEST_BLOCK_BYTES)  # ``roundup_power2_divisions`` is off by default
        pool = self._small if size <= LARGEST_SMALL_BYTES else self._large
        block = self._source.best_fit(pool, size)
        if block is None:
            if not self._may_grow(size):
                return None
            block = self._source.grow(pool, size)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._source.held_bytes)
        if self._source.splits(pool, block.size - size):
            pool.add(block.cut(size))
        block.allocated = True
        block.requested = requested
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Return a block to its pool, merged with its free neighbours."""
        assert block.allocated
        block.allocated = False
        block.requested = 0
        self.allocated_bytes -= block.size
        block.absorb_free_neighbours()
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Release all free memory to the device where possible."""
        self._source.release((self._large, self._small))

    def expand(self) -> None:
        """Switch ``expandable_segments`` on, as the method of that name does."""
        assert isinstance(self._source, FixedSegments)
        self.empty_cache()
        self._source = ExpandableSegments(self._source)

    def _may_grow(self, size: int) -> bool:
        """Whether the limit has room for a segment, after releasing the cache if necessary."""
        most = math.inf if self._limit_bytes is None else self._limit_bytes - segment_bytes(size)
        if self._source.held_bytes > most:
            self.retries += 1
            self.empty_cache()
        return self._source.held_bytes <= most
