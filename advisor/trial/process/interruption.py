"""Ctrl-C that does not get lost.

Python raises it wherever the program happens to be. In a finalizer or in the callback of a weak reference it is
printed with a traceback and forgotten, and the search would go on as if nobody had asked. So it is also written down,
whoever waits for a trial looks there, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["interruptions_kept", "look_for_interruption"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGTERM is what a job scheduler or a CI system sends, SIGHUP what a terminal sends that is closed: keep what was
measured, leave nothing running. Under ``nohup`` the latter goes on being ignored."""

_asked = False


@contextlib.contextmanager
def interruptions_kept() -> Iterator[None]:
    """Within, these signals raise :class:`KeyboardInterrupt` now or, where that is lost, at the next look."""
    global _asked
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python allows no handlers
        yield
        return
    _asked = False
    kept = () if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else (signal.SIGHUP,)
    before = {name: signal.signal(name, _interrupt) for name in _SIGNALS if name not in kept}
    report = sys.unraisablehook

    def report_others(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)

    sys.unraisablehook = report_others
    try:
        yield
    finally:
        _asked = False
        sys.unraisablehook = report
        for name, handler in before.items():
            signal.signal(name, handler)


def look_for_interruption() -> None:
    """Raise what was asked for and lost.

    Raises:
        KeyboardInterrupt: The process was asked to end.
    """
    if _asked:
        raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    global _asked
    _asked = True
    raise KeyboardInterrupt
