"""The shared parts of the papers' commands: options, and storing results."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from advisor.errors import UserError
from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import Hardware
from benchmarks.json_lines import append, file_of
from benchmarks.papers.figures import Figure, markdown, read

__all__ = ["Options", "TimeIsUpError", "options_of", "report"]

_PAPER_MINUTES = 8.0
"""Time limit of a call at the paper's size, unless ``--minutes`` says otherwise."""

_ENDING_SECONDS = 10.0
"""Part of it that is reserved for ending what a run leaves behind, and for the tables."""


class TimeIsUpError(Exception):
    """The minutes of this call are over: no run starts, and the current one has been ended."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command.

    Attributes:
        size: ``"smoke"`` (seconds, on any CPU) or ``"paper"`` (minutes, on a GPU).
        hardware: The device.
        output: File of JSON lines.
        again: Whether to measure again what is in the file already.
        minutes: Time limit of the call; ``None`` for none.
        patience: Factor by which a run may take longer than on a GPU.
        begin: Start of the minutes, in seconds of ``time.monotonic``.
    """

    size: str
    hardware: Hardware
    output: Path
    again: bool = False
    minutes: float | None = None
    patience: float = 1.0
    begin: float = msgspec.field(default_factory=time.monotonic)

    def from_now(self) -> Options:
        """The same options with the minutes starting now: each paper has its own."""
        return msgspec.structs.replace(self, begin=time.monotonic())

    @property
    def end(self) -> float:
        """Moment of ``time.monotonic`` at which a running trial is ended, so that the call ends within its minutes."""
        if self.minutes is None:
            return math.inf
        seconds = 60 * self.minutes
        return self.begin + seconds - min(_ENDING_SECONDS, 0.1 * seconds)

    def check_time(self, needed_seconds: float = 0.0) -> None:
        """Check that enough time is left for another run.

        Raises:
            TimeIsUpError: The minutes are over; :func:`report` ends the command with the results so far.
        """
        if time.monotonic() + needed_seconds >= self.end:
            raise TimeIsUpError

    def at_most(self, seconds: float) -> float:
        """Time limit of a run on this device, given that on a GPU."""
        return seconds * self.patience

    def known(self, paper: str) -> list[Figure]:
        """Results of a paper that need not be measured again."""
        if self.again:
            return []
        mine = (self.size, self.hardware.name)
        return [one for one in read(self.output) if one.paper == paper and (one.size, one.device) == mine]


def options_of(command: str, description: str, arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line; a missing device, like other user errors, ends the process with its reason."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=description.splitlines()[0])
    parser.add_argument("--size", choices=("smoke", "paper"), default="smoke", help="smoke: seconds; paper: for a GPU")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: what momadvise would choose)")
    parser.add_argument(
        "--output",
        type=Path,
        help="file of JSON lines (default: papers-DEVICE.jsonl in docs/results; smoke: in build/results)",
    )
    parser.add_argument("--again", action="store_true", help="repeat rows that have a result")
    parser.add_argument(
        "--minutes",
        type=_positive,
        help=f"time limit; the next call continues (default: {_PAPER_MINUTES:g} for a paper's size, times patience)",
    )
    parser.add_argument(
        "--patience",
        type=_positive,
        default=1.0,
        help="factor on the time limits of a GPU (for a paper's size on a CPU: 6 or more)",
    )
    parsed = parser.parse_args(arguments)
    try:
        hardware = detect_hardware(parsed.device)
    except UserError as error:
        parser.error(str(error))
    output = parsed.output or file_of(f"papers-{hardware.kind.value}", parsed.size)
    minutes = parsed.minutes
    if minutes is None and parsed.size == "paper":
        minutes = _PAPER_MINUTES * parsed.patience
    return Options(
        size=parsed.size,
        hardware=hardware,
        output=output,
        again=parsed.again,
        minutes=minutes,
        patience=parsed.patience,
    )


def _positive(text: str) -> float:
    """A positive, finite number of the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)  # argparse names the option and the value
    return value


def report(paper: str, options: Options, rows: Iterable[Sequence[Figure]]) -> None:
    """Store results as they come, and print the paper's tables at the end, or when the time is up.

    Args:
        paper: Name of the module.
        options: Options of the command.
        rows: Results that are stored together.
    """
    found = 0
    try:
        for figures in rows:
            append(options.output, *figures)
            for figure in figures:
                found += figure.ours is not None
                ours = figure.reason or "-" if figure.ours is None else f"{figure.ours:.4g}"
                print(f"{figure.row}, {figure.column}: {ours}", flush=True)
    except BrokenPipeError:  # the reader has closed the pipe; the measurements are stored
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except TimeIsUpError:
        print(f"\n{options.minutes:g} minutes are over; {_how_to_go_on(options, found)}.")
    mine = (paper, options.size, options.hardware.name)
    print("\n" + markdown([one for one in read(options.output) if (one.paper, one.size, one.device) == mine]))


def _how_to_go_on(options: Options, found: int) -> str:
    if not found:
        return "no run finished: set a larger --minutes"
    again = " (without --again)" if options.again else ""
    return f"the same command{again} continues with the missing ones"
