"""Text of the user's as it is shown."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from hypothesis import given
from rich.console import Console
from rich.table import Table

from advisor import cli
from advisor.errors import UserError, WorkloadError
from advisor.report.console import SafeConsole
from advisor.report.json_documents import json_error
from advisor.report.live import LiveProgress, PlainProgress
from advisor.text.printable import printable, quoted, shown
from advisor.trial.outcome import Outcome
from tests.decide.examples import lost

from .hostile import TEXTS, steering, texts, values

HOSTILE = "a\x1b[31mred\x1b]0;title\a\rover\x9b2J\u202egnitirw\udcff"


@given(texts)
def test_what_is_printable_steers_nothing_and_says_the_same(text: str) -> None:
    assert not steering(printable(text))
    if not steering(text):
        assert printable(text) == text


@given(values)
def test_any_value_is_shown_in_one_short_line(value: object) -> None:
    for text in (shown(value), quoted(value)):
        assert "\n" not in text
        assert "\t" not in text
        assert not steering(text)
        assert len(text) <= 130


def test_the_ends_of_a_long_value_are_shown() -> None:
    text = quoted("begin" + "x" * 1000 + "end")
    assert text.startswith("'begin")
    assert text.endswith("end'")


@pytest.mark.parametrize("text", [HOSTILE, *TEXTS])
def test_an_error_reaches_the_terminal_without_what_steers_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli._print_error(WorkloadError(f"a rule, but got {text}", traceback_text=f"Traceback\n  {text}\nError: {text}"))
    written = capsys.readouterr().err
    assert "momadvise: error: a rule, but got" in written
    assert not steering(written)


@given(texts)
def test_the_console_lets_nothing_in_a_text_steer_the_terminal(text: str) -> None:
    written = io.StringIO()
    console = SafeConsole(file=written, width=60)
    table = Table("one", "two")
    table.add_row(text.replace("[", "("), "beside")
    console.print(table)
    console.print(text, markup=False)
    assert not steering(written.getvalue())


def test_rich_alone_would_let_it_through() -> None:
    written = io.StringIO()
    Console(file=written, width=60).print("\x1b[31mred", markup=False)
    assert steering(written.getvalue())


def test_colours_of_the_console_itself_are_kept() -> None:
    written = io.StringIO()
    SafeConsole(file=written, width=60, force_terminal=True, color_system="standard").print("x", style="red")
    assert written.getvalue().startswith("\x1b[31m")


@pytest.mark.parametrize("display", [PlainProgress, LiveProgress])
def test_neither_display_lets_a_name_or_a_reason_steer_the_terminal(
    display: type[PlainProgress] | type[LiveProgress],
) -> None:
    written = io.StringIO()
    progress = display(SafeConsole(file=written, width=100, color_system=None))
    with progress:
        progress.begin(workload=HOSTILE, device=HOSTILE, goal="faster", time_limit_seconds=9, trials=3)
        progress.note(HOSTILE)
        progress.stage(HOSTILE)
        progress.trial_ended(1, lost(Outcome.FAILED, reason=HOSTILE), best=None, baseline=None)
    assert "gnitirw" in written.getvalue()
    assert not steering(written.getvalue())


@given(texts)
def test_the_json_of_an_error_is_json_and_steers_nothing(text: str) -> None:
    document = json_error(UserError(text))
    assert not steering(document)
    message = json.loads(document)["message"]
    assert message == text or steering(text)
    assert msgspec.json.decode(document)["error"] == "UserError"
