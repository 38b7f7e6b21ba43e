"""Run every strategy on problems with a known optimum, and count its trials.

    python -m benchmarks.search.replay --seeds 50
    python -m benchmarks.search.replay --seeds 50 --simulator
    python -m benchmarks.search.replay --seeds 50 --held-back

On recorded tables all seeds search the same table, with different noise and random choices. In the simulator and among
the held-out generated problems every seed is a new problem (:mod:`benchmarks.search.generated`: run the held-out ones
once a search is finished, and change nothing because of them). The lines go to ``search-tables.jsonl``,
``search-simulator.jsonl`` and ``search-held-back.jsonl`` in ``docs/results``; ``python -m benchmarks.search.report``
turns them into a page.
"""

from __future__ import annotations

import argparse
import datetime
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from advisor.version import __version__
from benchmarks.search.generated import FIRST_HELD_BACK, Generated
from benchmarks.search.problem import Problem
from benchmarks.search.report import markdown
from benchmarks.search.results import EARLY, NEAR, Result, write
from benchmarks.search.simulated_space import SIZES, Levels
from benchmarks.search.simulator import Simulator
from benchmarks.search.strategies import STRATEGIES, search
from benchmarks.search.table import Table
from benchmarks.search.trials import Trials

__all__ = ["main", "replay"]

_ROOT = Path(__file__).resolve().parents[2]
_TABLES = _ROOT / "benchmarks" / "tables"
_RESULTS = _ROOT / "docs" / "results"
_PACKAGES = ("numpy", "optuna", "scikit-learn", "scipy")


def replay(
    strategy: str,
    problem_of: Callable[[int], Problem],
    *,
    seeds: int,
    budget: int,
    table: Table | None = None,
    noise: float | None = None,
) -> Result:
    """One strategy on one problem.

    Args:
        strategy: Name of the strategy.
        problem_of: The problem of a seed.
        seeds: Number of seeds.
        budget: Most trials of each.
        table: The recorded table, if it is every seed's problem; ``None`` for simulated ones.
        noise: Noise of one measurement, if different from the recording's own.
    """
    every = []
    for seed in range(seeds):
        trials = Trials(problem_of(seed), budget, seed)
        search(STRATEGIES[strategy], trials, seed)
        every.append(trials)
    return Result(
        problem=every[0].problem.name,
        combinations=max(trials.problem.space.count for trials in every),
        strategy=strategy,
        budget=budget,
        reached=tuple(trials.reached(NEAR) for trials in every),
        spent=tuple(trials.spent for trials in every),
        out_of_memory=tuple(trials.out_of_memory for trials in every),
        failed=tuple(trials.failed for trials in every),
        recorded_on="" if table is None else table.header.device,
        recorded="" if table is None else table.header.date,
        recorded_noise=None if table is None else table.drift.noise,
        noise=noise,
        compared=_compared(every),
        worth=tuple(trials.worth_after(EARLY) for trials in every),
        versions=_versions(),
        date=datetime.date.today().isoformat(),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.replay", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--budget", type=int, default=150, help="most trials of each seed (default: 150)")
    parser.add_argument("--tables", type=Path, nargs="+", help="tables to search (default: all in benchmarks/tables)")
    parser.add_argument("--simulator", nargs="*", choices=sorted(SIZES), help="simulated problems instead of tables")
    parser.add_argument("--held-back", action="store_true", help="the held-out generated problems")
    parser.add_argument(
        "--noise", type=float, help="relative standard deviation of one measurement on tables (default: as recorded)"
    )
    parser.add_argument("--strategies", nargs="+", choices=sorted(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument(
        "--output", type=Path, help="default: docs/results/search-(tables, simulator or held-back).jsonl"
    )
    options = parser.parse_args(arguments)
    results: list[Result] = []
    kind = "held-back" if options.held_back else "tables" if options.simulator is None else "simulator"
    output = options.output or _RESULTS / f"search-{kind}.jsonl"
    for problem_of, table in _problems(options):
        for strategy in options.strategies:
            one = replay(
                strategy,
                problem_of,
                seeds=options.seeds,
                budget=options.budget,
                table=table,
                noise=options.noise,
            )
            results.append(one)
            write(output, [one])
    print(markdown(results))


def _compared(every: Sequence[Trials]) -> tuple[int | None, ...]:
    """The number of comparisons until each seed converged; empty if none were made."""
    if not any(trials.comparisons for trials in every):
        return ()
    return tuple(trials.compared_until(NEAR) for trials in every)


def _problems(options: argparse.Namespace) -> Iterator[tuple[Callable[[int], Problem], Table | None]]:
    """The problem of each seed, with the table if it is a recorded one."""
    if options.held_back:
        yield lambda seed: Generated(FIRST_HELD_BACK + seed), None
        return
    if options.simulator is not None:
        for size in options.simulator or list(SIZES):
            levels = Levels(size)
            yield lambda seed, size=size, levels=levels: Simulator(seed, size, levels=levels), None  # type: ignore[misc]
        return
    for path in options.tables or sorted(_TABLES.glob("*.jsonl.gz")):
        table = Table.read(path, noise=options.noise)
        yield lambda seed, table=table: table, table  # type: ignore[misc]


def _versions() -> dict[str, str]:
    found = {"momadvise": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
