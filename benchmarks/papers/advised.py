"""The program behind the momadvise contender of ``advice``: calls :func:`advisor.tune` as a user would.

It is a process of its own because momadvise's time limit is not a hard one: the current trial finishes and the winner
is confirmed. The minutes of a call are a hard limit, and a process can be ended.
"""

from __future__ import annotations

import msgspec

import advisor
from advisor.policy.policy import Policy
from benchmarks.papers.child import answer

__all__ = ["AdviceRequest", "Advised", "advised"]


class AdviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of :func:`advisor.tune`, under the same names; for one device.

    Attributes:
        model: File of the model.
        goal: The goal.
        device: torch's name of it.
        memory_limit: Most bytes that a training may use; ``None`` for what is free.
        search_space: The search space.
        trials: Most policies.
        time_limit: Seconds after which nothing new is tried.
        global_batch: Samples per optimizer step, if they are fixed.
        price: Price of the device, if cost is the goal.
        min_throughput: The throughput that a larger model must keep.
        output: Folder of the study.
    """

    model: str
    goal: str
    device: str
    memory_limit: int | None
    search_space: str
    trials: int
    time_limit: float
    global_batch: int | None
    price: float | None
    min_throughput: str | None
    output: str


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        policy: The winner's; ``None`` if there is none.
        model_size: The winner's arguments of ``build_model`` and ``make_batch``.
        trials: Number of policies that were measured.
        tried: Their labels, micro-batches and samples per second.
        reason: Why there is no winner.
    """

    policy: Policy | None = None
    model_size: dict[str, int | float] = {}
    trials: int = 0
    tried: list[tuple[str, int, float]] = []
    reason: str = ""


def advised(request: AdviceRequest) -> Advised:
    """Tune."""
    try:
        found = advisor.tune(**msgspec.structs.asdict(request), gpus=1)
    except Exception as error:  # Its own failures too: they are answers and must not end the table.
        return Advised(reason=f"{type(error).__name__}: {error}")
    winner = found.recommendation.winner
    tried = [
        (one.policy.label, one.policy.micro_batch, one.measurement.samples_per_second)
        for one in found.recommendation.ranking
        if one.measurement is not None
    ]
    return Advised(policy=winner.policy, model_size=dict(winner.model_size), trials=found.trials, tried=tried)


if __name__ == "__main__":
    answer(AdviceRequest, advised)
