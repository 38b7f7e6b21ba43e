"""The help is laid out for the terminal: on a narrow one it wraps between words, on a wide one it stays readable."""

import shlex
from pathlib import Path

import pytest

from advisor.completion import VERBS
from advisor.options import TUNE
from tests.session.command import run_here

HELP = ["--help", *(f"{verb} --help" for verb in VERBS)]


def help_at(columns: object, command: str, folder: Path) -> list[str]:
    result = run_here(*shlex.split(command), cwd=folder, environment={"COLUMNS": str(columns)})
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def words(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


@pytest.mark.parametrize("columns", [42, 47, 60, 79])
@pytest.mark.parametrize("command", HELP)
def test_no_line_is_longer_than_a_narrow_terminal_and_no_word_is_broken_or_lost(
    command: str, columns: int, tmp_path: Path
) -> None:
    narrow = help_at(columns, command, tmp_path)
    assert max(map(len, narrow)) <= columns, max(narrow, key=len)
    assert words(narrow) == words(help_at(80, command, tmp_path))


@pytest.mark.parametrize("columns", [100, 200, 10**6, 0, -1, "wide", "9" * 5000])
@pytest.mark.parametrize("command", HELP)
def test_a_wide_terminal_or_one_of_no_known_width_gets_80_columns(
    command: str, columns: object, tmp_path: Path
) -> None:
    assert help_at(columns, command, tmp_path) == help_at(80, command, tmp_path)


def test_what_an_option_means_goes_on_in_its_column(tmp_path: Path) -> None:
    lines = help_at(60, "--help", tmp_path)
    row = lines.index("  --memory-limit SIZE    per device, such as 8GiB (default:")
    assert lines[row + 1] == "                         the free memory)"


def test_options_that_leave_no_room_have_their_meaning_below_them_in_its_column(tmp_path: Path) -> None:
    lines = help_at(60, "--help", tmp_path)
    row = lines.index("  --nnodes N --rdzv-endpoint HOST:PORT --node-rank K")
    assert lines[row + 1] == "                         train on N machines"


@pytest.mark.parametrize("columns", [42, 60])
def test_only_the_titles_begin_at_the_left_edge_and_no_flag_is_parted_from_its_value(
    columns: int, tmp_path: Path
) -> None:
    lines = help_at(columns, "--help", tmp_path)
    options = lines[lines.index("") :]
    titles = [line for line in options[options.index("", 1) + 1 :] if not line.startswith("  ")]
    assert len(titles) == len(TUNE)
    assert any("--rdzv-endpoint HOST:PORT" in line for line in options)
    assert any("-v, --verbose" in line for line in options)


@pytest.mark.parametrize("columns", [42, 60])
def test_a_command_of_the_usage_keeps_its_line_and_says_below_it_what_it_is_for(columns: int, tmp_path: Path) -> None:
    lines = help_at(columns, "--help", tmp_path)
    (row,) = (number for number, line in enumerate(lines) if line.startswith("       momadvise predict MODEL"))
    assert lines[row + 1].startswith(" " * 11)
    assert words(lines[row : row + 3])[:7] == ["momadvise", "predict", "MODEL", "without", "running", "it:", "will"]
