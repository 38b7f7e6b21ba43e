"""Every paper's table, one after the other: ``python -m benchmarks.papers --size smoke``."""

from __future__ import annotations

from benchmarks.papers import low_memory, optimizers, sublinear
from benchmarks.papers.command import options_of

_PAPERS = (sublinear, low_memory, optimizers)


def main() -> None:
    """The command."""
    options = options_of("benchmarks.papers", __doc__ or "")
    for paper in _PAPERS:
        paper.run(options)


if __name__ == "__main__":
    main()
