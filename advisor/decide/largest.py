"""Choose the largest model whose throughput stays at or above the floor."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.eligible import is_measured, why_not_eligible
from advisor.decide.floor import floor_rate, keeps
from advisor.decide.growth import growth_of
from advisor.decide.no_winner import nothing_to_choose
from advisor.decide.noise import SMALLEST_NOISE, noise_between, repeat_noise
from advisor.decide.ranking import representative, simplicity
from advisor.errors import FloorNotMetError, NothingMeasuredError, TrialError
from advisor.goal import Goal
from advisor.search.space.space import Combination
from advisor.text.units import Rounding, format_rate
from advisor.workload.sizes import size_words

__all__ = ["choose_largest"]


def choose_largest(candidates: Sequence[Candidate], goal: Goal) -> Recommendation:
    """Rank the measured candidates by size and pick the largest model that keeps the floor.

    Sizes are ordered by parameters, then by the values of the size (an image size adds no parameters). Of several
    policies at the largest size the fastest wins, unless a simpler one is so close that the difference may be chance.
    Candidates of the same policy at the same size are repetitions, represented by the median throughput.

    Raises:
        FloorNotMetError: No size keeps the floor.
        NothingMeasuredError: The baseline that the floor is a share of was not measured.
    """
    floor = floor_rate(candidates, goal)
    if floor is None:
        raise _no_baseline(candidates, goal)
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        if is_measured(candidate):
            groups.setdefault((candidate.policy.key, size_words(candidate.model_size)), []).append(candidate)
    measured = [representative(group, lambda one: one.samples_per_second) for group in groups.values()]
    ranking = sorted(
        measured, key=lambda one: (keeps(one, goal, floor), *one.size_order, one.samples_per_second), reverse=True
    )
    able = [candidate for candidate in ranking if keeps(candidate, goal, floor)]
    if not able:
        raise _floor_not_met(ranking, goal, floor)
    repeats = repeat_noise([one.measured for one in group] for group in groups.values())
    fastest = able[0]

    def equals_fastest(one: Candidate) -> bool:
        lead = fastest.samples_per_second / one.samples_per_second - 1
        return one.size_order == fastest.size_order and lead <= noise_between(fastest.measured, one.measured, repeats)

    winner = min(filter(equals_fastest, able), key=simplicity)
    return Recommendation(
        winner=winner,
        baseline=next((one for one in ranking if one.role is Role.BASELINE), None),
        hand_tuned=next((one for one in ranking if one.role is Role.HAND_TUNED), None),
        ranking=tuple(ranking),
        not_measured=tuple(candidate for candidate in candidates if not is_measured(candidate)),
        tie=False,
        noise=max(SMALLEST_NOISE, repeats),
        repeats=repeats,
        growth=growth_of(candidates, winner, goal, floor),
    )


def _no_baseline(candidates: Sequence[Candidate], goal: Goal) -> NothingMeasuredError:
    lost = next((one for one in candidates if one.role is Role.BASELINE), None)
    ended = "was not measured" if lost is None else f"ended as {lost.outcome.value}"
    detail = f" ({lost.reason.rstrip('.')})" if lost is not None and lost.reason else ""
    reached = "your own settings reach" if goal.own_settings else "plain training reaches"
    return NothingMeasuredError(
        f"A floor such as 0.5x is a share of what {reached} at the model's own size, but that {ended}{detail}. State "
        "--min-throughput in samples per second instead."
    )


def _floor_not_met(ranking: Sequence[Candidate], goal: Goal, floor: float) -> TrialError:
    allowed = [one for one in ranking if why_not_eligible(one, goal) is None]
    if not allowed:
        return nothing_to_choose(ranking, (), goal)
    best = max(allowed, key=lambda one: one.samples_per_second)
    policy = best.policy
    batch = f"batch {policy.micro_batch * policy.accumulation_steps}" + (" of each" if policy.data_degree > 1 else "")
    return FloorNotMetError(
        f"At least one size must keep {format_rate(floor, Rounding.UP)} samples/s, but none does. The best reached is "
        f"{format_rate(best.samples_per_second, Rounding.DOWN)} samples/s, at {size_words(best.model_size)} with "
        f"{Combination.of(policy).words}, {batch}. Lower --min-throughput to that, list smaller values in SIZES, or "
        "allow more methods."
    )
