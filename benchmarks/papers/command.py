"""What the commands of all papers have in common: their options, and where figures go."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from advisor.problem.detect import detect_hardware
from advisor.problem.hardware import Hardware
from benchmarks.papers.figures import Figure, append, markdown, read

__all__ = ["Options", "options_of", "report"]

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    Attributes:
        size: ``"smoke"`` (seconds, on any CPU) or ``"paper"`` (minutes, on a GPU).
        hardware: The device.
        output: File of JSON lines.
        again: Whether what is in the file already is measured again.
    """

    size: str
    hardware: Hardware
    output: Path
    again: bool = False

    def known(self, paper: str) -> list[Figure]:
        """Figures of a paper that need not be measured again."""
        if self.again:
            return []
        mine = (self.size, self.hardware.name)
        return [one for one in read(self.output) if one.paper == paper and (one.size, one.device) == mine]


def options_of(command: str, description: str, arguments: Sequence[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=description.splitlines()[0])
    parser.add_argument("--size", choices=("smoke", "paper"), default="smoke", help="smoke: seconds; paper: a GPU's")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: what momadvise would choose)")
    parser.add_argument("--output", type=Path, help="file of JSON lines (default: docs/results/papers-DEVICE.jsonl)")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    asked = parser.parse_args(arguments)
    hardware = detect_hardware(asked.device)
    output = asked.output or _RESULTS / f"papers-{hardware.kind.value}.jsonl"
    return Options(size=asked.size, hardware=hardware, output=output, again=asked.again)


def report(paper: str, options: Options, figures: Iterable[Figure]) -> None:
    """Write figures down as they come, and print the paper's tables in the end."""
    for figure in figures:
        append(options.output, figure)
        ours = figure.reason or "-" if figure.ours is None else f"{figure.ours:.4g}"
        print(f"{figure.row}, {figure.column}: {ours}", flush=True)
    mine = (paper, options.size, options.hardware.name)
    print("\n" + markdown([one for one in read(options.output) if (one.paper, one.size, one.device) == mine]))
