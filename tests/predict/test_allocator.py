from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise

import pytest

from advisor.predict.allocator import CachingAllocator, Replay, replay
from advisor.predict.blocks import Block

_KIB = 1 << 10
_MIB = 1 << 20


def _replay(*sizes: float, **options: object) -> Replay:
    """Sizes in MiB: a positive one is allocated, ``-n`` frees what the n-th allocation got (from 1)."""
    return replay(_events(*sizes), **options)  # type: ignore[arg-type]


def _events(*sizes: float) -> list[tuple[int, int]]:
    allocated: list[int] = []
    events = []
    for size in sizes:
        if size > 0:
            allocated.append(round(size * _MIB))
            events.append((len(allocated), allocated[-1]))
        else:
            events.append((round(-size), -allocated[round(-size) - 1]))
    return events


def _reserved(*sizes: float, **options: object) -> float:
    return _replay(*sizes, **options).peak_reserved_bytes / _MIB


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * _MIB),
        (512, 512, 2 * _MIB),
        (513, 1024, 2 * _MIB),
        (_MIB, _MIB, 2 * _MIB),
        (_MIB + 1, _MIB + 512, 20 * _MIB),
        (10 * _MIB - 512, 10 * _MIB - 512, 20 * _MIB),
        (10 * _MIB, 10 * _MIB, 10 * _MIB),
        (10 * _MIB + 1, 10 * _MIB + 512, 12 * _MIB),
        (30 * _MIB, 30 * _MIB, 30 * _MIB),
    ],
)
def test_a_lone_request_is_rounded_and_gets_the_segment_of_its_size(
    requested: int, allocated: int, reserved: int
) -> None:
    peaks = replay([(1, requested)])
    assert (peaks.peak_allocated_bytes, peaks.peak_reserved_bytes) == (allocated, reserved)


def test_a_rest_of_up_to_1_mib_is_not_split_off_a_large_block_and_counts_as_allocated() -> None:
    assert _replay(15).peak_reserved_bytes == _replay(15).peak_allocated_bytes == 16 * _MIB
    assert _replay(14.5).peak_allocated_bytes == 14.5 * _MIB
    assert _replay(14.5).peak_reserved_bytes == 16 * _MIB


def test_expandable_segments_split_every_rest_off() -> None:
    peaks = _replay(15, expandable=True)
    assert (peaks.peak_allocated_bytes, peaks.peak_reserved_bytes) == (15 * _MIB, 20 * _MIB)


def test_requests_of_one_pool_share_a_segment() -> None:
    assert _reserved(1, 1) == 2
    assert _reserved(1, 1, 1 / 2048) == 4
    assert _reserved(9, 9) == 20
    assert _reserved(9, 9, 9) == 40


def test_the_pools_do_not_help_each_other() -> None:
    assert _reserved(12, -1, 1) == 14
    assert _reserved(1, 1, -1, -2, 1.5) == 22


def test_the_smallest_block_that_fits_is_taken() -> None:
    assert _reserved(30, 20, -1, -2, 12, 30) == 50  # 12 from the 20, or there would be no 30 left


def test_of_blocks_of_one_size_that_at_the_lowest_address_is_taken() -> None:
    allocator = CachingAllocator()
    low, high = (_allocated(allocator, 20 * _MIB) for _ in range(2))
    allocator.free(high)
    allocator.free(low)
    assert _allocated(allocator, 12 * _MIB).address == 0


def test_a_split_block_no_longer_serves_what_it_was_made_for() -> None:
    assert _reserved(40, -1, 40) == 40
    assert _reserved(40, -1, 20, 30) == 70
    assert _reserved(40, -1, 20, 30, expandable=True) == 60  # 20 of the first 40 are left, and 20 are added


def test_freed_neighbours_become_one_block() -> None:
    between = (5, 5, 5, -1, -3)  # a free 5, a used 5 and a free 10, in 20
    assert _reserved(*between, 18) == 38
    assert _reserved(*between, -2, 18) == 20


def test_the_cache_is_released_when_the_limit_is_met() -> None:
    peaks = _replay(30, -1, 40, limit_bytes=50 * _MIB)
    assert (peaks.retries, peaks.out_of_memory) == (1, False)
    assert peaks.peak_reserved_bytes == peaks.peak_allocated_bytes == 40 * _MIB


