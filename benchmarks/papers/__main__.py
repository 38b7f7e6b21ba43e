"""Every paper's table, one after the other: ``python -m benchmarks.papers --size smoke``."""

from __future__ import annotations

from benchmarks.papers import evaluation_of_moms, low_memory, optimizers, radiology, sublinear
from benchmarks.papers.command import options_of

_PAPERS = (sublinear, evaluation_of_moms, low_memory, radiology, optimizers)


def main() -> None:
    """The command."""
    options = options_of("benchmarks.papers", __doc__ or "")
    for paper in _PAPERS:
        paper.run(options.from_now())


if __name__ == "__main__":
    main()
