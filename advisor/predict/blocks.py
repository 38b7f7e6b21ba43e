"""Blocks of device memory and pools of free ones, as in PyTorch's CUDA caching allocator.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` of PyTorch.
"""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = [
    "LARGEST_SMALL_BYTES",
    "LARGE_SEGMENT_BYTES",
    "SMALLEST_BLOCK_BYTES",
    "SMALL_SEGMENT_BYTES",
    "Block",
    "Pool",
]

_MEBIBYTE = 1 << 20

SMALLEST_BLOCK_BYTES = 512
"""``kMinBlockSize``: every size is a multiple of it."""

LARGEST_SMALL_BYTES = _MEBIBYTE
"""``kSmallSize``: above it the pool of large blocks serves, and there this much or less is never split off."""

SMALL_SEGMENT_BYTES = 2 * _MEBIBYTE
"""``kSmallBuffer``: a segment, or a page of an expandable one, of the small pool."""

LARGE_SEGMENT_BYTES = 20 * _MEBIBYTE
"""``large_segment_size``: a segment for up to 10 MiB, or a page of an expandable one, of the large pool."""


class Block:
    """A stretch of one segment, linked with its neighbours; addresses only order blocks of one size.

    Attributes:
        requested: Bytes requested; 0 while it is free.
        mapped: Whether its addresses are backed by memory; always so outside of expandable segments.
        before: Its neighbour at lower addresses of the same segment.
        after: Its neighbour at higher addresses.
    """

    __slots__ = ("address", "after", "allocated", "before", "mapped", "pool", "requested", "size")

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.requested = 0
        self.allocated = False
        self.mapped = True
        self.before: Block | None = None
        self.after: Block | None = None

    def cut(self, size: int) -> Block:
        """Shorten this block to its first ``size`` bytes; the rest becomes a new block of the same kind."""
        assert 0 < size < self.size
        rest = Block(self.pool, self.address + size, self.size - size)
        rest.mapped = self.mapped
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.size = size
        return rest

    def absorb_free_neighbours(self) -> None:
        """Merge with each free neighbour that is equally mapped, removing it from its pool.

        This block itself must be in no pool, as its size changes.
        """
        before, after = self.before, self.after
        if before is not None and not before.allocated and before.mapped is self.mapped:
            before.pool.remove(before)
            self.address = before.address
            self.size += before.size
            self.before = before.before
            if self.before is not None:
                self.before.after = self
        if after is not None and not after.allocated and after.mapped is self.mapped:
            after.pool.remove(after)
            self.size += after.size
            self.after = after.after
            if self.after is not None:
                self.after.before = self


class Pool:
    """Free blocks, small or large, of a single stream.

    Attributes:
        free: ``(size, address, block)`` of those with memory, in order: the best fit is the first that is not smaller.
        unmapped: ``(address, block)`` of those without, in order.
    """

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.free: list[tuple[int, int, Block]] = []
        self.unmapped: list[tuple[int, Block]] = []

    def add(self, block: Block) -> None:
        """Add a free block."""
        if block.mapped:
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))

    def remove(self, block: Block) -> None:
        """Remove a block."""
        if block.mapped:
            place = bisect_left(self.free, (block.size, block.address))
            assert self.free[place][2] is block
            del self.free[place]
        else:
            place = bisect_left(self.unmapped, (block.address,))
            assert self.unmapped[place][1] is block
            del self.unmapped[place]

    def first_fit(self, size: int) -> int:
        """Index in ``free`` of the smallest block of at least this size; the end if there is none."""
        return bisect_left(self.free, (size,))