def test_only_segments_without_any_block_in_use_are_released() -> None:
    peaks = _replay(40, -1, 12, 30, limit_bytes=60 * _MIB)  # 12 in use keep the 40
    assert (peaks.retries, peaks.out_of_memory, peaks.peak_reserved_bytes) == (1, True, 40 * _MIB)


def test_of_expandable_segments_all_pages_without_a_block_in_use_are_released() -> None:
    peaks = _replay(40, -1, 12, 30, limit_bytes=60 * _MIB, expandable=True)  # 12 in use keep a page of 20
    assert (peaks.retries, peaks.out_of_memory, peaks.peak_reserved_bytes) == (1, False, 60 * _MIB)


def test_the_limit_itself_may_be_reached() -> None:
    assert not _replay(30, limit_bytes=30 * _MIB).out_of_memory
    assert _replay(30, limit_bytes=30 * _MIB - 1).out_of_memory


def test_expandable_segments_pass_the_limit_by_less_than_a_page() -> None:
    peaks = _replay(22, limit_bytes=22 * _MIB, expandable=True)  # the limit is held against 22, and two pages mapped
    assert (peaks.out_of_memory, peaks.peak_reserved_bytes) == (False, 40 * _MIB)


def test_the_replay_ends_where_memory_runs_out() -> None:
    peaks = _replay(12, 20, -2, 100, limit_bytes=40 * _MIB)
    assert (peaks.out_of_memory, peaks.retries, peaks.peak_reserved_bytes) == (True, 1, 32 * _MIB)


def test_an_expandable_block_that_can_grow_is_spared() -> None:
    allocator = CachingAllocator(expandable=True)
    first, _ = _allocated(allocator, 20 * _MIB), _allocated(allocator, 12 * _MIB)
    allocator.free(first)  # 20 free at the beginning; 8 free at the end, where more can be mapped
    assert _allocated(allocator, 6 * _MIB).address == 0
    assert allocator.reserved_bytes == 40 * _MIB


