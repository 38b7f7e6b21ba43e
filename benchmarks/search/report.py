"""The page of search results, generated from the recorded lines.

python -m benchmarks.search.report
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import packages
from benchmarks.search.generated import HELD_BACK_NAME
from benchmarks.search.results import EARLY, Result, quantile, read

__all__ = ["PAGE", "markdown", "page"]

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = _RESULTS / "search.md"

_DISPLAYED = {HELD_BACK_NAME: "generated, held out"}
"""Name of a problem in the lines -> on the page."""

_EXPLANATION = """\
A trial is one run of one combination of methods in a worker process. Trials that run out of memory or crash count too.
A search has converged once the answer it would give at that point is truly within 2 % of the exhaustive optimum.
Measurements that a session repeats before it answers count as trials: with a model, the leaders that it considers lucky
or uncertain; with every other strategy, the current leaders, until the worse of two values or the median of three
decides (also for *ours, model* in rows before 2026-11-24). *random* and *optuna default* sample the batch size as a
parameter. *deepspeed* follows the DeepSpeed autotuner's procedure, as `benchmarks/search/deepspeed.py` describes it.
*ours* takes combinations from the proposer with the named sampler, sets the batch size from the memory forecast, and
times half of that batch in the same trial (*one batch*: no second batch, and the proposer chooses a fraction of the
largest batch as it chooses methods). Forecasts cost no trials, for *ours* and for *deepspeed* alike; on recorded tables
they come from the profiling runs of a session. *Compared*: ours, after a short comparison of each method alone with
plain training, in turn and at the same batch size. *Beside the leader*: each new leader is also compared with all
combinations that differ from it in one method, on one device and if memory holds both, up to 60 comparisons. *In
pairs*: the same on all devices of the leader, up to 100 comparisons; before an answer the few that may be the best are
compared with each other, up to 30 times, until the choice is expected to lose at most 0.1 %, and the model's estimate
from everything decides. Sessions on several devices do so, with two further limits: all comparisons take at most half
of the time of all trials, and neighbours are compared no longer if one takes more than half of a trial's time; what
compiles where the leader does not is left out, and a ratio is known to 3 % at best. *A dozen compared first*: what a
session does for `faster` on one device: proposals are compared with plain training and timed only if they may lead,
until twelve are known, whether compared or timed; after that every proposal is timed and each new leader compared with
its neighbours. On several devices it is *in pairs*. Since 2026-11-26 all of *ours, model* also time the winner once
more, at the largest batch that its measured peak leaves room for (from 64 samples on, in rows of 2026-11-27 other than
the held-out problems, the largest multiple of eight); where memory holds fewer than four samples they try one more if
it is forecast to fit exactly, and only neighbours that may well be better than the leader are compared with it (not yet
in the rows of *in pairs* from before that day). Since 2026-11-27 *in pairs* and *a dozen compared first* also compare
the leader with up to ten combinations of pairs of settings about which little is known, after each trial; no pair of
methods disagrees here on what is set for the whole process. In the rows of that day all of *ours, model* take a trial
for what it may teach about such pairs, if that is worth more. A comparison is as noisy
here as a trial; *in pairs* and *a dozen compared first* three quarters of that, as the noisiest recorded
table shows (median standard errors of pairs that alternate for two or three seconds: 1.1 to 2.2 %, 0.2 to 0.74 times
the noise of the table's trials), or *twice the noise*. It takes seconds, about a fifth of a trial, and counts as that
in *within 30*, *within 40* and *trials and comparisons* (and, since 2026-11-26, in the budget). The other columns count
trials alone. *Comparisons*: the median number until convergence, over the seeds that converged, those before that
answer included."""

_HELD_BACK = """\
A new problem for each seed, of a kind that the search was neither developed on nor adapted to
(`benchmarks/search/generated.py` defines it): 300 to 100,000 combinations; nineteen families of main effects, three
of which no search was developed on; interactions of pairs and triples; pairs that only pay together or crash; settings
that never run, fill the memory or pay only above a certain batch size; and a noise of 1 to 10 % that differs between
problems. In some of them the noise makes combinations within 2 % of the optimum indistinguishable: no strategy
converges on all"""


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
    """The whole page, from the files of results in a folder; empty if there are none."""
    results = [result for path in sorted(folder.glob("search-*.jsonl")) for result in read(path)]
    if not results:
        return ""
    return f"# Search\n\n{_EXPLANATION}\n\n{markdown(results)}\n"


def _title(result: Result) -> str:
    many = ""
    source = "A new problem for each seed"
    if result.recorded_on:
        source = f"Recorded on {result.recorded_on}, {result.recorded}"
        known = "" if result.recorded_noise is None else f" ({result.recorded_noise:.1%})"
        noise = f"as in the recording{known}" if result.noise is None else f"of {result.noise:.1%}"
        source += f"; trial times with noise {noise}"
    if result.problem == HELD_BACK_NAME:
        source, many = _HELD_BACK, "up to "
    versions = packages([result.versions])
    return (
        f"## {_DISPLAYED.get(result.problem, result.problem)}: {many}{result.combinations:,} combinations\n\n{source}; "
        f"{len(result.reached)} seeds, at most {result.budget} trials each, on {result.date} with {versions}."
    )


def _table(results: Sequence[Result]) -> list[str]:
    rows = [
        "| strategy | median trials to 2 % | 95 % of seeds | converged within 30 | within 40 | comparisons, median "
        "| trials and comparisons, median | out of memory | failed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        numbers = (result.median, result.percentile_95, result.median_with_comparisons)
        median, late, together = (_trials(number, result.budget) for number in numbers)
        together = "not counted" if _comparisons(result) == "not counted" else together
        rows.append(
            f"| {_named(result, results[0])} | {median} | {late} | {result.within_thirty:.0%} "
            f"| {result.within_forty:.0%} | {_comparisons(result)} | {together} | {result.out_of_memory_share:.1%} "
            f"| {result.failed_share:.1%} |"
        )
    return rows


def _worth(results: Sequence[Result]) -> list[str]:
    rows = [
        f"| strategy | answer after {EARLY} trials / optimum: median | 10th percentile |",
        "|---|---|---|",
    ]
    for result in results:
        median, low = (-quantile([-one for one in result.worth], share) for share in (0.5, 0.9))
        rows.append(f"| {result.strategy} | {median:.1%} | {low:.1%} |")
    return rows


def _named(result: Result, first: Result) -> str:
    """The strategy, with its number of seeds, its budget and its date if they differ from the title's."""
    seeds = len(result.reached)
    other = [] if seeds == len(first.reached) else [f"{seeds} seeds"]
    other += [] if result.budget == first.budget else [f"at most {result.budget} trials"]
    other += [] if result.date == first.date else [f"on {result.date}"]
    return f"{result.strategy} ({', '.join(other)})" if other else result.strategy


def _comparisons(result: Result) -> str:
    """The median of the comparisons made until convergence, over the seeds that converged."""
    made = [number for number in result.compared if number is not None]
    if made:
        return f"{quantile(made, 0.5):.0f}"
    return "not counted" if "compared" in result.strategy else "none"


def _trials(number: float, budget: int) -> str:
    return f"more than {budget}" if math.isinf(number) else f"{number:.0f}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
