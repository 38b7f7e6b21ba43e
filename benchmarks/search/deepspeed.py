"""The procedure of the DeepSpeed autotuner, step by step, with combinations of methods in place of ZeRO stages.

It follows ``deepspeed/autotuning/autotuner.py`` with default settings (fast mode, throughput as the metric):

1. One run profiles the model: the activation memory of one sample.
2. Options are tried in order, from the least memory saving to the most (``tune``).
3. An option whose calculated largest batch is below that of the best option so far is skipped without a run
   (``tune_space``).
4. For the others (``get_min_max_micro_batch_size``): the smallest batch is run, 1 for the first option, for later ones
   the largest of the best option so far; if it fails the option is skipped. Then 1.05, 1 and 0.95 times the calculated
   largest batch are run until one works; if none does, the largest is found by bisection, which ends early where
   throughput grows by less than 5 %.
5. Half of the largest batch and the largest are run (``get_tuning_micro_batch_size_list``: of three batches from half
   to the whole, those with different numbers of accumulation steps), then smaller ones near the largest as long as each
   is more than 5 % better (``run_tuning_micro_batch_sizes``).
6. Nothing is run twice (``ResourceManager.schedule_experiments``).

Two things are made easier for it. DeepSpeed calculates the largest batch from the parameters and the profiled
activations, which accounts for no method other than ZeRO: here it gets the same forecast for every option as our own
strategy. And it runs half of the largest batch with two accumulation steps, which the recorded tables do not hold: here
it is run with one. ZeRO stages are ordered by their memory saving; combinations are ordered by their number of methods,
randomly among equals.
"""

from __future__ import annotations

import math
import random

from advisor.search.space.space import Combination
from benchmarks.search.trials import Trials

__all__ = ["deepspeed"]

_PLATEAU = 0.05
"""``METRIC_PERCENT_DIFF_CONST``."""

_BATCHES = 3
"""``num_tuning_micro_batch_sizes``."""


def deepspeed(trials: Trials, seed: int, *, leave_out: bool = True) -> None:
    """Tune option after option until the budget is spent or none is left.

    Args:
        trials: The budget.
        seed: Seed of the order among options with equally many methods.
        leave_out: Whether results of earlier options exclude later ones, as for ZeRO stages. Otherwise each option is
            tuned as if it were the first.

    Raises:
        SpentError: The budget is used up.
    """
    problem = trials.problem
    options = list(problem.space.combinations())
    random.Random(seed).shuffle(options)
    options.sort(key=lambda option: len(option.settings))
    trials.run(options[0], 1)  # the profile
    best_batch = largest_before = 0
    for option in options:
        tuning = _Tuning(trials, option, largest_before if leave_out else 0)
        found = tuning.tune()
        if found is not None and found > best_batch:
            best_batch, largest_before = found, tuning.largest


class _Tuning:
    """Tunes one option.

    Args:
        trials: The budget.
        option: The methods.
        largest_before: The largest batch of the best option so far, 0 for the first.
    """

    def __init__(self, trials: Trials, option: Combination, largest_before: int) -> None:
        self._trials = trials
        self._option = option
        self._largest_before = largest_before
        self._bound = trials.problem.largest_batch
        self._metrics: dict[int, float] = {}
        self.largest = 0

    def tune(self) -> int | None:
        """The best batch of the option, or ``None`` if it is skipped."""
        calculated = self._calculated()
        if calculated < max(1, self._largest_before):
            return None
        smallest = max(1, self._largest_before)
        if not self._metric(smallest):
            return None
        self.largest = self._largest(smallest, calculated)
        self._run_batches(smallest)
        return max(self._metrics, key=lambda batch: self._metrics[batch])

    def _calculated(self) -> int:
        """The calculated largest batch."""
        forecast = self._trials.problem.forecast(self._option)
        if forecast is None:
            return 0
        largest = forecast.largest_batch(self._trials.problem.limit_bytes, margin=0.0, rounded=False)
        return min(largest, self._bound)

    def _metric(self, batch: int) -> float:
        """Throughput at a batch, 0 if it does not run; cached."""
        if batch not in self._metrics:
            (result,) = self._trials.run(self._option, batch)
            self._metrics[batch] = result.rate or 0.0
        return self._metrics[batch]

    def _largest(self, smallest: int, calculated: int) -> int:
        for batch in (math.ceil(1.05 * calculated), calculated, int(0.95 * calculated)):
            if batch > self._bound or batch < 1:
                continue
            if self._metrics.get(batch):
                return batch
            if self._metric(batch):
                return batch
        low, high = smallest, calculated
        before = self._metrics[min(self._metrics, key=lambda batch: abs(batch - smallest))]
        while low <= high:
            middle = (low + high) // 2
            if self._metrics.get(middle):
                low = middle + 1
                continue
            metric = self._metric(middle)
            if not metric:
                high = middle - 1
                continue
            low = middle + 1
            if before and (metric - before) / before < _PLATEAU:
                break
            before = metric
        return low - 1

    def _run_batches(self, smallest: int) -> None:
        largest = self.largest
        batches = _batches(smallest, largest)
        for batch in batches:
            self._metric(batch)
        lowest = batches[-2] + 1 if len(batches) > 1 else smallest
        best = self._metrics[largest]
        for batch in reversed(range(lowest, largest, max(1, (largest - lowest) // 3))):
            metric = self._metric(batch)
            if metric <= best * (1 + _PLATEAU):
                break
            best = metric


def _batches(smallest: int, largest: int) -> list[int]:
    """From half of the largest batch to the largest: those with different numbers of accumulation steps."""
    smallest = max(smallest, largest // 2)
    stride = max(1, (largest - smallest) // _BATCHES)
    return [batch for batch in range(smallest, largest, stride) if largest // batch != 1] + [largest]
