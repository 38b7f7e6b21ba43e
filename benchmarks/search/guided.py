"""Our own strategy, as in a session: combinations from the proposer, batches from the memory forecast."""

from __future__ import annotations

import math

import msgspec

from advisor.search.propose.proposal import InTurn, Proposal, SamplerName
from advisor.search.sizing.batching import AFTER_FLUSHES, AFTER_OUT_OF_MEMORY, choose_batch
from advisor.search.space.space import ResolvedSpace
from advisor.search.study.sampler import Proposer
from advisor.trial.outcome import Outcome
from benchmarks.search.batches import Batches
from benchmarks.search.beside_leader import BesideLeader
from benchmarks.search.comparisons import Comparison, comparisons, is_plain
from benchmarks.search.grown import settle
from benchmarks.search.in_pairs import InPairs
from benchmarks.search.pairs import Pairs
from benchmarks.search.problem import Problem, Trial
from benchmarks.search.trials import Trials

__all__ = ["guided", "proposer_of", "tell", "timed", "with_room"]


def guided(
    trials: Trials,
    seed: int,
    *,
    sampler: SamplerName,
    second_batch: bool = True,
    compare: bool = False,
    beside_leader: bool = False,
    in_pairs: float = 0.0,
) -> None:
    """Propose combinations until the budget is spent or nothing is left.

    Args:
        trials: The budget.
        seed: Seed of the proposer.
        sampler: How the proposer chooses.
        second_batch: Whether half of the largest batch is timed in the same trial; the proposer then does not choose
            batches. Otherwise it chooses a fraction of the largest one.
        compare: Whether every method is compared with plain training, on its own and for a few seconds, after plain
            training has run.
        beside_leader: Whether combinations that differ from the leader in one method are compared with it too.
        in_pairs: Noise of a ratio over that of a trial, if these are compared on all devices of the leader and leaders
            with each other before an answer; else 0.

    Raises:
        SpentError: The budget is used up.
    """
    problem = trials.problem
    space = problem.space
    if second_batch:
        space = msgspec.structs.replace(space, batch_fractions=(1.0,))
    proposer = proposer_of(space, seed, sampler)
    batches = Batches(problem)
    beside: BesideLeader | InPairs | None = BesideLeader(trials, batches, proposer, seed) if beside_leader else None
    pairs = Pairs(problem, batches, seed, in_pairs) if in_pairs else None
    if pairs is not None:
        beside = InPairs(trials, batches, proposer, pairs, seed)
    best = 0.0
    while (proposal := proposer.ask()) is not None:
        results = timed(trials, batches, proposal, second_batch=second_batch)
        if compare and results and is_plain(results[-1]):
            noise = problem.noise if pairs is None else pairs.noise
            for one in comparisons(problem, batches, results[-1], seed, noise):
                trials.compared()
                beside_plain = None if pairs is None else _in_turn(one, results[-1])
                known = one.attributes | batches.attributes(one.combination)
                proposer.learn(one.combination, one.rate, known, noise=noise, beside=beside_plain)
            compare = False
        best = with_room(trials, batches, proposal, results, best)
        tell(proposer, batches, problem, proposal, results)
        if beside is not None:
            beside.after(results)
        if pairs is None:
            settle(trials, batches, proposer, seed)


def _in_turn(comparison: Comparison, plain: Trial) -> InTurn:
    assert plain.rate is not None, "plain training ran"
    return InTurn(combination=plain.combination, micro_batch=plain.batch, ratio=comparison.rate / plain.rate)


def timed(trials: Trials, batches: Batches, proposal: Proposal, *, second_batch: bool = True) -> list[Trial]:
    """Time a proposal, and retry with less if it ran out of memory and the proposer cannot choose a smaller batch."""
    results = _run(trials, batches, proposal, second_batch=second_batch)
    lost = results[0] if results else None
    for share in AFTER_OUT_OF_MEMORY if second_batch else ():
        if lost is None or results[0].outcome is not Outcome.OUT_OF_MEMORY:
            break
        results = _run(
            trials, batches, proposal, second_batch=True, bound=math.floor(share * lost.batch), below=results
        )
    return results


