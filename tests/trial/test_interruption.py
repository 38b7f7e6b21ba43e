"""Ctrl-C ends the search wherever it arrives, also where Python forgets it."""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from advisor.trial.process.interruption import interruptions_kept, look_for_interruption


class Thing:
    """Something that a weak reference can point to."""


@pytest.fixture
def not_under_nohup() -> Iterator[None]:
    """A search that is to outlive its terminal ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("not_under_nohup")
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_lost_in_a_callback_is_raised_at_the_next_look(
    name: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: printed.append(about.exc_type))

    def callback(_: object) -> None:
        os.kill(os.getpid(), name)

    with interruptions_kept():
        thing = Thing()
        reference = weakref.ref(thing, callback)
        del thing  # Python forgets here what the callback raises
        assert reference() is None
        with pytest.raises(KeyboardInterrupt):
            look_for_interruption()
    look_for_interruption()  # what was asked of a search is not asked of the next
    assert printed == []


def test_other_errors_that_python_forgets_are_printed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []

    def hook(about: Any) -> None:
        printed.append(about.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", hook)

    def callback(_: object) -> None:
        raise ZeroDivisionError

    with interruptions_kept():
        thing = Thing()
        reference = weakref.ref(thing, callback)
        del thing
        assert reference() is None
    assert printed == [ZeroDivisionError]
    assert sys.unraisablehook is hook


def test_elsewhere_it_is_raised_at_once() -> None:
    with interruptions_kept(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with interruptions_kept():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_closed_terminal_ends_nothing_that_was_told_to_outlive_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptions_kept():
            os.kill(os.getpid(), signal.SIGHUP)
            look_for_interruption()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_a_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with interruptions_kept():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
