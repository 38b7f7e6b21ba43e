"""The page of search results: everything in it is read from the recorded lines.

python -m benchmarks.search.report
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.search.results import Result, read

__all__ = ["PAGE", "markdown", "page"]

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = _RESULTS / "search.md"

_EXPLANATION = """\
A trial is one run of one combination of methods in a worker; one that runs out of memory or crashes counts like any
other. A search has arrived when the answer that it would give if it ended there is truly within 2 % of the exhaustive
best: as in a session, those that lead are measured once more, the worse figure of two stands (where two lead that are
near each other, the median of three), and these repetitions count as trials, whatever the strategy. *random* and
*optuna default* draw the batch as a parameter; *deepspeed* is the DeepSpeed autotuner's procedure, as
`benchmarks/search/deepspeed.py` describes it; *ours* takes combinations from the proposer with the sampler that is
named, sets the batch from the memory forecast, and times half of that batch in the same trial (*one batch*: it does
not, and the proposer chooses a share of the largest batch, as it does among methods). Forecasts cost no trial, neither
ours nor what *deepspeed* calculates with; on recorded tables they come from the short runs that a session makes."""


def markdown(results: Sequence[Result]) -> str:
    """The results as tables, one for each problem."""
    parts = []
    for problem in dict.fromkeys((result.problem, result.noise) for result in results):
        of_problem = [result for result in results if (result.problem, result.noise) == problem]
        parts.append("\n".join([_title(of_problem[0]), "", *_table(of_problem)]))
    return "\n\n".join(parts)


def page(folder: Path = _RESULTS) -> str:
    """The whole page, from the files of results in a folder; empty when there is none."""
    results = [result for path in sorted(folder.glob("search-*.jsonl")) for result in read(path)]
    if not results:
        return ""
    return f"# Search\n\n{_EXPLANATION}\n\n{markdown(results)}\n"


def _title(result: Result) -> str:
    source = "A fresh one for each seed"
    if result.recorded_on:
        source = f"Recorded on {result.recorded_on}, {result.recorded}"
        known = "" if result.recorded_noise is None else f" ({result.recorded_noise:.1%})"
        noise = f"as in the recording{known}" if result.noise is None else f"of {result.noise:.1%}"
        source += f"; every trial's time with noise {noise}"
    versions = ", ".join(f"{package} {version}" for package, version in result.versions.items())
    return (
        f"## {result.problem}: {result.combinations:,} combinations\n\n{source}; "
        f"{len(result.reached)} seeds of at most {result.budget} trials on {result.date} with {versions}."
    )


def _table(results: Sequence[Result]) -> list[str]:
    rows = [
        "| strategy | median trials to 2 % | 95 % of seeds | arrived within 30 | out of memory | failed |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        median, late = (_trials(number, result.budget) for number in (result.median, result.late))
        rows.append(
            f"| {result.strategy} | {median} | {late} | {result.soon:.0%} | {result.lost:.1%} | {result.broken:.1%} |"
        )
    return rows


def _trials(number: float, budget: int) -> str:
    return f"more than {budget}" if math.isinf(number) else f"{number:.0f}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
