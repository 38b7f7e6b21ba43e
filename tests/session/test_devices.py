"""``--gpus`` against what is there."""

from __future__ import annotations

import msgspec
import pytest

from advisor.errors import OptionError
from advisor.goal import Floor, GoalKind
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import choose_devices
from advisor.session.setup.several_nodes import nodes_from
from advisor.trial.nodes import Nodes
from advisor.workload.workload import WorkloadKind, WorkloadSource

GIB = 2**30
SOURCE = WorkloadSource(kind=WorkloadKind.FILE, location="/m.py", name="m", fingerprint="f")
CPU = Hardware(
    kind=DeviceKind.CPU,
    device="cpu",
    name="a CPU",
    memory_bytes=16 * GIB,
    free_bytes=12 * GIB,
    host_memory_bytes=16 * GIB,
    host_free_bytes=12 * GIB,
    host_cores=2,
)
FOUR_GPUS = tuple(
    msgspec.structs.replace(
        CPU, kind=DeviceKind.CUDA, device=f"cuda:{index}", name="NVIDIA H100", device_count=4, free_bytes=free * GIB
    )
    for index, free in enumerate((70, 70, 30, 70))
)


def request(*gpus: int, goal: GoalKind = GoalKind.FASTER) -> TuneRequest:
    floor = Floor(samples_per_second=1.0) if goal is GoalKind.BIGGER else None
    return TuneRequest(source=SOURCE, goal=goal, gpu_counts=gpus or None, floor=floor)


def test_one_device_unless_asked_otherwise() -> None:
    for goal in (GoalKind.FASTER, GoalKind.BIGGER):
        assert choose_devices(request(goal=goal), FOUR_GPUS[0], FOUR_GPUS).counts == (1,)
    assert choose_devices(request(goal=GoalKind.CHEAPEST), CPU, (CPU,)).counts == (1,)


def test_cheapest_tries_every_power_of_two_of_the_gpus_there_are() -> None:
    assert choose_devices(request(goal=GoalKind.CHEAPEST), FOUR_GPUS[0], FOUR_GPUS).counts == (1, 2, 4)
    three = msgspec.structs.replace(FOUR_GPUS[0], device_count=3)
    assert choose_devices(request(goal=GoalKind.CHEAPEST), three, FOUR_GPUS[:3]).counts == (1, 2)


def test_more_gpus_than_exist_are_an_error_that_says_how_many_do() -> None:
    with pytest.raises(OptionError, match=r"at most the number of visible GPUs, 4, but got 8\..*CUDA_VISIBLE_DEVICES"):
        choose_devices(request(2, 8), FOUR_GPUS[0], FOUR_GPUS)


def test_several_gpus_begin_at_the_first() -> None:
    with pytest.raises(OptionError, match="--device is cuda:1"):
        choose_devices(request(2), FOUR_GPUS[1], FOUR_GPUS)
    assert choose_devices(request(1), FOUR_GPUS[1], FOUR_GPUS).counts == (1,)


def test_the_fullest_gpu_that_takes_part_bounds_the_memory() -> None:
    assert choose_devices(request(1, 2), FOUR_GPUS[0], FOUR_GPUS).hardware.free_bytes == 70 * GIB
    assert choose_devices(request(4), FOUR_GPUS[0], FOUR_GPUS).hardware.free_bytes == 30 * GIB


def test_gpus_that_differ_are_told() -> None:
    mixed = (FOUR_GPUS[0], msgspec.structs.replace(FOUR_GPUS[1], name="NVIDIA A100"))
    assert choose_devices(request(2), FOUR_GPUS[0], mixed).notes == (
        "the GPUs differ (NVIDIA A100, NVIDIA H100): the slowest sets the pace of all",
    )


def test_a_gpu_that_is_named_is_meant_alone() -> None:
    assert choose_devices(request(goal=GoalKind.CHEAPEST), FOUR_GPUS[1], FOUR_GPUS).counts == (1,)


