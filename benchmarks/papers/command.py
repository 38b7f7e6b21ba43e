"""What the commands of all papers have in common: their options, and where figures go."""

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
from benchmarks.papers.figures import Figure, append, markdown, read

__all__ = ["Options", "TimeIsUpError", "options_of", "report"]

_PAPER_MINUTES = 8.0
"""What one call of the paper's size takes at most, unless ``--minutes`` says otherwise."""

_ENDING_SECONDS = 10.0
"""Of them, for what a run leaves behind to be ended, and for the tables."""

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


class TimeIsUpError(Exception):
    """The minutes of this call are over: no run begins, and the one that was under way has been ended."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    Attributes:
        size: ``"smoke"`` (seconds, on any CPU) or ``"paper"`` (minutes, on a GPU).
        hardware: The device.
        output: File of JSON lines.
        again: Whether what is in the file already is measured again.
        minutes: After so many the call is at its end; ``None`` for no end.
        patience: How many times as long as on a GPU one run may take before it is ended.
        begin: Moment at which they begin, in seconds of ``time.monotonic``.
    """

    size: str
    hardware: Hardware
    output: Path
    again: bool = False
    minutes: float | None = None
    patience: float = 1.0
    begin: float = msgspec.field(default_factory=time.monotonic)

    def from_now(self) -> Options:
        """The same, the minutes counted from this moment: each paper has its own."""
        return msgspec.structs.replace(self, begin=time.monotonic())

    @property
    def end(self) -> float:
        """Moment of ``time.monotonic`` at which whatever runs is ended, so that the call is over in its minutes."""
        if self.minutes is None:
            return math.inf
        seconds = 60 * self.minutes
        return self.begin + seconds - min(_ENDING_SECONDS, 0.1 * seconds)

    def check_time(self, needed_seconds: float = 0.0) -> None:
        """Check that another run may begin, which takes so many seconds that must not be cut short.

        Raises:
            TimeIsUpError: The minutes are over; :func:`report` ends the command with what is there.
        """
        if time.monotonic() + needed_seconds >= self.end:
            raise TimeIsUpError

    def at_most(self, seconds: float) -> float:
        """The seconds that a run may take on this device, of which a GPU may take so many."""
        return seconds * self.patience

    def known(self, paper: str) -> list[Figure]:
        """Figures of a paper that need not be measured again."""
        if self.again:
            return []
        mine = (self.size, self.hardware.name)
        return [one for one in read(self.output) if one.paper == paper and (one.size, one.device) == mine]


def options_of(command: str, description: str, arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a device that is not there ends the process with its reason, as other mistakes do."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=description.splitlines()[0])
    parser.add_argument("--size", choices=("smoke", "paper"), default="smoke", help="smoke: seconds; paper: a GPU's")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: what momadvise would choose)")
    parser.add_argument("--output", type=Path, help="file of JSON lines (default: docs/results/papers-DEVICE.jsonl)")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument(
        "--minutes",
        type=_positive,
        help=f"take no longer; the next call goes on (default: {_PAPER_MINUTES:g} for a paper's size, times patience)",
    )
    parser.add_argument(
        "--patience",
        type=_positive,
        default=1.0,
        help="end a run after so many times what it may take on a GPU (a paper's size on a CPU: 6 or more)",
    )
    asked = parser.parse_args(arguments)
    try:
        hardware = detect_hardware(asked.device)
    except UserError as error:
        parser.error(str(error))
    output = asked.output or _RESULTS / f"papers-{hardware.kind.value}.jsonl"
    minutes = asked.minutes
    if minutes is None and asked.size == "paper":
        minutes = _PAPER_MINUTES * asked.patience
    return Options(
        size=asked.size,
        hardware=hardware,
        output=output,
        again=asked.again,
        minutes=minutes,
        patience=asked.patience,
    )


def _positive(text: str) -> float:
    """A number of the command line that is above zero and finite."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)  # argparse says which option, and what was given
    return value


def report(paper: str, options: Options, rows: Iterable[Sequence[Figure]]) -> None:
    """Write figures down as they come, and print the paper's tables in the end, or when the time is up.

    Args:
        paper: Name of the module.
        options: Of the command.
        rows: Figures that are written down together.
    """
    found = 0
    try:
        for figures in rows:
            append(options.output, *figures)
            for figure in figures:
                found += figure.ours is not None
                ours = figure.reason or "-" if figure.ours is None else f"{figure.ours:.4g}"
                print(f"{figure.row}, {figure.column}: {ours}", flush=True)
    except BrokenPipeError:  # whoever reads has seen enough; what was measured is written down
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except TimeIsUpError:
        print(f"\n{options.minutes:g} minutes are over; {_how_to_go_on(options, found)}.")
    mine = (paper, options.size, options.hardware.name)
    print("\n" + markdown([one for one in read(options.output) if (one.paper, one.size, one.device) == mine]))


def _how_to_go_on(options: Options, found: int) -> str:
    if not found:
        return "nothing came to its end in them: give more --minutes"
    again = " (without --again)" if options.again else ""
    return f"the same command{again} goes on with what is missing"
