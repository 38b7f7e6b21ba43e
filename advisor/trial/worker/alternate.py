"""Alternate a trial's steps with another training in the partner process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from advisor.measure.in_turn import Speedup, TurnPlan, take_turns
from advisor.measure.timing import Agree, alone
from advisor.measure.typical import typical_seconds
from advisor.policy.policy import Policy
from advisor.trial.result import Pace
from advisor.trial.spec import ComparedSpec, ConfirmTrial, SizeTrial, TimeTrial
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.partner import Answer, NoPartnerError

__all__ = ["gain_in_turn", "load_partner", "speedup_in_turn", "turn"]

_TURN_SECONDS = 0.25
"""Each turn starts with the other training's data in the caches, so it takes many steps, or one long one."""

_MOST_STEPS = 200
"""In one turn."""

_SHARE_OF_OTHER = 0.5
"""Of the other's step that a turn takes at least."""


def load_partner(bench: Bench[ConfirmTrial]) -> None:
    """Build the other training while the trial builds its own; a missing partner is noticed later."""
    beside = bench.spec.beside
    if bench.partner is not None and beside is not None and _has_share(bench, beside):
        bench.partner.load(_others_share(bench.spec, beside))


def _others_share(spec: ComparedSpec, beside: Policy) -> ComparedSpec:
    size = spec.beside_size if isinstance(spec, ConfirmTrial) else None
    return msgspec.structs.replace(spec, policy=beside, model_size=spec.model_size if size is None else size)


def _has_share(bench: Bench[Any], beside: Policy) -> bool:
    """Whether this process's partner trains too: every rank's, or the first one's alone on a single device."""
    assert beside.gpu_count in (1, bench.world.size), f"{beside.gpu_count} of {bench.world.size} devices are no group"
    return bench.world.rank < beside.gpu_count


def speedup_in_turn(
    bench: Bench[SizeTrial] | Bench[TimeTrial] | Bench[ConfirmTrial],
    step: Callable[[], None],
    policy: Policy,
    beside: Policy,
    plan: TurnPlan,
) -> tuple[Speedup, list[float]] | None:
    """Alternate the trial's steps with those of another training.

    On several ranks each one's partner trains on the same device. All ranks take equally many steps, and decide by the
    clock of the first.

    Returns:
        The speedup, and the seconds of every step of the trial; ``None`` without a partner. If one was expected, the
        trial's notes say why.
    """
    world = bench.world
    if world.total(bench.partner is None):
        return None
    steps: list[float] = []
    others: list[float] = []
    faults: list[float] = []

    def own() -> float:
        # Where the other's single step takes longer than a turn, several of one's own cost little beside it.
        taken = turn(step, max(_TURN_SECONDS, _SHARE_OF_OTHER * min(others)), agree=world.agreed)
        steps.extend(taken)
        return world.agreed(typical_seconds(taken)) / policy.global_batch

    def other() -> float:
        its = _turn_of_other(bench, beside)
        others.append(world.agreed(its.step_seconds))
        if its.page_faults is not None:
            faults.append(its.page_faults)
        return others[-1] / beside.global_batch

    try:
        speedup = take_turns(own, other, plan, lambda: world.agreed(time.perf_counter()))
    except NoPartnerError as error:
        bench.notes.append(f"not compared in turn: {error}")
        return None
    bench.paces.append(
        Pace(
            policy=beside,
            samples_per_second=beside.global_batch / typical_seconds(others),
            page_faults=statistics.median(faults) if faults else None,
        )
    )
    return speedup, steps


def _turn_of_other(bench: Bench[Any], beside: Policy) -> Answer:
    """Let the other training step this rank's share of it, if it has one.

    Raises:
        NoPartnerError: On every rank, if it cannot step on one of them.
    """
    answer, failure = Answer(0), ""
    try:
        if _has_share(bench, beside):
            assert bench.partner is not None, "every rank has one"
            answer = bench.partner.turn(_others_share(bench.spec, beside), _TURN_SECONDS)
    except NoPartnerError as error:
        failure = str(error)
    if bench.world.total(bool(failure)):
        raise NoPartnerError(failure or "another rank's partner failed")
    return answer


def gain_in_turn(
    step: Callable[[], None],
    samples: int,
    other_step: Callable[[], None],
    other_samples: int,
    plan: TurnPlan,
    *,
    begun: Sequence[float] = (),
) -> tuple[Speedup, list[float]]:
    """Alternate steps of two kinds in this process; the first turn goes on from steps that have ``begun`` (seconds).

    Returns:
        How many times as many samples per second the first kind processes, and the seconds of each of its steps.
    """
    steps: list[float] = []

    def larger() -> float:
        taken = turn(step, _TURN_SECONDS, begun=() if steps else begun)
        steps.extend(taken)
        return typical_seconds(taken) / samples

    def smaller() -> float:
        return typical_seconds(turn(other_step, _TURN_SECONDS)) / other_samples

    # The first kind begins and ends, so that what it has begun with is not lost.
    return take_turns(smaller, larger, plan, time.perf_counter).inverse, steps


def turn(
    step: Callable[[], None], enough_seconds: float, *, begun: Sequence[float] = (), agree: Agree = alone
) -> list[float]:
    """Take steps for some seconds, at least one; return the seconds of each, after those that were ``begun``."""
    taken = list(begun)
    while not taken or agree(sum(taken) < enough_seconds and len(taken) < _MOST_STEPS):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return taken
