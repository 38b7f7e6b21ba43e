"""Ctrl-C that does not get lost.

Python raises it wherever the program happens to be. In a finalizer or a weak reference's callback it is printed with a
traceback and dropped, and the search would continue. So it is also recorded and checked while waiting for a trial, and
nothing is printed.
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
"""Job schedulers and CI systems send SIGTERM, a closing terminal sends SIGHUP: keep all measurements, leave nothing
running. Under ``nohup`` SIGHUP stays ignored."""

_asked = False


@contextlib.contextmanager
def interruptions_kept() -> Iterator[None]:
    """Make these signals raise :class:`KeyboardInterrupt` at once or, where that is lost, at the next check."""
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
    """Raise an interruption that was requested and lost.

    Raises:
        KeyboardInterrupt: The process was asked to end.
    """
    if _asked:
        raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    global _asked
    _asked = True
    raise KeyboardInterrupt
