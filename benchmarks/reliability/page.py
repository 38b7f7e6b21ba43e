"""The page, generated from the lines.

python -m benchmarks.reliability.page
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.markdown import days
from benchmarks.reliability.lines import Line, read

__all__ = ["LINES", "page", "write_page"]

LINES = Path(__file__).resolve().parents[2] / "docs" / "results" / "reliability.jsonl"

_EXPLANATION = """\
`python -m benchmarks.reliability` runs every scenario of `tests/faults`. In each, momadvise tunes a tiny model, one
process receives a signal at a known moment (it waits there until the signal arrives), and then the same command runs
again without a fault. A scenario passes if all of these hold:

- No process is left running, wherever it moved to; nothing listens at an address reachable from outside; and no
  temporary file remains (after a kill of the command itself: once the same command has run again).
- The command exits by itself, with an exit status and a sentence that name what happened, and without a traceback.
- Every file of the study is readable. The answer, `policy.yaml` and `wrapper.py` describe one policy, or are absent.
- No finished trial is repeated. The interrupted trial is repeated if the signal came from outside (a segmentation fault
  or an abort counts as the workload's own fault), unless profiling runs show that its policy cannot lead. The second
  run ends with a confirmed answer (after a crash of a trial that everything depends on: with a sentence that says so).
  Nothing depends on the trace of where time goes.
- The model file, and a file of the user's next to the study's own, are unchanged.

A damaged study passes if the command that created it ends with a confirmed answer, or with one sentence and exit status
2, and all of the above holds. For a signal to the fork server, the only requirement is that it does no harm. `STOP` is
followed by `CONT` only where the row says so; the command itself is never stopped for good, because a stopped command
cannot do anything. Moments are drawn from seeds, and so are the goals; rows without a seed were chosen by hand.
`MOMADVISE_FAULT_SEEDS=0 python -m pytest tests/faults` runs the scenarios of a seed as tests."""

_TABLES = {
    "hit": ("Injected signals", "process"),
    "damaged": ("Damaged studies", "file"),
}


def page(lines: Sequence[Line]) -> str:
    """The page; empty without lines."""
    if not lines:
        return ""
    parts = ["# Injected faults", _EXPLANATION, _circumstances(lines)]
    for table, (title, group) in _TABLES.items():
        some = [line for line in lines if line.table == table]
        if some:
            parts += _section(some, title, group)
    return "\n\n".join(parts) + "\n"


def write_page(path: Path) -> None:
    """Write the page next to a file of lines; none without lines."""
    if text := page(read(path)):
        path.with_suffix(".md").write_text(text, encoding="utf-8")


def _circumstances(lines: Sequence[Line]) -> str:
    devices = " and ".join(sorted({f"{line.device}, {line.cores} cores" for line in lines}))
    seeds = ", ".join(str(seed) for seed in sorted({line.seed for line in lines if line.seed is not None}))
    versions = sorted({f"{package} {version}" for line in lines for package, version in line.versions.items()})
    held = sum(not line.problems for line in lines)
    return (
        f"**{held} of {len(lines)} scenarios passed.** {devices}; {days(line.date for line in lines)}; "
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
    yield "Scenarios passed, of those run:\n\n" + "\n".join(table)
    failed = [line for line in lines if line.problems]
    if failed:
        named = [f"- {line.name}{_seed(line)}\n" + "\n".join(f"  - {one}" for one in line.problems) for line in failed]
        yield "### Failed\n\n" + "\n".join(named)
    else:
        yield "All passed."
    rest = [f"- {line.name}{_seed(line)}" for line in lines if not line.problems]
    yield "### Passed\n\n" + "\n".join(rest)


def _seed(line: Line) -> str:
    return "" if line.seed is None else f" (seed {line.seed})"
