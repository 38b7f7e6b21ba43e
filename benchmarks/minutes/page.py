"""The page, generated from the rows.

python -m benchmarks.minutes.page
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.json_lines import latest
from benchmarks.markdown import cell, days, number, packages
from benchmarks.minutes.rows import ArmRow, Row, read_runs
from benchmarks.minutes.settings import UNTOUCHED
from benchmarks.minutes.turns import LEAST_FOR_INTERVAL, PRECISION, SpeedRatio

__all__ = ["LEAST_COMBINATIONS", "LEAST_OF_BEST", "PROMISES_KEPT", "lines_with_pages", "page", "write_page"]

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"

LEAST_COMBINATIONS = 12
"""Target: combinations compared on every workload."""

LEAST_OF_BEST = 0.98
"""Target: speed of the advice relative to the best of the set, on every workload."""

PROMISES_KEPT = 19 / 20
"""Target: fraction of runs whose measured ratio is inside the promised interval."""

_EXPLANATION = """\
`python -m benchmarks.minutes` runs `momadvise --goal faster` on every workload as a user would, with the default time
limit unless a row says otherwise. Then its wrapper and a reference set of hand-written settings are each measured in
turn with the unmodified file, each in its own process. Every comparison starts new processes, and none of momadvise's
timing code runs in them. A ratio is the median over rounds of the ratio of samples per second, with its 95 %
confidence interval in parentheses (with fewer than {least} rounds, marked †: the smallest and the largest ratio).
*Promise* is what the answer says of its winner relative to the baseline; of one whose ends are more than four times
apart it says the lower one. *Measured* is the same ratio as measured here. *Best of the set* is the setting with the
largest ratio, including the unmodified file. The advice is compared with it in turn; where the intervals overlap so
that two settings may be the best, it is compared with both, and the less favourable result is shown. *Combinations*
counts methods and devices regardless of batch size; *policies* counts every batch size. Absolute times hold for this
machine on that day."""

_KINDS = {
    ("full", False): "",
    ("full", True): "Another process kept one core busy, while momadvise searched and while its answer was measured.",
    ("smoke", False): "A tiny model that takes a minute: it shows that the command runs. Its numbers mean nothing.",
    ("smoke", True): "A tiny model that takes a minute, with one core busy. Its numbers mean nothing.",
}
"""Size and whether a core was busy -> note, in the order shown."""


def page(runs: Sequence[Row]) -> str:
    """The page of one kind of device; empty without rows.

    Args:
        runs: All runs; of those of the same place, the last one counts.
    """
    if not runs:
        return ""
    rows = latest(runs)
    parts = ["# What a few minutes of momadvise buy", _EXPLANATION.format(least=LEAST_FOR_INTERVAL)]
    for device in dict.fromkeys(row.device for row in rows):
        for (size, busy), note in _KINDS.items():
            alike = [row for row in rows if (row.device, row.size, row.busy) == (device, size, busy)]
            if alike:
                parts += _section(device, alike, note)
    parts += _all_promises([row for row in rows if row.size == "full"], [run for run in runs if run.size == "full"])
    return "\n\n".join(parts) + "\n"


def lines_with_pages(folder: Path = _RESULTS) -> list[Path]:
    """The files of rows that have, or should have, a page."""
    return sorted(folder.glob("minutes-*.jsonl"))


def write_page(lines: Path) -> None:
    """Write the page next to a file of rows; none without rows."""
    if text := page(read_runs(lines)):
        lines.with_suffix(".md").write_text(text, encoding="utf-8")


def _section(device: str, rows: Sequence[Row], note: str) -> Iterator[str]:
    how = f"size {rows[0].size}{', one core busy' if rows[0].busy else ''}"
    yield f"## {device}, {how}"
    if note:
        yield note
    yield _circumstances(rows)
    yield _summary(rows)
    yield "### Aims\n\n" + "\n".join(f"- {line}" for line in (*_aims(rows), _sureness(rows)))
    for row in rows:
        yield f"### {_name(row)}\n\n{_arms(row)}"


def _all_promises(rows: Sequence[Row], runs: Sequence[Row]) -> Iterator[str]:
    """How many promises were kept on all devices together, how much they said, and those of replaced runs."""
    told = [row for row in rows if row.promise_is is not None]
    if not told:
        return
    kept = sum(row.promise_is == "inside" for row in told)
    widths = [row.advice.promise.high / row.advice.promise.low for row in told if row.advice.promise is not None]
    yield "## All promises"
    yield (
        f"Of {len(told)} promises above, {kept} were kept. From end to end, a promised interval spans a factor of "
        f"{statistics.median(widths):.2f} in the median, {min(widths):.2f} to {max(widths):.2f} in all."
    )
    replaced = [run for run in runs if not any(run is row for row in rows) and run.promise_is is not None]
    if replaced:
        lines = [
            "| workload | device | busy | day | advice | promise | measured | |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for run in replaced:
            advice, promise = run.advice, run.advice.promise
            assert promise is not None
            cells = [
                _name(run),
                run.device,
                "yes" if run.busy else "",
                run.date,
                f"{advice.winner}, batch {advice.batch}",
            ]
            cells.append(f"{promise.ratio:.2f} ({promise.low:.2f} to {promise.high:.2f})")
            lines.append(_line([*cells, _ratio(run.measured), run.promise_is or ""]))
        yield "Earlier runs, made again after a change of the program or of this benchmark:\n\n" + "\n".join(lines)


def _circumstances(rows: Sequence[Row]) -> str:
    """Cores, dates, and every version that any of the rows was measured with."""
    cores = " and ".join(str(count) for count in sorted({row.cores for row in rows}))
    return f"{cores} cores, {days(row.date for row in rows)}, with {packages(row.versions for row in rows)}."


def _summary(rows: Sequence[Row]) -> str:
    lines = [
        "| workload | combinations | policies | first result, s | total, s | advice | promise | measured "
        "| | best of the set | advice / best |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        advice, promise = row.advice, row.advice.promise
        cells = [
            _name(row),
            str(advice.combinations or ""),
            str(advice.policies or ""),
            "" if advice.first_figure_seconds is None else f"{advice.first_figure_seconds:.0f}",
            f"{advice.wall_seconds:.0f}",
            advice.reason or f"{advice.winner}, batch {advice.batch}",
            "" if promise is None else f"{promise.ratio:.2f} ({promise.low:.2f} to {promise.high:.2f})",
            _ratio(row.measured),
            row.promise_is or "",
            _best(row),
            _ratio(row.advice_beside_best) or row.reason,
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def _best(row: Row) -> str:
    found = next((one.beside for one in row.arms if one.name == row.best), None)
    return row.best or "" if found is None else f"{row.best}: {_ratio(found)}"


def _aims(rows: Sequence[Row]) -> Iterator[str]:
    """Each target with how often it was met; a row without the value has missed it."""
    yield _aim(
        f"at least {LEAST_COMBINATIONS} combinations compared on every workload",
        rows,
        lambda row: row.advice.combinations >= LEAST_COMBINATIONS,
        lambda row: str(row.advice.combinations),
        share=1.0,
    )
    yield _aim(
        f"the advice at least {LEAST_OF_BEST:g} of the best of the set on every workload",
        rows,
        lambda row: row.advice_beside_best is not None and row.advice_beside_best.ratio >= LEAST_OF_BEST,
        lambda row: _ratio(row.advice_beside_best) or "not measured",
        share=1.0,
    )
    yield _aim(
        f"the measured ratio inside the promised interval in {100 * PROMISES_KEPT:.0f} % of the runs",
        rows,
        lambda row: row.promise_is == "inside",
        lambda row: row.promise_is or "not measured",
        share=PROMISES_KEPT,
    )


def _aim(
    words: str, rows: Sequence[Row], met: Callable[[Row], bool], found: Callable[[Row], str], *, share: float
) -> str:
    missed = [row for row in rows if not met(row)]
    count = len(rows) - len(missed)
    verdict = "met" if count >= share * len(rows) else "**not met**"
    named = "; ".join(f"{_name(row)}: {found(row)}" for row in missed)
    return f"{words}: {verdict}, in {count} of {len(rows)}{f' (not in {named})' if named else ''}"


def _sureness(rows: Sequence[Row]) -> str:
    """The number of narrow intervals: with wide ones, targets are met by chance."""
    found = [one.beside for row in rows for one in row.arms] + [row.advice_beside_best for row in rows]
    ratios = [one for one in found if one is not None]
    known = sum(one.rounds >= LEAST_FOR_INTERVAL and one.precision <= PRECISION for one in ratios)
    return f"{known} of {len(ratios)} ratios are known to ±{100 * PRECISION:g} %"


def _arms(row: Row) -> str:
    lines = [
        "| setting | batch | samples/s | unmodified, samples/s | ratio | rounds | |",
        "|---|---|---|---|---|---|---|",
    ]
    if row.untouched_batch is not None:
        lines.append(_line([UNTOUCHED.name, str(row.untouched_batch), "", "", "1", "", ""]))
    lines += [_line(_cells(arm)) for arm in row.arms]
    return "\n".join(lines)


def _cells(arm: ArmRow) -> list[str]:
    batch = "" if arm.batch is None else str(arm.batch)
    if arm.beside is None:
        return [arm.name, batch, "", "", "", "", arm.reason]
    found = arm.beside
    rates = [number(found.samples_per_second), number(found.other_samples_per_second)]
    return [arm.name, batch, *rates, _ratio(found), str(found.rounds), arm.reason]


def _name(row: Row) -> str:
    limit = "" if row.time_limit is None else f", --time-limit {row.time_limit}"
    return f"{row.workload}{f', run {row.repeat}' if row.repeat > 1 else ''}{limit}"


def _ratio(found: SpeedRatio | None) -> str:
    if found is None:
        return ""
    mark = "" if found.rounds >= LEAST_FOR_INTERVAL else "†"
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}){mark}"


def _line(cells: Sequence[str]) -> str:
    """A table row on one line, whatever text a library raised."""
    return "| " + " | ".join(map(cell, cells)) + " |"


if __name__ == "__main__":
    for path in lines_with_pages():
        write_page(path)