def test_absurdly_many_ranks_on_a_cpu_are_refused() -> None:
    assert choose_devices(request(8), CPU, (CPU,)).counts == (8,)
    with pytest.raises(OptionError, match=r"4 ranks for each of its 2 cores, 8 in all, but got 1000\. Name fewer"):
        choose_devices(request(1000), CPU, (CPU,))


def test_ranks_on_a_cpu_may_be_a_few_for_each_core_and_more_than_the_cores_is_told() -> None:
    assert choose_devices(request(1, 2), CPU, (CPU,)).notes == ()
    crowded = choose_devices(request(4), CPU, (CPU,))
    assert crowded.counts == (4,)
    assert crowded.notes[0].startswith("4 ranks share 2 CPU cores")


class TestSeveralMachines:
    def two(self, *gpus: int) -> TuneRequest:
        nodes = Nodes(count=2, endpoint="first:29400")
        return TuneRequest(source=SOURCE, gpu_counts=gpus, nodes=nodes)

    def test_the_gpus_of_all_machines_count(self) -> None:
        assert choose_devices(self.two(1, 8), FOUR_GPUS[0], FOUR_GPUS).counts == (1, 8)
        with pytest.raises(OptionError, match="at most the number of visible GPUs, 8, but got 10"):
            choose_devices(self.two(10), FOUR_GPUS[0], FOUR_GPUS)

    @pytest.mark.parametrize("goal", [GoalKind.FASTER, GoalKind.CHEAPEST])
    def test_without_numbers_it_is_one_device_and_then_an_equal_share_of_every_machine(self, goal: GoalKind) -> None:
        asked = msgspec.structs.replace(self.two(), goal=goal, gpu_counts=None)
        assert choose_devices(asked, FOUR_GPUS[0], FOUR_GPUS).counts == (1, 2, 4, 8)
        one = msgspec.structs.replace(FOUR_GPUS[0], device_count=1)
        assert choose_devices(asked, one, (one,)).counts == (1, 2)
        assert choose_devices(asked, CPU, (CPU,)).counts == (1, 2)
        three = msgspec.structs.replace(asked, nodes=Nodes(count=3, endpoint="first:29400"))
        assert choose_devices(three, FOUR_GPUS[0], FOUR_GPUS).counts == (1, 3, 6, 12)

    @pytest.mark.parametrize("gpus", [(3,), (1, 2, 5), (1,)])
    def test_every_machine_has_an_equal_share(self, gpus: tuple[int, ...]) -> None:
        with pytest.raises(OptionError, match="--gpus must be multiples of 2, such as 2 or 4"):
            choose_devices(self.two(*gpus), FOUR_GPUS[0], FOUR_GPUS)

    @pytest.mark.parametrize(
        ("count", "endpoint", "rank", "message"),
        [
            (0, None, None, "--nnodes must be at least 1, but got 0"),
            (2, None, None, "need --rdzv-endpoint HOST:PORT"),
            (2, "first", None, "need --rdzv-endpoint HOST:PORT.*'first'"),
            (2, "first:99999", None, "need --rdzv-endpoint HOST:PORT"),
            (2, "first:²", None, "need --rdzv-endpoint HOST:PORT"),
            (2, "first:29400", 2, "--node-rank must be from 0 .* to 1, but got 2"),
            (2, None, None, "can reach it, but none is given"),
            (None, "first:29400", None, "--rdzv-endpoint needs --nnodes, .* but got 'first:29400' alone"),
            (None, None, 1, "--node-rank must be from 0 .* to 0, but got 1"),
        ],
    )
    def test_what_is_missing_or_wrong_is_said(
        self, count: int | None, endpoint: str | None, rank: int | None, message: str
    ) -> None:
        with pytest.raises(OptionError, match=message):
            nodes_from(count, endpoint, rank)

    def test_one_machine_needs_nothing(self) -> None:
        assert nodes_from(None, None, None) == Nodes()
        assert nodes_from(2, "first:29400", 1) == Nodes(count=2, endpoint="first:29400", rank=1)
