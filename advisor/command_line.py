"""The parser and the help of each command, built from the table of options."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from advisor.options import CHECK, EXPORT, GOAL, PREDICT, REPORT, TUNE, VERIFY, Option, Section, options_of
from advisor.text.printable import printable

__all__ = [
    "EXIT_USER_ERROR",
    "NEXT",
    "Parser",
    "check_parser",
    "complain",
    "export_parser",
    "laid_out",
    "predict_parser",
    "report_parser",
    "tune_parser",
    "verify_parser",
]

EXIT_USER_ERROR = 2

_LEFT_COLUMN = 25
_WIDTH, _NARROWEST = 80, 40
_LEAST_COLUMN = 20
_USAGE_COLUMN = len("usage: ")
_LONGEST_LINE = 500

_TUNE = """\
usage: momadvise --goal faster|bigger|cheapest MODEL [options]
       momadvise predict MODEL         without running it: will it fit?
       momadvise verify POLICY MODEL   does a policy.yaml keep its promise?
       momadvise check POLICY [MODEL]  is a policy.yaml still right here?
       momadvise export POLICY         a policy as the settings of a trainer
       momadvise report DIR            what was measured, as a page of pictures
       momadvise methods [NAME] | hardware | completion bash|zsh|fish

Measures here how to train MODEL (a file with build_model() and make_batch(n),
hf:TYPE, hf:ORG/NAME or a config.json), and writes policy.yaml and wrapper.py.
Ctrl-C keeps the best so far; the same command again continues.

{sections}
  --version, -h, --help
"""

NEXT = """\
momadvise measures how to train a model on this machine.
What to type next:

  momadvise MODEL          its fastest training (3m30s)
  momadvise predict MODEL  does it fit? Predicted in seconds
  momadvise hardware       the devices here
  momadvise --help         goals and options

MODEL: a Python file with build_model() and make_batch(n),
such as examples/gpt2.py; hf:gpt2, hf:ORG/NAME, or a
config.json.
"""
"""What is printed where nothing was asked for."""

_PREDICT = """\
usage: momadvise predict MODEL [options]

Says in seconds, without training anything, whether MODEL fits, the largest
batch that does, and what takes the memory. It traces one step on tensors that
have shapes and no memory. All values are predicted; nothing is measured.

{sections}
  -h, --help

Exit status: 0 it fits, 3 it does not, 1 it cannot be predicted, 2 a mistake
that you can fix.
"""

_VERIFY = """\
usage: momadvise verify POLICY MODEL [options]

Does POLICY, a policy.yaml, keep its promise on MODEL? In about a minute, it
compares three real steps of the wrapper with three of a plain loop, from the
same seeds and batches (losses, first gradient, updates), then measures peak
memory and speed in turn with plain training. It keeps nothing.

{sections}
  -h, --help

Exit status: 0 it keeps its promise, 4 it does not, 1 it cannot be verified
(plain training does not run, or time ran out), 2 a mistake that you can fix.
"""

_EXPORT = """\
usage: momadvise export POLICY --to NAME [--into FILE] [options]

Writes POLICY, a policy.yaml, as the configuration of a trainer that you have.
Every key is written, because what trainers do by themselves is not plain
training. The configuration goes to stdout; stderr says what became of each
part of the policy: exported, approximated (and in what), or needs the adapter.

{sections}
  -h, --help

Exit status: 0 done, 3 --strict and not all of it is exported, or with keys that
the installed trainer does not have, 2 a mistake that you can fix.
"""


_CHECK = """\
usage: momadvise check POLICY [MODEL] [options]

Was POLICY, a policy.yaml, measured for what is here now? It compares model,
batches, code, device, versions and limits with those in the file, one line per
difference. The model (without MODEL: the one that the policy names) is built
but not trained.

{sections}
  -h, --help

Exit status: 0 it holds, 3 it is stale, 4 it holds but speed or memory moved
(--remeasure), 1 it cannot be told, 2 a mistake that you can fix.
"""


_REPORT = """\
usage: momadvise report DIR [DIR ...] [options]

