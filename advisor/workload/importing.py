"""Tracks whether a worker is importing the user's code, so that it cannot start momadvise again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from advisor.errors import WorkloadError

__all__ = ["importing", "refuse_while_importing"]

_places: list[str] = []


@contextlib.contextmanager
def importing(place: str) -> Iterator[None]:
    """Mark that ``place`` is being imported as a workload."""
    _places.append(place)
    try:
        yield
    finally:
        _places.pop()


def refuse_while_importing(call: str) -> None:
    """Refuse a call that would start trials from inside a trial's own import.

    A program that calls ``advisor.tune`` at its top level would do so again in every worker that imports it.

    Raises:
        WorkloadError: A workload is being imported.
    """
    if _places:
        raise WorkloadError(
            f"{call} must not run while its functions are imported by a worker, but {_places[-1]} calls it at its top "
            'level. Put the call below if __name__ == "__main__": or into a function.'
        )
