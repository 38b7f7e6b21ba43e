"""Keep the search's linear algebra on one thread.

Its matrices have at most a few hundred rows. Divided among the threads of a BLAS they take three times as long on two
cores, nine times beside trials that keep these busy, and threads that wait for each other take time from the trials.
Environment variables would limit the trials as well, which inherit them.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["on_one_thread"]


def on_one_thread() -> AbstractContextManager[Any]:
    """Limit the linear algebra libraries of this process to one thread, and restore their limits afterwards."""
    limited: AbstractContextManager[Any] = _libraries().limit(limits=1)
    return limited


@functools.cache
def _libraries() -> ThreadpoolController:
    """Those that are loaded; to find them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")
