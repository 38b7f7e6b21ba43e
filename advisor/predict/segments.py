"""Sources of the caching allocator's memory: segments of fixed size, or expandable ones mapped page by page.

Source: ``alloc_block``, ``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, ``release_blocks`` and
``get_free_block`` in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.predict.blocks import (
    LARGE_SEGMENT_BYTES,
    LARGEST_SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    SMALLEST_BLOCK_BYTES,
    Block,
    Pool,
)
from advisor.predict.whole_numbers import round_up

__all__ = ["ExpandableSegments", "FixedSegments", "segment_bytes"]

_SMALLEST_OWN_SEGMENT = 10 << 20
"""``kMinLargeAlloc``: requests from this size on get their own segment."""

_LARGE_ROUNDING = 2 << 20
"""``kRoundLarge``: the multiple such a segment is rounded to."""

_ABOVE_FIXED = LARGE_SEGMENT_BYTES << 30
"""Start of expandable segments if there are fixed ones, assumed to lie below: a multiple of both page sizes."""

_ENDLESS = 1 << 62
"""Address range of an expandable segment. Really 9/8 of the device's memory, followed by another segment."""


def segment_bytes(size: int) -> int:
    """Bytes that the allocator asks the driver for when no free block has ``size`` bytes."""
    if size <= LARGEST_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < _SMALLEST_OWN_SEGMENT:
        return LARGE_SEGMENT_BYTES
    return round_up(size, _LARGE_ROUNDING)


class FixedSegments:
    """One ``cudaMalloc`` per segment; a segment is released only as a whole, when none of it is in use."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._next_address = 0

    def best_fit(self, pool: Pool, size: int) -> Block | None:
        """Take the best-fitting free block out of its pool; among equals, the one at the lowest address."""
        place = pool.first_fit(size)
        return pool.free.pop(place)[2] if place < len(pool.free) else None

    def grow(self, pool: Pool, size: int) -> Block:
        """A new segment, in no pool. The driver's addresses are unknown and assumed to increase."""
        segment = Block(pool, self._next_address, segment_bytes(size))
        self._next_address += segment.size
        self.held_bytes += segment.size
        return segment

    def splits(self, pool: Pool, remaining: int) -> bool:
        """Any rest of a small block, but no rest of up to 1 MiB of a large one, as in ``should_split``."""
        return remaining >= SMALLEST_BLOCK_BYTES if pool.small else remaining > LARGEST_SMALL_BYTES

    def release(self, pools: Sequence[Pool]) -> None:
        """Release the segments that are entirely free."""
        for pool in pools:
            for _, _, block in list(pool.free):
                if block.before is None and block.after is None:
                    pool.remove(block)
                    self.held_bytes -= block.size


class ExpandableSegments:
    """One address range per pool, whose pages are mapped when needed and unmapped when memory is short.

    Args:
        before: Existing segments of fixed size. Their free memory is used as well, and none are added.
    """

    def __init__(self, before: FixedSegments | None = None) -> None:
        self._before = before or FixedSegments()
        self._first_address = 0 if before is None else _ABOVE_FIXED
        self._mapped_bytes = 0
        self._begun: set[bool] = set()

    @property
    def held_bytes(self) -> int:
        """Reserved now."""
        return self._mapped_bytes + self._before.held_bytes

    def best_fit(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that is large enough; one that can grow counts with its potential size."""
        place = pool.first_fit(size)
        if place == len(pool.free):
            return None
        while place + 1 < len(pool.free) and _room(pool.free[place + 1][2]) < _room(pool.free[place][2]):
            place += 1
        return pool.free.pop(place)[2]

    def grow(self, pool: Pool, size: int) -> Block:
        """Map pages at the lowest addresses where mapped and unmapped free blocks together are large enough."""
        block = self._lowest_room(pool, size)
        if not block.mapped:
            self._map(block, min(block.size, size))
        while block.size < size:
            unmapped = block.after
            assert unmapped is not None, "the room was looked for"
            self._map(unmapped, min(unmapped.size, size - block.size))
            block = unmapped
        pool.remove(block)
        return block

    def splits(self, pool: Pool, remaining: int) -> bool:
        """Every rest, in both pools (``should_split``)."""
        return remaining >= SMALLEST_BLOCK_BYTES

    def release(self, pools: Sequence[Pool]) -> None:
        """Unmap every page without blocks in use, and release segments of fixed size."""
        self._before.release(pools)
        for pool in pools:
            for _, address, block in list(pool.free):
                if address >= self._first_address:
                    self._unmap(block)

    def _lowest_room(self, pool: Pool, size: int) -> Block:
        if pool.small not in self._begun:
            self._begun.add(pool.small)
            begun = Block(pool, self._first_address, _ENDLESS)
            begun.mapped = False
            pool.add(begun)
        for _, unmapped in pool.unmapped:
            before = unmapped.before
            first = before if before is not None and not before.allocated else unmapped
            room, block = 0, first
            while room < size and not block.allocated:
                room += block.size
                if block.after is None:
                    break
                block = block.after
            if room >= size:
                return first
        raise AssertionError("the last unmapped block is endless")

    def _map(self, block: Block, size: int) -> None:
        """Map the first pages of an unmapped block and merge them with free neighbours."""
        mapped = round_up(size, _page(block.pool))
        block.pool.remove(block)
        if mapped < block.size:
            block.pool.add(block.cut(mapped))
        block.mapped = True
        self._mapped_bytes += mapped
        block.absorb_free_neighbours()
        block.pool.add(block)

    def _unmap(self, block: Block) -> None:
        """Unmap the whole pages of a free block; the rest before and after them stays free and mapped."""
        page = _page(block.pool)
        begin = round_up(block.address, page)
        end = (block.address + block.size) // page * page
        if begin >= end:
            return
        pool = block.pool
        pool.remove(block)
        if begin > block.address:
            rest = block.cut(begin - block.address)
            pool.add(block)
            block = rest
        if end < block.address + block.size:
            pool.add(block.cut(end - block.address))
        block.mapped = False
        self._mapped_bytes -= block.size
        block.absorb_free_neighbours()
        pool.add(block)


def _page(pool: Pool) -> int:
    return SMALL_SEGMENT_BYTES if pool.small else LARGE_SEGMENT_BYTES


def _room(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
