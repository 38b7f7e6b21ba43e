"""One result out of several: pure, on made-up measurements."""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.hardware.mesh import Mesh
from advisor.measure.fidelity import FidelityRecord
from advisor.measure.measurement import Measurement, SizePoint, Sizing, StopReason
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.ranks.merging import merged
from advisor.trial.result import FidelityResult, SizeResult, TimeResult, TrialResult
from tests.trial.test_growing_batches import size_point

PAIR = Policy(micro_batch=4, gpu_count=2)


def measured(seconds: float, peak: int, joules: float | None, losses: tuple[float, ...]) -> Measurement:
    return Measurement(
        micro_batch=4,
        accumulation_steps=1,
        step_seconds=seconds,
        step_seconds_low=seconds * 0.9,
        step_seconds_high=seconds * 1.1,
        timed_steps=5,
        stop_reason=StopReason.STEADY,
        samples_per_second=8 / seconds,
        tokens_per_second=None,
        memory=size_point(4, peak=peak, activations=peak // 2).memory,
        joules_per_step=joules,
        loss_trace=losses,
    )


def result(**changes: Any) -> TrialResult:
    """Result of a profiling run, or of a timed trial."""
    if "measurement" in changes:
        return TimeResult(key="of a rank", outcome=Outcome.OK, **changes)
    sizing = changes.pop("sizing", Sizing(points=(), out_of_memory_at=None, loss_trace=()))
    return SizeResult(key="of a rank", outcome=Outcome.OK, sizing=sizing, **changes)


def test_the_slowest_rank_gives_the_time_and_the_fullest_the_memory() -> None:
    fast_and_full = measured(1.0, 3000, 10.0, (2.0, 1.0))
    slow = measured(2.0, 1000, 5.0, (4.0, 2.0))
    whole = merged("key", [result(measurement=fast_and_full), result(measurement=slow)], PAIR)
    assert whole.key == "key"
    assert whole.measurement == msgspec.structs.replace(
        slow, memory=fast_and_full.memory, joules_per_step=15.0, loss_trace=(3.0, 1.5)
    )


def test_energy_that_one_rank_cannot_tell_is_unknown() -> None:
    whole = merged("key", [result(measurement=measured(1.0, 1, joules, (1.0,))) for joules in (1.0, None)], PAIR)
    assert whole.measurement is not None
    assert whole.measurement.joules_per_step is None


def test_notes_are_united_in_order() -> None:
    whole = merged("key", [result(notes=("a", "b")), result(notes=("b", "c"))], PAIR)
    assert whole.notes == ("a", "b", "c")


def sizing(points: list[SizePoint], out_of_memory_at: int | None, loss: float) -> Sizing:
    return Sizing(points=tuple(points), out_of_memory_at=out_of_memory_at, loss_trace=(loss,))


def test_ranks_settled_on_the_same() -> None:
    ranks = [msgspec.structs.replace(sizing([], None, 1.0), settled={"a": "b"}) for _ in range(2)]
    whole = merged("key", [result(sizing=rank) for rank in ranks], PAIR).sizing
    assert whole is not None
    assert whole.settled == {"a": "b"}


def test_points_of_a_sizing_are_merged_one_by_one_as_far_as_all_ranks_came() -> None:
    first = sizing(
        [
            size_point(2, peak=100, activations=10, step_seconds=2.0),
            size_point(4, peak=200, activations=20, step_seconds=3.0),
            size_point(8, peak=400, activations=40, step_seconds=9.0),
        ],
        None,
        1.0,
    )
    second = sizing(
        [
            size_point(2, peak=150, activations=15, step_seconds=1.0),
            size_point(4, peak=170, activations=17, step_seconds=4.0),
        ],
        8,
        2.0,
    )
    whole = merged("key", [result(sizing=first), result(sizing=second)], PAIR).sizing
    assert whole is not None
    assert [point.micro_batch for point in whole.points] == [2, 4]
    assert [point.memory.peak_bytes for point in whole.points] == [150, 200]
    assert [point.step_seconds for point in whole.points] == [2.0, 4.0]
    assert whole.out_of_memory_at == 8
    assert whole.loss_trace == (1.5,)


def test_losses_of_some_shares_of_a_batch_are_none() -> None:
    """Trap: beside plain training, whose losses are of the whole batch, a share's would look like a broken training."""
    reported = [result(sizing=sizing([], 8, 1.0))]
    for policy, losses in (
        (PAIR, ()),
        (Policy(micro_batch=4, gpu_count=4, mesh=Mesh(pipeline=2)), ()),
        (Policy(micro_batch=4, gpu_count=2, mesh=Mesh(pipeline=2)), (1.0,)),  # every stage hears of the whole loss
    ):
        whole = merged("key", reported, policy).sizing
        assert whole is not None
        assert whole.loss_trace == losses


def test_what_each_stage_of_a_pipeline_changes_is_known_of_the_whole() -> None:
    """A module after the blocks is there on every rank, and called on the last."""
    states = ({"block": 2.0, "head": 0.0, "before": 1.0}, {"other block": 3.0, "head": 4.0, "before": 5.0})
    ranks = [
        FidelityResult(
            key="of a rank",
            outcome=Outcome.OK,
            fidelity=FidelityRecord(losses=(1.0,), distinct_batches=1, state=states[number // 2]),
        )
        for number in range(4)
    ]
    whole = merged("key", ranks, Policy(micro_batch=4, gpu_count=4, mesh=Mesh(pipeline=2)))
    assert whole.fidelity is not None
    assert whole.fidelity.state == {"block": 2.0, "head": 4.0, "before": 1.0, "other block": 3.0}
    copies = merged("key", ranks, Policy(micro_batch=4, gpu_count=4))
    assert copies.fidelity is not None
    assert copies.fidelity.state == states[0]
