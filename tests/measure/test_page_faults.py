"""Pages that this process takes from the system are counted."""

import mmap

from advisor.measure.page_faults import page_faults


def test_pages_that_are_written_to_are_counted_and_those_that_are_there_are_not() -> None:
    pages = 200
    with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)

        def touch() -> int:
            before = page_faults()
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1
            after = page_faults()
            assert before is not None
            assert after is not None
            return after - before

        assert touch() >= pages
        assert touch() < pages / 2