def test_unmapped_pages_at_low_addresses_are_mapped_again_first() -> None:
    allocator = CachingAllocator(expandable=True)
    first, _ = _allocated(allocator, 40 * _MIB), _allocated(allocator, 20 * _MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * _MIB
    assert _allocated(allocator, 21 * _MIB).address == 0
    assert _allocated(allocator, 21 * _MIB).address == 60 * _MIB  # the 19 that are left are too small
    assert allocator.reserved_bytes == 100 * _MIB


def test_nothing_allocated_needs_nothing() -> None:
    assert replay([]) == replay([(1, 0), (1, 0)])
    assert replay([]).peak_reserved_bytes == 0


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([(1, -512)], "not allocated"),
        ([(1, 512), (1, 512)], "allocated twice"),
        ([(1, 512), (1, -1024)], "has 512 bytes"),
    ],
)
def test_a_log_that_cannot_be_is_refused(events: list[tuple[int, int]], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        replay(events)


def test_the_parent_may_import_it() -> None:
    code = "import sys, advisor.predict.allocator; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# What holds for every log.

_SEEDS = range(12)


def _random_log(seed: int) -> list[tuple[int, int]]:
    """Sizes from 8 bytes to 64 MiB; everything is freed in the end."""
    numbers = random.Random(seed)
    live: dict[int, int] = {}
    events = []
    for identity in range(300):
        live[identity] = int(2 ** numbers.uniform(3, 26))
        events.append((identity, live[identity]))
        while live and numbers.random() < 0.48:
            freed = numbers.choice(list(live))
            events.append((freed, -live.pop(freed)))
    return events + [(identity, -size) for identity, size in live.items()]


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", _SEEDS)
def test_blocks_in_use_never_overlap_and_never_exceed_what_is_reserved(seed: int, expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    live: dict[int, Block] = {}
    for identity, size in _random_log(seed):
        if size > 0:
            live[identity] = _allocated(allocator, size)
            assert live[identity].size >= size
        else:
            allocator.free(live.pop(identity))
        assert allocator.allocated_bytes == sum(block.size for block in live.values())
        assert allocator.allocated_bytes <= allocator.reserved_bytes
        for small in (True, False):
            stretches = sorted((b.address, b.address + b.size) for b in live.values() if b.pool.small is small)
            assert all(one[1] <= next_one[0] for one, next_one in pairwise(stretches))
    allocator.empty_cache()  # what was split has become whole again, or it could not be given back
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


@pytest.mark.parametrize("seed", _SEEDS)
def test_expandable_segments_hold_only_the_pages_in_use_once_the_cache_is_empty(seed: int) -> None:
    allocator = CachingAllocator(expandable=True)
    live: dict[int, Block] = {}
    for step, (identity, size) in enumerate(_random_log(seed)):
        if size > 0:
            live[identity] = _allocated(allocator, size)
        else:
            allocator.free(live.pop(identity))
        if step % 10 == 0:
            allocator.empty_cache()
            pages: set[tuple[int, int]] = set()
            for block in live.values():
                page = 2 * _MIB if block.pool.small else 20 * _MIB
                last = (block.address + block.size - 1) // page
                pages.update((page, number) for number in range(block.address // page, last + 1))
            assert allocator.reserved_bytes == sum(page for page, _ in pages)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_limit_is_kept_or_memory_runs_out(seed: int) -> None:
    log = _random_log(seed)
    free = replay(log)
    assert replay(log, limit_bytes=free.peak_reserved_bytes) == free
    for share in (0.6, 0.8, 0.95):
        limit = int(share * free.peak_reserved_bytes)
        limited = replay(log, limit_bytes=limit)
        assert limited.peak_reserved_bytes <= limit
        assert limited.retries > 0
        assert limited.out_of_memory or limited.peak_allocated_bytes <= limit
    assert replay(log, limit_bytes=free.peak_allocated_bytes // 2).out_of_memory


def test_what_was_there_before_segments_expanded_stays_in_those_of_fixed_size() -> None:
    """A page of an expandable segment has 20 MiB, a segment for 12 MiB has 12."""
    log = _events(12, 30, -2, 15)
    assert replay(log, expandable=True).peak_reserved_bytes == 60 * _MIB
    assert replay(log, expandable=True, expandable_from=1).peak_reserved_bytes == (12 + 40) * _MIB
    assert replay(log, expandable=True, expandable_from=3).peak_reserved_bytes == (12 + 30) * _MIB
    assert replay(log, expandable_from=3) == replay(log)
    with pytest.raises(AssertionError, match="event 5"):
        replay(log, expandable=True, expandable_from=5)


def test_what_is_unused_when_segments_begin_to_expand_is_given_back() -> None:
    allocator = CachingAllocator()
    _, unused = _allocated(allocator, 12 * _MIB), _allocated(allocator, 30 * _MIB)
    allocator.free(unused)
    allocator.expand()
    assert allocator.reserved_bytes == 12 * _MIB
    _allocated(allocator, 15 * _MIB)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == ((12 + 20) * _MIB, (12 + 30) * _MIB)


def test_segments_of_fixed_size_serve_on_and_any_rest_is_split_off() -> None:
    """Of a segment of 20 MiB for 6 MiB there are 14 left, and 0.5 of them after 13.5."""
    log = _events(6, 13.5, 0.5, 0.25, 2)
    after = replay(log, expandable=True, expandable_from=1)
    assert after.peak_reserved_bytes == (20 + 2 + 20) * _MIB, "0.5 and 0.25 are small ones, 2 needs a page"
    assert after.peak_allocated_bytes == 22.25 * _MIB, "and not 22.75"
    assert replay(log).peak_allocated_bytes == 22.75 * _MIB


def test_segments_of_fixed_size_are_given_back_when_memory_is_short_after_segments_expand() -> None:
    log = _events(12, 30, -1, 40)
    assert replay(log, expandable=True, expandable_from=1).peak_reserved_bytes == (12 + 80) * _MIB
    short = replay(log, expandable=True, expandable_from=1, limit_bytes=80 * _MIB)
    assert (short.out_of_memory, short.retries, short.peak_reserved_bytes) == (False, 1, 80 * _MIB)


@pytest.mark.parametrize("seed", _SEEDS)
def test_expandable_segments_do_as_the_rules_read_literally(seed: int) -> None:
    allocator = CachingAllocator(expandable=True)
    literal = _LiteralRange(20 * _MIB)
    live: dict[int, Block] = {}
    for step, (identity, size) in enumerate(_random_log(seed)):
        if abs(size) <= _MIB:
            continue
        if size > 0:
            live[identity] = _allocated(allocator, size)
            assert live[identity].address == literal.allocate(live[identity].size)
        else:
            literal.free(live[identity].address)
            allocator.free(live.pop(identity))
        if step % 40 == 0:
            literal.release()
            allocator.empty_cache()
        assert allocator.reserved_bytes == literal.mapped()


class _LiteralRange:
    """One expandable segment as a plain list of stretches ``[size, state]``, searched from end to end."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._stretches: list[list[int | str]] = [[1 << 50, "unmapped"]]

    def mapped(self) -> int:
        return sum(int(size) for size, state in self._stretches if state != "unmapped")

    def allocate(self, size: int) -> int:
        fits = sorted(
            (int(stretch[0]), place)
            for place, stretch in enumerate(self._stretches)
            if stretch[1] == "free" and int(stretch[0]) >= size
        )
        while len(fits) > 1 and self._room(fits[1][1]) < self._room(fits[0][1]):
            del fits[0]
        place = fits[0][1] if fits else self._grow(size)
        rest = int(self._stretches[place][0]) - size
        self._stretches[place : place + 1] = [[size, "used"], [rest, "free"]]
        return sum(int(stretch[0]) for stretch in self._normal()[:place])

    def free(self, address: int) -> None:
        begin = 0
        for stretch in self._stretches:
            if begin == address:
                stretch[1] = "free"
            begin += int(stretch[0])
        self._normal()

    def release(self) -> None:
        begin, stretches = 0, []
        for size, state in self._stretches:
            end = begin + int(size)
            first, last = -(-begin // self._page) * self._page, end // self._page * self._page
            if state == "free" and first < last:
                stretches += [[first - begin, "free"], [last - first, "unmapped"], [end - last, "free"]]
            else:
                stretches.append([size, state])
            begin = end
        self._stretches = stretches
        self._normal()

    def _room(self, place: int) -> int:
        after = self._stretches[place + 1] if place + 1 < len(self._stretches) else [0, "used"]
        return int(self._stretches[place][0]) + (int(after[0]) if after[1] == "unmapped" else 0)

    def _grow(self, size: int) -> int:
        for place, (_, state) in enumerate(self._stretches):
            if state != "unmapped":
                continue
            first = place - 1 if place and self._stretches[place - 1][1] == "free" else place
            last, room = first, 0
            while last < len(self._stretches) and self._stretches[last][1] != "used" and room < size:
                room += int(self._stretches[last][0])
                last += 1
            if room >= size:
                break
        missing, changed = size, []
        for length, state in self._stretches[first:last]:
            pages = min(int(length), -(-missing // self._page) * self._page) if state == "unmapped" else int(length)
            changed += [[pages, "free"], [int(length) - pages, "unmapped"]]
            missing -= pages
        self._stretches[first:last] = changed
        self._normal()
        return first

    def _normal(self) -> list[list[int | str]]:
        stretches: list[list[int | str]] = []
        for size, state in self._stretches:
            if stretches and stretches[-1][1] == state != "used":
                stretches[-1][0] = int(stretches[-1][0]) + int(size)
            elif size:
                stretches.append([size, state])
        self._stretches = stretches
        return stretches


def _allocated(allocator: CachingAllocator, size: int) -> Block:
    block = allocator.allocate(size)
    assert block is not None
    return block


def test_a_step_is_repeated_until_it_takes_nothing_more() -> None:
    """What the first step has left in the cache is cut up by the second."""
    once = [(0, 31), (0, -31), (1, 20), (2, 24), (3, 11), (1, -20), (2, -24), (3, -11)]
    step = [(number, size * _MIB) for number, size in once]
    assert replay(step).peak_reserved_bytes == 56 * _MIB
    assert replay(step * 4).peak_reserved_bytes == 68 * _MIB
    assert replay(step, step=0).peak_reserved_bytes == 68 * _MIB
    assert replay(step, step=0, limit_bytes=60 * _MIB).retries > 0


def test_a_step_that_leaves_something_is_not_repeated() -> None:
    assert replay([(0, 30 * _MIB)], step=0).peak_reserved_bytes == 30 * _MIB