Writes one page of finished studies, side by side where there are several: two
GPUs, two versions, before and after. It shows the answer, every policy that was
tried, memory, speed, cost and the course of the search, in one file that opens
without a network. DIR is a folder of a study, such as momadvise-runs/NAME.

{sections}
  -h, --help

Exit status: 0 written, 2 a mistake that you can fix.
"""


class Parser(argparse.ArgumentParser):
    """A parser for a table of options, with one-line errors that point to the help.

    Args:
        prog: The command.
        help_text: With a placeholder for the sections of options.
        sections: The options, as the help shows them.
        arguments: Positional arguments, and how often: ``"?"`` for at most once, ``"*"`` for any number.
        unlisted: Options that only the usage line has.
    """

    def __init__(
        self,
        prog: str,
        help_text: str,
        sections: tuple[Section, ...],
        arguments: dict[str, str | None],
        unlisted: tuple[Option, ...] = (),
    ) -> None:
        super().__init__(prog=prog, allow_abbrev=False)
        self._help_text, self._sections, self._unlisted = help_text, sections, unlisted
        self._several = {name for name, times in arguments.items() if times == "*"}
        for name, times in arguments.items():
            self.add_argument(name, metavar=name.upper(), nargs=times)
        for option in self.options:
            if option.kind == "switch":
                names = [name for name in (option.short, option.flag) if name]
                self.add_argument(*names, dest=option.keyword, action="store_true")
            else:
                # Values are checked below: argparse would not say which ones an option takes.
                self.add_argument(option.flag, dest=option.keyword, default=option.default)

    @property
    def options(self) -> tuple[Option, ...]:
        """Its options, in the order of the help."""
        return (*self._unlisted, *options_of(*self._sections))

    def format_help(self) -> str:
        """Its help, laid out for the terminal."""
        sections = "\n".join(line for one in self._sections for line in _lines(one, _help_width()))
        return laid_out(self._help_text).format(sections=sections)

    def checked(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; argparse itself accepts ``--option=--`` as an empty list.

        Raises:
            OptionError: A value is none that its option takes. A line that is not understood ends the process instead.
        """
        options, unknown = self.parse_known_args(list(self._with_values(arguments)))
        if unknown:
            self._check_bare(arguments, unknown)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        for name, value in vars(options).items():
            if isinstance(value, list) and name not in self._several:
                self.error(f"argument {name}: expected one argument")
        for option in self.options:
            setattr(options, option.keyword, _checked(getattr(options, option.keyword), option))
        return options

    def _with_values(self, arguments: Sequence[str]) -> Iterator[str]:
        """The arguments with the value of each flag that may stand without one: argparse would take MODEL for it."""
        for argument, following in itertools.pairwise([*arguments, ""]):
            value = re.match(r"[\d.]", following) is not None and not os.path.exists(following)
            yield argument if value or argument not in self._bare else f"{argument}={self._bare[argument]}"

    @property
    def _bare(self) -> dict[str, str]:
        """The flags that may stand without a value, and what they mean then."""
        return {option.flag: option.bare for option in self.options if option.bare}

    def _check_bare(self, arguments: Sequence[str], unknown: Sequence[str]) -> None:
        """Refuse a word too many that is meant for such a flag: it follows one, and looks like no model."""
        from advisor.text.units import parse_duration

        for flag, word in itertools.pairwise(arguments if any(one[:1] != "-" for one in unknown) else ()):
            if flag in self._bare and re.match(r"[^-.:/]+$", word) and not os.path.exists(word):
                parse_duration(word, option=flag)

    def _meant(self, unknown: Sequence[str]) -> str:
        """The option that is nearly named, as a question; empty if there is none."""
        flag = next((one.partition("=")[0] for one in unknown if one.startswith("-")), "")
        near = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.7)
        return f". Did you mean {near[0]}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """Print why the line is not understood, and exit with status 2."""
        line = " ".join(message.splitlines())
        complain(line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 100]}...{line[-97:]}")
        self.exit(EXIT_USER_ERROR, f"Try: {self.prog} --help\n")


def tune_parser() -> Parser:
    """The parser of ``momadvise MODEL``; machines that follow another need no model."""
    return Parser("momadvise", _TUNE, TUNE, {"model": "?"}, (GOAL,))


def predict_parser() -> Parser:
    """The parser of ``momadvise predict MODEL``."""
    return Parser("momadvise predict", _PREDICT, PREDICT, {"model": None})


def verify_parser() -> Parser:
    """The parser of ``momadvise verify POLICY MODEL``."""
    return Parser("momadvise verify", _VERIFY, VERIFY, {"policy": None, "model": None})


def export_parser() -> Parser:
    """The parser of ``momadvise export POLICY --to NAME``."""
    return Parser("momadvise export", _EXPORT, EXPORT, {"policy": None})


def check_parser() -> Parser:
    """The parser of ``momadvise check POLICY [MODEL]``."""
    return Parser("momadvise check", _CHECK, CHECK, {"policy": None, "model": "?"})


def report_parser() -> Parser:
    """The parser of ``momadvise report DIR``."""
    return Parser("momadvise report", _REPORT, REPORT, {"dir": "*"})


def complain(message: str) -> None:
    """Print an error on stderr: on one line, which is folded between words where a terminal would cut them."""
    text = f"momadvise: error: {printable(message)}"
    if sys.stderr.isatty():
        width = max(_NARROWEST, shutil.get_terminal_size().columns)
        folded = (line if line.startswith(" ") else "\n".join(_wrapped(line, width, "")) for line in text.split("\n"))
        text = "\n".join(folded)  # indented lines are to be copied
    print(text, file=sys.stderr)


_NUMBERS = {"count": int, "number": float, "price": float}


def _checked(value: Any, option: Option) -> Any:
    """A number as one, and a word that is among the choices; those that were not given as they are."""
    if not isinstance(value, str) or not (option.choices or option.kind in _NUMBERS):
        return value
    if value in option.choices:
        return value
    with contextlib.suppress(ValueError, KeyError):
        return _NUMBERS[option.kind](value)
    # Imported here: it takes longer than to print the help.
    from advisor.option_values import value_of

    return value_of(value, option)


def _lines(section: Section, width: int) -> list[str]:
    """A section as it is shown: a row's meaning beside its flags, or below them where a narrow terminal has no room."""
    lines = _wrapped(section.title, width, "  ")
    column = _LEFT_COLUMN if width - _LEFT_COLUMN >= _LEAST_COLUMN else 6
    for row in section.rows:
        flags = "  " + " ".join(option.flags.replace(" ", _KEPT) for option in row.options)
        meaning = row.meaning or row.options[0].meaning
        first = f"{flags}  " if len(flags) >= column - 1 else flags.ljust(column)
        if len(first) > column and len(first + meaning) > width < _WIDTH:
            lines += _wrapped(flags, width, " " * 4)
            first = " " * column
        lines += _wrapped(first + meaning, width, " " * column)
    return lines


