"""An answer of momadvise, as whoever calls :func:`advisor.tune` has it: the program behind a contender of ``advice``.

It is a process of its own because its time limit is no end: what runs at that moment comes to one, and the winner is
confirmed. The minutes of a call are an end, and with them a process can be ended.
"""

from __future__ import annotations

import msgspec

import advisor
from advisor.policy.policy import Policy
from benchmarks.papers.child import answer

__all__ = ["AdviceRequest", "Advised", "advised"]


class AdviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of :func:`advisor.tune` under the names that they have there; it is asked about one device.

    Attributes:
        model: File of the model.
        goal: What is asked for.
        device: torch's name of it.
        memory_limit: The most a training may take, in bytes; ``None`` for what is free.
        search_space: The search space.
        trials: Most policies.
        time_limit: Seconds after which nothing new is tried.
        global_batch: Samples per optimizer step, where that must stay.
        price: Of the device, where the cost is asked for.
        min_throughput: What a larger model must keep.
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
    """What it answers.

    Attributes:
        policy: The winner's; ``None`` if there is none.
        model_size: The winner's arguments of ``build_model`` and ``make_batch``.
        trials: Policies that were measured.
        tried: Label and micro-batch of each of them, and the samples per second that it had.
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
    except Exception as error:  # Its own failures too: they are an answer like any other, and no end of the table.
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
