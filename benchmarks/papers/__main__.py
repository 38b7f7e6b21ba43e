"""Run every paper's tables in turn and write their page: ``python -m benchmarks.papers --size smoke``."""

from __future__ import annotations

import sys
import traceback

from benchmarks.papers import advice, evaluation_of_moms, low_memory, optimizers, overhead, radiology, sublinear
from benchmarks.papers.command import options_of
from benchmarks.papers.page import page_of, write_page

_PAPERS = (evaluation_of_moms, low_memory, sublinear, radiology, optimizers, advice, overhead)


def main() -> int:
    """Run the command; exit status 1 if a paper's table was not completed. Its measurements are kept."""
    options = options_of("benchmarks.papers", __doc__ or "")
    failed = []
    for paper in _PAPERS:
        try:
            paper.run(options.from_now())
        except Exception:
            traceback.print_exc()
            failed.append(paper.__name__)
    write_page(options.output)
    print(f"written: {page_of(options.output)}")
    for name in failed:
        print(f"not completed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