_KEPT = "\xa0"
"""In the place of a blank at which a line must not end."""


def _help_width() -> int:
    return max(_NARROWEST, min(_WIDTH, shutil.get_terminal_size().columns))


def laid_out(text: str) -> str:
    """A help of 80 columns on fewer: paragraphs are filled again, and what a row says goes on below where it began."""
    width = _help_width()
    if width >= _WIDTH:
        return text
    lines: list[str] = []
    for is_row, group in itertools.groupby(text.splitlines(), lambda line: bool(re.match(r" |usage:|\{|$", line))):
        if is_row:
            lines += (part for row in group for part in _narrowed_row(row, width) or [""])
        else:
            lines += _wrapped(" ".join(group), width, "")
    return "\n".join(lines) + "\n"


def _narrowed_row(row: str, width: int) -> list[str]:
    """A row of the usage, or another that begins with blanks."""
    gap = re.search(r"(?<=\S)  +", row)
    indent = " " * (_USAGE_COLUMN + 4)
    if gap is None:
        return _wrapped(row, width, indent)
    if width - gap.end() >= _LEAST_COLUMN:
        return _wrapped(row, width, " " * gap.end())
    return [*_wrapped(row[: gap.start()], width, indent), *_wrapped(indent + row[gap.end() :], width, indent)]


def _wrapped(line: str, width: int, indent: str) -> list[str]:
    wrapped = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [one.replace(_KEPT, " ") for one in wrapped]