def tell(proposer: Proposer, batches: Batches, problem: Problem, proposal: Proposal, results: list[Trial]) -> None:
    """Tell the proposer the results of a proposal; none means that it is known in advance not to fit."""
    known = batches.attributes(proposal.combination)
    peaks = [result.peak_bytes for result in results if result.peak_bytes is not None]
    if any(result.rate is not None for result in results):
        _tell(proposer, proposal, results, {"memory": max(peaks) / problem.limit_bytes - 1}, known, problem.noise)
    elif not results:
        proposer.tell(proposal, None, {"memory": 1.0}, known, excludes_combination=True)
    elif results[0].outcome is Outcome.OUT_OF_MEMORY:
        proposer.tell(proposal, None, {"memory": 1.0}, known)
    else:
        proposer.tell(proposal, None, {"outcome": 1.0}, excludes_combination=True)


def _run(
    trials: Trials,
    batches: Batches,
    proposal: Proposal,
    *,
    second_batch: bool,
    bound: int | None = None,
    below: list[Trial] | None = None,
) -> list[Trial]:
    """One trial at the proposal's fraction of the largest batch; nothing if not even one sample is expected to fit.

    Args:
        trials: The budget.
        batches: Forecasts of what fits.
        proposal: What to run.
        second_batch: Whether half of the batch is timed as well.
        bound: The largest batch to run.
        below: The result of the previous attempt, used if no smaller batch is left.
    """
    largest = batches.largest(proposal.combination)
    largest = largest if bound is None else min(largest, bound)
    batch = choose_batch(largest=largest, fraction=proposal.batch_fraction)
    if batch is None or (below and batch.micro_batch >= below[0].batch):
        return below or []
    half = choose_batch(largest=largest, fraction=0.5) if second_batch and batch.micro_batch > 1 else None
    results = trials.run(proposal.combination, batch.micro_batch, also=None if half is None else half.micro_batch)
    for result in results:
        batches.learn(result)
    return results


def with_room(trials: Trials, batches: Batches, proposal: Proposal, results: list[Trial], best: float) -> float:
    """Try a slightly smaller batch if nearly full memory slowed a leading combination; returns the best rate."""
    rate = max((result.rate for result in results if result.rate is not None), default=0.0)
    full = next((result for result in results if result.flushed), None)
    if full is not None and full.rate is not None and full.rate >= AFTER_FLUSHES * best:
        bound = math.floor(AFTER_FLUSHES * full.batch)
        again = _run(trials, batches, proposal, second_batch=False, bound=bound, below=[full])
        if again[0] is not full:
            results += again
            rate = max(rate, again[0].rate or 0.0)
    return max(best, rate)


def _tell(
    proposer: Proposer,
    proposal: Proposal,
    results: list[Trial],
    constraints: dict[str, float],
    known: dict[str, float],
    noise: float,
) -> None:
    """Tell the best of a trial's batches, and let the model learn from the others."""
    ran = [one for one in results if one.rate is not None]
    best = max(ran, key=lambda one: one.rate or 0.0)
    largest = max(one.batch for one in ran)
    for one in ran:
        attributes = {"micro_batch": one.batch, "largest_batch": largest, **known}
        assert one.rate is not None, "it ran"
        if one is best:
            proposer.tell(proposal, one.rate, constraints, attributes, noise=noise)
        elif not one.flushed:
            proposer.learn(proposal.combination, one.rate, attributes, noise=noise)


def proposer_of(space: ResolvedSpace, seed: int, sampler: SamplerName) -> Proposer:
    """A proposer with an in-memory study."""
    return Proposer(space, storage=None, study_name="benchmark", maximize=(True,), seed=seed, sampler=sampler)
