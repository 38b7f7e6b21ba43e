"""What others take of the cores and GPUs is known from counters, in a container too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.hardware.contention import Load, Moment, cores_taken, moment, other_load
from advisor.hardware.host import group_seconds
from tests.hardware.fake_nvml import FakeGpu, FakeNvml
from tests.methods.tiny import cpu, gpu

START = Moment(clock=0.0, working=100.0, counted=500.0, own=10.0)


def later(**changes: float) -> Moment:
    """A second later, on a machine that counts."""
    return START._replace(clock=1.0, counted=508.0, **changes)


@pytest.mark.parametrize(
    ("worked", "own", "affinity", "cores", "taken"),
    [
        (0.0, 0.0, 8, 8, 0.0),
        (3.0, 1.0, 8, 8, 2.0),
        (1.0, 1.0, 8, 8, 0.0),
        (4.0, 0.0, 8, 2, 0.0),
        (7.5, 0.0, 8, 2, 1.5),
        (9.0, 0.0, 8, 8, 8.0),
    ],
    ids=["idle", "others", "our own work", "cores beside a quota", "others beyond it", "never more than there are"],
)
def test_what_others_take_is_all_work_but_our_own_as_far_as_it_meets_what_we_may_use(
    worked: float, own: float, affinity: int, cores: int, taken: float
) -> None:
    after = later(working=100.0 + worked, own=10.0 + own)
    assert cores_taken(START, after, affinity=affinity, cores=cores) == pytest.approx(taken)


def test_others_in_the_control_group_of_a_quota_take_of_it_however_many_cores_are_free() -> None:
    before = START._replace(group=50.0)
    after = later(working=101.5, own=10.5, group=51.5)
    assert cores_taken(before, after, affinity=64, cores=2) == pytest.approx(1.0)


def test_where_the_kernel_counts_nothing_the_pressure_on_cores_tells() -> None:
    after = START._replace(clock=2.0, waited=1.0)
    assert cores_taken(START, after, affinity=4, cores=4) == pytest.approx(2.0)
    assert cores_taken(START, START._replace(clock=2.0), affinity=4, cores=4) == 0.0


def test_pressure_is_read_where_the_kernel_has_it(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    file.write_text("some avg10=28.85 avg60=17.82 avg300=32.41 total=2500000\nfull avg10=0.00 total=1\n")
    assert moment(file).waited == 2.5
    assert moment(tmp_path / "missing").waited == 0.0


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "a/cpu.stat": "usage_usec 1500000\n"}, 1.5),
        ({"a/b/cpu.max": "max 100000"}, None),
        ({"cpu/a/b/cpu.cfs_quota_us": "50000", "cpu/a/b/cpuacct.usage": "2500000000"}, 2.5),
        ({"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpuacct.usage": "2500000000"}, None),
    ],
    ids=["the group above has a quota", "no quota", "version 1", "version 1 without a quota"],
)
def test_only_a_control_group_with_a_quota_is_counted(
    files: dict[str, str], seconds: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    groups = tmp_path / "groups"
    groups.write_text("1:cpu:/a/b\n0::/a/b\n")
    assert group_seconds(tmp_path, groups) == seconds


def test_this_process_and_its_children_are_no_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as own:
        others = {pid for pid, _ in moment().processes}
        own.communicate()
    assert not {os.getpid(), own.pid} & others


def test_a_gpu_that_others_use_is_not_idle_and_one_that_does_not_tell_is_left_out() -> None:
    nvml = FakeNvml([FakeGpu("GPU-a", used_percent=85), FakeGpu("GPU-b", used_percent=3), FakeGpu("GPU-c")])
    load = other_load(gpu((9, 0)), devices=3, seconds=0.0, nvml=nvml)
    assert load.gpus == {"GPU 0": 0.85, "GPU 1": 0.03}
    assert nvml.open == 0
    quiet = load._replace(busy_cores=0.0)
    assert not quiet.is_idle
    assert quiet.words == "GPU 0 is 85% busy"
    assert other_load(gpu((9, 0)), seconds=0.0, nvml=nvml).gpus == {"GPU 0": 0.85}
    assert other_load(cpu(), seconds=0.0).gpus == {}


@pytest.mark.parametrize(
    ("busy", "cores", "idle"), [(0.2, 2, True), (0.3, 2, False), (6.0, 64, True), (7.0, 64, False)]
)
def test_a_machine_is_idle_but_for_the_work_of_the_system(busy: float, cores: int, idle: bool) -> None:
    assert Load(busy, cores).is_idle is idle


def test_the_words_say_what_is_busy_and_by_whom() -> None:
    load = Load(1.9, 2, {"GPU 1": 0.5}, ("cc1plus 98%", "python 60%"))
    assert load.words == "other processes keep 1.9 of 2 cores busy (cc1plus 98%, python 60%); GPU 1 is 50% busy"
    assert Load(0.9, 1, {}, ()).words == "other processes keep 0.9 of 1 core busy"
