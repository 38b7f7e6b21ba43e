"""Our strategy as in a session for ``faster`` on one device: compare until a dozen are known, then time every proposal.

The first ones are compared with plain training by short alternating steps, at plain training's largest batch or at
their own if that is smaller. The ratio is three quarters as noisy as a trial (:mod:`benchmarks.search.pairs`). Speed at
their own batch is extrapolated from the speedup and from the line through plain training's two batches, with the errors
that a session assumes. What may lead by a session's rule (:mod:`advisor.decide.leader`) is timed at once. After the
dozen every proposal is timed, and what differs from the leader in one method is compared with it, as on several
devices. Comparisons are counted separately: one takes about a fifth of the time of a trial.

Where plain training does not fit, a session times every proposal, and so does this strategy. On several devices it is
:mod:`benchmarks.search.in_pairs`.
"""

from __future__ import annotations

import math
import random

import msgspec

from advisor.decide.leader import hoped, usually_off
from advisor.search.propose.proposal import Proposal, SamplerName
from advisor.search.sizing.line import Line
from advisor.search.sizing.memory_model import MemoryModel
from advisor.session.trials.expected import ERROR_PER_DOUBLING, FORECAST_ERROR, seconds_at
from advisor.trial.outcome import Outcome
from benchmarks.search.batches import Batches
from benchmarks.search.comparisons import is_plain
from benchmarks.search.grown import settle
from benchmarks.search.guided import guided, proposer_of, tell, timed, with_room
from benchmarks.search.in_pairs import InPairs
from benchmarks.search.pairs import NOISE_OF_PAIR, Pairs
from benchmarks.search.problem import Problem, Trial
from benchmarks.search.trials import Trials

__all__ = ["compared_first"]

_COMPARED = 12
"""Combinations that were compared or timed before every further one is timed."""


class _Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted speed of a proposal at its largest batch, from a comparison."""

    proposal: Proposal
    rate: float
    error: float


def compared_first(trials: Trials, seed: int) -> None:
    """Propose combinations until the budget is spent or nothing is left.

    Args:
        trials: The budget.
        seed: Seed of the proposer, and of the noise of comparisons.

    Raises:
        SpentError: The budget is used up.
    """
    problem = trials.problem
    if problem.space.gpu_counts != (1,):
        guided(trials, seed, sampler=SamplerName.MODEL, compare=True, in_pairs=NOISE_OF_PAIR)
        return
    space = msgspec.structs.replace(problem.space, batch_fractions=(1.0,))
    proposer = proposer_of(space, seed, SamplerName.MODEL)
    batches = Batches(problem)
    beside = InPairs(trials, batches, proposer, Pairs(problem, batches, seed), seed)
    generator = random.Random(f"short steps {seed}")
    plain: list[Trial] = []
    waiting: list[_Forecast] = []
    reached: list[tuple[float, float]] = []
    known: set[str] = set()
    best = 0.0
    while (proposal := proposer.ask()) is not None:
        largest = batches.largest(proposal.combination)
        if not plain or proposal.hand_tuned or largest == 0 or len(known) >= _COMPARED:
            results = timed(trials, batches, proposal)
            plain = plain or [one for one in results if is_plain(one)]
            best = with_room(trials, batches, proposal, results, best)
            tell(proposer, batches, problem, proposal, results)
            beside.saw(results)
            known |= {one.combination.label for one in results if one.rate is not None}
        else:
            trials.compared()
            short = problem.run(proposal.combination, min(largest, plain[0].batch), generator)
            if short.rate is None:
                lost = "memory" if short.outcome is Outcome.OUT_OF_MEMORY else "outcome"
                memory = batches.attributes(proposal.combination)
                proposer.tell(proposal, None, {lost: 1.0}, memory, excludes_combination=True)
            else:
                forecast = _forecast(problem, proposal, short.batch, plain, largest, generator)
                sizes = {"micro_batch": largest, "largest_batch": largest}
                attributes = sizes | batches.attributes(proposal.combination)
                proposer.tell(proposal, forecast.rate, {}, attributes, noise=forecast.error)
                known.add(proposal.combination.label)
                waiting.append(forecast)
        while (leader := _next(waiting, best, usually_off(reached))) is not None:
            waiting.remove(leader)
            results = timed(trials, batches, leader.proposal)
            reached += [(one.rate, leader.rate) for one in results[:1] if one.rate is not None]
            best = with_room(trials, batches, leader.proposal, results, best)
            for one in results:
                if one.rate is not None and not one.flushed:
                    sizes = {"micro_batch": one.batch, "largest_batch": max(other.batch for other in results)}
                    attributes = sizes | batches.attributes(one.combination)
                    proposer.learn(one.combination, one.rate, attributes, noise=problem.noise)
            beside.saw(results)
        if len(known) >= _COMPARED:
            beside.compare_neighbours()
        settle(trials, batches, proposer, seed)


def _next(waiting: list[_Forecast], best: float, off: float) -> _Forecast | None:
    """The best of those that may lead."""
    able = [one for one in waiting if hoped(one.rate, one.error, off) > best]
    return max(able, key=lambda one: one.rate, default=None)


def _forecast(
    problem: Problem, proposal: Proposal, batch: int, plain: list[Trial], largest: int, generator: random.Random
) -> _Forecast:
    """Extrapolate from short steps to the largest batch, as :mod:`advisor.session.trials.expected` does."""
    times = [(float(one.batch), one.seconds) for one in plain if one.seconds is not None]
    line = Line.through(*times) if len(times) > 1 else Line(0.0, times[0][1] / times[0][0])
    top = max(plain, key=lambda one: one.batch)
    assert top.seconds is not None, "it ran"
    model = MemoryModel(lines=(), time=line, timed_at=top.batch, timed_seconds=top.seconds)
    # Both alternate: the error of the ratio is drawn once.
    noise = NOISE_OF_PAIR * problem.noise
    speedup = problem.rate(proposal.combination, batch) / problem.rate(plain[0].combination, batch)
    doublings = max(0.0, math.log2(largest / top.batch))
    return _Forecast(
        proposal=proposal,
        rate=speedup * math.exp(generator.gauss(0.0, noise)) * largest / seconds_at(model, largest),
        error=math.hypot(FORECAST_ERROR, ERROR_PER_DOUBLING * doublings, noise),
    )
