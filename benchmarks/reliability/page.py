"""The page of the lines: nothing in it is typed by hand.

python -m benchmarks.reliability.page
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.reliability.lines import Line, read

__all__ = ["LINES", "page", "write_page"]

LINES = Path(__file__).resolve().parents[2] / "docs" / "results" / "reliability.jsonl"

_EXPLANATION = """\
`python -m benchmarks.reliability` plays every row of `tests/faults`: a run of a tiny model, in which something hits one
process at a moment that can be seen (somebody waits there until the signal has come), and then the same command once
more, undisturbed. A row holds if all of this does:

- Nothing is left running, wherever it has moved, nothing listens at an address that others reach, and no temporary file
  stays (after a kill of the command itself: once the same command has run again).
- The command ends by itself, with a status and a sentence that name what happened, and without a traceback.
- Every file of the study can be read; the answer, `policy.yaml` and `wrapper.py` name one policy, or are not there.
- No trial that had finished is run again; the one that was hit is, where the signal came from outside (a segmentation
  fault and an abort count as the workload's own doing), unless short steps show that its policy may not lead; and the
  second run ends with a confirmed answer (after a crash of what everything rests on: with a sentence that says so).
  Nothing rests on a trace of where time goes.
- The model file, and a file of the user's beside the study's own, are as they were.

A damaged study holds if the command that made it ends with a confirmed answer, or with one sentence and status 2, and
nothing else above is broken. Of a signal to the fork server nothing is said but that it does no harm. `STOP` is never
followed by `CONT` unless the row says so; the command itself is never stopped for good, as who is stopped does nothing.
Places are drawn from seeds, which also turn the goals; those without a seed were chosen.
`MOMADVISE_FAULT_SEEDS=0 python -m pytest tests/faults` plays the rows of a seed as tests."""

_TABLES = {
    "hit": ("Runs that were hit", "who was hit"),
    "damaged": ("Studies that were damaged", "file"),
}


def page(lines: Sequence[Line]) -> str:
    """The page; empty without lines."""
    if not lines:
        return ""
    parts = ["# What becomes of a run that something hits", _EXPLANATION, _circumstances(lines)]
    for table, (title, group) in _TABLES.items():
        some = [line for line in lines if line.table == table]
        if some:
            parts += _section(some, title, group)
    return "\n\n".join(parts) + "\n"


def write_page(path: Path) -> None:
    """Write the page of a file of lines beside it; none without lines."""
    if text := page(read(path)):
        path.with_suffix(".md").write_text(text, encoding="utf-8")


def _circumstances(lines: Sequence[Line]) -> str:
    dates = sorted({line.date for line in lines})
    devices = " and ".join(sorted({f"{line.device}, {line.cores} cores" for line in lines}))
    seeds = ", ".join(str(seed) for seed in sorted({line.seed for line in lines if line.seed is not None}))
    versions = sorted({f"{package} {version}" for line in lines for package, version in line.versions.items()})
    held = sum(not line.problems for line in lines)
    return (
        f"**{held} of {len(lines)} rows held.** {devices}; {dates[0]}{f' to {dates[-1]}' * (len(dates) > 1)}; "
        f"seeds {seeds}; {', '.join(versions)}."
    )


def _section(lines: Sequence[Line], title: str, group: str) -> Iterator[str]:
    yield f"## {title}"
    faults = list(dict.fromkeys(line.fault for line in lines))
    table = [f"| {group} | {' | '.join(faults)} |", f"|---|{'---|' * len(faults)}"]
    for name in dict.fromkeys(line.group for line in lines):
        cells = []
        for fault in faults:
            some = [line for line in lines if (line.group, line.fault) == (name, fault)]
            held = sum(not line.problems for line in some)
            cells.append(f"{'' if held == len(some) else '**'}{held} of {len(some)}{'' if held == len(some) else '**'}")
        table.append(f"| {name} | {' | '.join(cell if cell != '0 of 0' else '' for cell in cells)} |")
    yield "Rows that held, of those that were played:\n\n" + "\n".join(table)
    failed = [line for line in lines if line.problems]
    if failed:
        named = [f"- {line.name}{_seed(line)}\n" + "\n".join(f"  - {one}" for one in line.problems) for line in failed]
        yield "### What did not hold\n\n" + "\n".join(named)
    else:
        yield "All of them held."
    rest = [f"- {line.name}{_seed(line)}" for line in lines if not line.problems]
    yield "### What held\n\n" + "\n".join(rest)


def _seed(line: Line) -> str:
    return "" if line.seed is None else f" (seed {line.seed})"
