"""The page of search results: everything in it is read from the recorded lines.

python -m benchmarks.search.report
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.search.generated import HELD_BACK_NAME
from benchmarks.search.results import SOON, Result, quantile, read

__all__ = ["PAGE", "markdown", "page"]

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = _RESULTS / "search.md"

_EXPLANATION = """\
A trial is one run of one combination of methods in a worker; one that runs out of memory or crashes counts like any
other. A search has arrived when the answer that it would give if it ended there is truly within 2 % of the exhaustive
best. What a session measures again before it answers counts as trials: where there is a model, leaders that it thinks
lucky or is not sure of; for all other strategies those that lead, until the worse figure of two or the median of three
decides (so too for *ours, model* in rows from before 2026-11-24). *random* and *optuna default* draw the batch as a
parameter; *deepspeed* is the DeepSpeed autotuner's procedure, as `benchmarks/search/deepspeed.py` describes it; *ours*
takes combinations from the proposer with the sampler that is named, sets the batch from the memory forecast, and times
half of that batch in the same trial (*one batch*: it does not, and the proposer chooses a share of the largest batch,
as it does among methods). Forecasts cost no trial, neither ours nor what *deepspeed* calculates with; on recorded
tables they come from the short runs that a session makes. *Compared* is ours after a short comparison of each method
alone with plain training, in turn and at the same batch. *Beside the leader*, whatever leads is also compared with all
that differ from it in one method, on one device and where there is room for both, until there were 60 comparisons (no
session does this on several devices yet). *Each compared first* is what a session does for `faster` on
one device: whatever is proposed is compared in this way, and timed where it may lead; on several devices it is *ours,
model*. A comparison is as noisy here as a trial. It takes seconds, about a fifth of a trial, and is counted apart: the
median, over the seeds that arrived, of the comparisons until then."""

_HELD_BACK = """\
A fresh one for each seed, of a kind that the search was not developed with and not changed for
(`benchmarks/search/generated.py` has the rule): 300 to 100,000 combinations, ten families of main effects of which
three are new to the search, interactions of pairs and triples, pairs that pay only together or crash, settings that
never run, fill the memory or pay from a certain batch on, and noise of 1 to 10 %, another in each. With so much noise
nothing that is within 2 % of the best can be told from it in some of them, and no strategy arrives in all"""


def markdown(results: Sequence[Result]) -> str:
    """The results as tables, one for each problem."""
    parts = []
    order = sorted(results, key=lambda result: result.problem == HELD_BACK_NAME)
    for problem in dict.fromkeys((result.problem, result.noise) for result in order):
        of_problem = [result for result in results if (result.problem, result.noise) == problem]
        parts.append("\n".join([_title(of_problem[0]), "", *_table(of_problem)]))
        if problem[0] == HELD_BACK_NAME:
            parts.append("\n".join(_worth(of_problem)))
    return "\n\n".join(parts)


def page(folder: Path = _RESULTS) -> str:
    """The whole page, from the files of results in a folder; empty when there is none."""
    results = [result for path in sorted(folder.glob("search-*.jsonl")) for result in read(path)]
    if not results:
        return ""
    return f"# Search\n\n{_EXPLANATION}\n\n{markdown(results)}\n"


def _title(result: Result) -> str:
    many = ""
    source = "A fresh one for each seed"
    if result.recorded_on:
        source = f"Recorded on {result.recorded_on}, {result.recorded}"
        known = "" if result.recorded_noise is None else f" ({result.recorded_noise:.1%})"
        noise = f"as in the recording{known}" if result.noise is None else f"of {result.noise:.1%}"
        source += f"; every trial's time with noise {noise}"
    if result.problem == HELD_BACK_NAME:
        source, many = _HELD_BACK, "up to "
    versions = ", ".join(f"{package} {version}" for package, version in result.versions.items())
    return (
        f"## {result.problem}: {many}{result.combinations:,} combinations\n\n{source}; "
        f"{len(result.reached)} seeds of at most {result.budget} trials on {result.date} with {versions}."
    )


def _table(results: Sequence[Result]) -> list[str]:
    rows = [
        "| strategy | median trials to 2 % | 95 % of seeds | arrived within 30 | within 40 | comparisons, median "
        "| out of memory | failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        median, late = (_trials(number, result.budget) for number in (result.median, result.late))
        rows.append(
            f"| {_named(result, results[0])} | {median} | {late} | {result.soon:.0%} | {result.within_forty:.0%} "
            f"| {_comparisons(result)} | {result.lost:.1%} | {result.broken:.1%} |"
        )
    return rows


def _worth(results: Sequence[Result]) -> list[str]:
    rows = [
        f"| strategy | answer after {SOON} trials, of the best: median | a tenth of the seeds is below |",
        "|---|---|---|",
    ]
    for result in results:
        median, low = (-quantile([-one for one in result.worth], share) for share in (0.5, 0.9))
        rows.append(f"| {result.strategy} | {median:.1%} | {low:.1%} |")
    return rows


def _named(result: Result, first: Result) -> str:
    """The strategy, with its number of seeds and its date where these are not what the title says."""
    seeds = len(result.reached)
    other = [] if seeds == len(first.reached) else [f"{seeds} seeds"]
    other += [] if result.date == first.date else [f"on {result.date}"]
    return f"{result.strategy} ({', '.join(other)})" if other else result.strategy


def _comparisons(result: Result) -> str:
    """Of the seeds that arrived, the median of the comparisons made until then."""
    made = [number for number in result.compared if number is not None]
    if made:
        return f"{quantile(made, 0.5):.0f}"
    return "not counted" if "compared" in result.strategy else "none"


def _trials(number: float, budget: int) -> str:
    return f"more than {budget}" if math.isinf(number) else f"{number:.0f}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
