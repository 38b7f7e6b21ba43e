"""Finding devices: NVML's view in CUDA's numbering, the host's memory under its container's limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from advisor.errors import HardwareError
from advisor.hardware import cuda_driver, detect, gpus
from advisor.hardware.cuda_driver import Gpu, GpuList, ask_driver
from advisor.hardware.detect import SIMULATED, choose_device, detect_hardware, list_devices
from advisor.hardware.hardware import DeviceKind
from advisor.hardware.host import cpu_name, host_cores, host_memory
from advisor.hardware.torch_build import cuda_version_of_torch
from advisor.policy.fingerprints import hardware_differences, hardware_facts
from tests.hardware.fake_nvml import GIB, FakeGpu, FakeNvml

ALL: dict[str, str] = {}
NOTHING = FakeNvml(None)


def two() -> FakeNvml:
    return FakeNvml([FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-bbbb-2", name="NVIDIA L4", total=24 * GIB, free=20 * GIB)])


@pytest.fixture
def _torch_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "cuda_version_of_torch", lambda: ("13.0", "torch 2.13.0 is built for CUDA 13.0"))


@pytest.fixture
def _torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "cuda_version_of_torch", lambda: (None, "torch 2.13.0+cpu is built without CUDA"))


def visible(nvml: FakeNvml, value: str) -> list[str]:
    found = gpus.list_gpus(nvml, {"CUDA_VISIBLE_DEVICES": value})
    assert [gpu.index for gpu in found.gpus] == list(range(len(found.gpus)))
    assert bool(found.reason) == (not found.gpus)
    return [gpu.uuid for gpu in found.gpus]


@pytest.mark.usefixtures("_torch_with_cuda")
def test_the_first_gpu_is_taken_when_torch_can_use_it() -> None:
    hardware = detect_hardware(None, nvml=two(), environment=ALL)
    assert (hardware.kind, hardware.device) == (DeviceKind.CUDA, "cuda:0")
    assert hardware.name == "NVIDIA H100 80GB HBM3"
    assert (hardware.memory_bytes, hardware.free_bytes, hardware.held_bytes) == (80 * GIB, 79 * GIB, 0)
    assert (hardware.device_count, hardware.compute_capability, hardware.driver_version) == (2, (9, 0), "580.65")
    assert hardware.profile == "h100_80gb_sxm"
    assert hardware.host_cores >= 1
    assert hardware.host_memory_bytes > hardware.host_free_bytes > 0


@pytest.mark.usefixtures("_torch_with_cuda")
@pytest.mark.parametrize(("said", "simulated"), [("1", True), ("gem5", True), ("0", False), ("", False)])
def test_what_emulates_gpus_says_so_and_they_are_another_kind_of_device(said: str, simulated: bool) -> None:
    environment = {SIMULATED: said}
    gpu, _, cpu = list_devices(nvml=two(), environment=environment)
    found = detect_hardware("cuda", nvml=two(), environment=environment)
    assert gpu == msgspec.structs.replace(found, host_free_bytes=gpu.host_free_bytes)
    assert (gpu.simulated, cpu.simulated) == (simulated, False)
    assert (gpu.name, gpu.profile) == ("NVIDIA H100 80GB HBM3", "h100_80gb_sxm"), "what it stands for"
    assert gpu.title == f"{gpu.name}{' (simulated)' if simulated else ''}"
    real = hardware_facts(detect_hardware("cuda", nvml=two(), environment=ALL))
    differences = [one.words for one in hardware_differences(hardware_facts(gpu), real)]
    assert differences == (["device: a simulated one -> a real one"] if simulated else [])
    assert hardware_differences(real, real) == []


@pytest.mark.usefixtures("_torch_with_cuda")
def test_a_gpu_is_chosen_by_number() -> None:
    hardware = detect_hardware("cuda:1", nvml=two(), environment=ALL)
    assert (hardware.device, hardware.name, hardware.profile) == ("cuda:1", "NVIDIA L4", "l4")
    assert detect_hardware("cuda", nvml=two(), environment=ALL).device == "cuda:0"


@pytest.mark.usefixtures("_torch_with_cuda")
def test_a_driver_that_is_too_old_for_torch_means_the_cpu() -> None:
    old = FakeNvml([FakeGpu("GPU-aaaa-1")], cuda_version=12040)
    choice = choose_device(nvml=old, environment=ALL)
    assert choice.device == "cpu"
    assert choice.reason.endswith(
        "torch 2.13.0 is built for CUDA 13.0, and the driver (580.65) is for CUDA 12.4 at most"
    )
    with pytest.raises(HardwareError, match=r"Update the driver, or install a torch that is built for CUDA 12, or use"):
        detect_hardware("cuda", nvml=old, environment=ALL)


@pytest.mark.usefixtures("_torch_with_cuda")
@pytest.mark.parametrize("version", [13000, 13020, 14000, None])
def test_any_driver_of_torchs_cuda_or_a_newer_one_will_do(version: int | None) -> None:
    nvml = FakeNvml([FakeGpu("GPU-aaaa-1")], cuda_version=version)
    assert detect_hardware("cuda", nvml=nvml, environment=ALL).device == "cuda:0"


BUILD = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100a", "sm_120", "compute_120")


@pytest.mark.usefixtures("_torch_with_cuda")
@pytest.mark.parametrize(
    ("capability", "usable"),
    [
        ((7, 0), False),
        ((7, 5), True),
        ((8, 9), True),
        ((10, 0), True),
        ((10, 3), False),
        ((12, 1), True),
        ((13, 0), True),
    ],
)
def test_torch_needs_kernels_for_the_gpu(
    capability: tuple[int, int], usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "architectures_of_torch", lambda: BUILD)
    nvml = FakeNvml([FakeGpu("GPU-aaaa-1", capability=capability)])
    assert choose_device(nvml=nvml, environment=ALL).device == ("cuda:0" if usable else "cpu")
    if not usable:
        with pytest.raises(HardwareError, match=r"no kernels for the NVIDIA H100.*it has sm_75.*Install a torch.*CUDA"):
            detect_hardware("cuda", nvml=nvml, environment=ALL)


@pytest.mark.usefixtures("_torch_with_cuda")
def test_the_first_gpu_that_torch_can_use_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "architectures_of_torch", lambda: BUILD)
    nvml = FakeNvml([FakeGpu("GPU-aaaa-1", capability=(7, 0)), FakeGpu("GPU-bbbb-2")])
    choice = choose_device(nvml=nvml, environment=ALL)
    assert choice.device == "cuda:1"
    assert choice.reason.startswith("the first that torch can use of 2 visible GPU(s)")


@pytest.mark.usefixtures("_torch_with_cuda")
def test_a_gpu_without_memory_of_its_own_has_the_hosts() -> None:
    hardware = detect_hardware("cuda", nvml=FakeNvml([FakeGpu("GPU-aaaa-1", integrated=True)]), environment=ALL)
    assert hardware.memory_bytes == hardware.host_memory_bytes
    assert 0 < hardware.free_bytes < hardware.memory_bytes


def told(*gpus_: FakeGpu) -> GpuList:
    return GpuList(
        cuda_version=(13, 0),
        gpus=tuple(
            Gpu(
                index=index,
                uuid=gpu.uuid,
                name=gpu.name,
                memory_bytes=gpu.total,
                free_bytes=gpu.free,
                compute_capability=(9, 0),
            )
            for index, gpu in enumerate(gpus_)
        ),
    )


def test_unequal_gpus_have_cudas_order() -> None:
    """Traps: NVML's is that of the PCI bus, CUDA's has the fastest first; and they name the same device differently."""
    nvml = two()
    assert nvml.gpus is not None
    cudas = told(FakeGpu("GPU-bbbb-2"), FakeGpu("MIG-aaaa-1"))
    found = gpus.list_gpus(nvml, ALL, lambda environment: cudas).gpus
    assert [(gpu.index, gpu.name) for gpu in found] == [(0, "NVIDIA L4"), (1, "NVIDIA H100 80GB HBM3")]
    by_bus = gpus.list_gpus(nvml, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, lambda environment: cudas).gpus
    assert [gpu.name for gpu in by_bus] == ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]


def test_equal_gpus_need_no_look_at_the_driver() -> None:
    def driver(environment: object) -> GpuList:
        raise AssertionError("NVML knows")

    assert len(gpus.list_gpus(FakeNvml([FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-bbbb-2")]), ALL, driver).gpus) == 2


def test_without_nvml_the_driver_tells() -> None:
    found = gpus.list_gpus(NOTHING, ALL, lambda environment: told(FakeGpu("GPU-aaaa-1")))
    (gpu,) = found.gpus
    assert (gpu.uuid, gpu.memory_bytes, gpu.free_bytes, gpu.held_bytes) == ("GPU-aaaa-1", 80 * GIB, 79 * GIB, 0)
    assert (gpu.compute_capability, found.cuda_version) == ((9, 0), (13, 0))


@pytest.mark.skipif("SOFTWARE_GPUS" in os.environ, reason="there is a driver")
def test_a_machine_without_a_driver_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_SCRIPT", "raise AssertionError")
    assert ask_driver({"CUDA_VISIBLE_DEVICES": "none but this test's"}) is None


@pytest.mark.usefixtures("_torch_without_cuda")
def test_a_torch_without_cuda_means_the_cpu_and_the_reason_is_told() -> None:
    assert detect_hardware(None, nvml=two(), environment=ALL).device == "cpu"
    choice = choose_device(nvml=two(), environment=ALL)
    assert choice.device == "cpu"
    assert choice.reason == "there is a NVIDIA H100 80GB HBM3, but torch 2.13.0+cpu is built without CUDA"
    with pytest.raises(HardwareError, match="built without CUDA"):
        detect_hardware("cuda", nvml=two(), environment=ALL)


def test_without_a_gpu_the_cpu_is_taken_and_asking_for_one_is_an_error() -> None:
    assert detect_hardware(None, nvml=NOTHING, environment=ALL).kind is DeviceKind.CPU
    with pytest.raises(HardwareError, match=r"cuda needs a GPU, but NVML.*Library Not Found.*--device cpu"):
        detect_hardware("cuda", nvml=NOTHING, environment=ALL)
    assert [item.device for item in list_devices(nvml=NOTHING, environment=ALL)] == ["cpu"]


@pytest.mark.usefixtures("_torch_with_cuda")
def test_a_gpu_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(HardwareError) as caught:
        detect_hardware("cuda:3", nvml=two(), environment=ALL)
    assert "cuda:0 (NVIDIA H100 80GB HBM3), cuda:1 (NVIDIA L4)" in str(caught.value)
    assert "'cuda:3'" in str(caught.value)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "mps"])
def test_an_unknown_device_name_lists_what_was_found(name: str) -> None:
    with pytest.raises(HardwareError, match=r"must be cpu, cuda or cuda:N.*Found: cuda:0.*cuda:1.*cpu"):
        detect_hardware(name, nvml=two(), environment=ALL)


def test_visible_devices_are_renumbered_as_cuda_does() -> None:
    assert visible(two(), "1,0") == ["GPU-bbbb-2", "GPU-aaaa-1"]
    assert visible(two(), "1") == ["GPU-bbbb-2"]
    assert visible(two(), "GPU-bbbb-2") == ["GPU-bbbb-2"]
    assert visible(two(), "GPU-bb") == ["GPU-bbbb-2"]
    assert visible(two(), " 1 , GPU-aaaa ") == ["GPU-bbbb-2", "GPU-aaaa-1"]
    assert visible(two(), "1st,+0") == ["GPU-bbbb-2", "GPU-aaaa-1"]  # numbers are read as C reads them


def test_visible_devices_end_at_the_first_that_does_not_exist() -> None:
    assert visible(two(), "1,7,0") == ["GPU-bbbb-2"]
    assert visible(two(), "-1") == []
    assert visible(two(), "") == []
    assert visible(two(), "NoDevFiles") == []
    assert visible(two(), "GPU-") == []  # an abbreviation must be unique
    assert visible(two(), "0,0") == []  # named twice: CUDA shows none


def test_hidden_gpus_are_given_as_the_reason() -> None:
    with pytest.raises(HardwareError, match=r"CUDA_VISIBLE_DEVICES='' hides every GPU of this machine \(2 installed\)"):
        detect_hardware("cuda", nvml=two(), environment={"CUDA_VISIBLE_DEVICES": ""})


def with_mig() -> FakeNvml:
    slices = [
        None,
        FakeGpu("MIG-1111", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", total=10 * GIB, free=9 * GIB),
        FakeGpu("MIG-2222", name="NVIDIA H100 80GB HBM3 MIG 2g.20gb", total=20 * GIB, free=19 * GIB),
    ]
    return FakeNvml([FakeGpu("GPU-aaaa-1", mig=True, instances=slices)])


def test_a_mig_instance_is_shown_as_what_it_is() -> None:
    (gpu, cpu) = list_devices(nvml=with_mig(), environment=ALL)
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * GIB)
    assert gpu.compute_capability == (9, 0)
    assert gpu.profile is None, "a slice does not have the whole device's figures"
    assert cpu.device == "cpu"


def test_a_mig_instance_is_chosen_by_its_name() -> None:
    assert visible(with_mig(), "MIG-2222") == ["MIG-2222"]


def test_cudas_driver_tells_which_instances_it_shows() -> None:
    """How many that are depends on its version, and NVML does not know."""
    cudas = told(FakeGpu("GPU-2222"), FakeGpu("GPU-1111"))
    found = gpus.list_gpus(with_mig(), {"CUDA_VISIBLE_DEVICES": "MIG-2222,MIG-1111"}, lambda environment: cudas)
    assert [gpu.uuid for gpu in found.gpus] == ["MIG-2222", "MIG-1111"]


def test_mig_mode_without_an_instance_leaves_no_gpu() -> None:
    found = gpus.list_gpus(FakeNvml([FakeGpu("GPU-aaaa-1", mig=True)]), ALL)
    assert found.gpus == ()
    assert "MIG mode without an instance" in found.reason


def test_memory_that_this_process_holds_is_counted_and_that_of_others_is_not() -> None:
    processes: dict[int, int | None] = {os.getpid(): 3 * GIB, os.getpid() + 1: 5 * GIB}
    (gpu,) = gpus.list_gpus(FakeNvml([FakeGpu("GPU-aaaa-1", processes=processes)]), ALL).gpus
    assert gpu.held_bytes == 3 * GIB
    (gpu,) = gpus.list_gpus(FakeNvml([FakeGpu("GPU-aaaa-1", processes={os.getpid(): None})]), ALL).gpus
    assert gpu.held_bytes == 0


def test_nvml_is_closed_again() -> None:
    nvml = two()
    gpus.list_gpus(nvml, ALL)
    assert nvml.open == 0


def test_the_cpu_counts_what_this_process_holds_only_when_it_uses_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())  # type: ignore[arg-type]
    held = detect_hardware("cpu").held_bytes
    assert held == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    monkeypatch.delitem(sys.modules, "torch")
    hardware = detect_hardware("cpu")
    assert hardware.held_bytes == 0
    assert hardware.name
    assert hardware.free_bytes <= hardware.memory_bytes == hardware.host_memory_bytes


def kernel(folder: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    process = folder / "self-cgroup"
    process.write_text(groups)
    mount = folder / "cgroup"
    mount.mkdir()
    for name, content in files.items():
        path = mount / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return mount, process


MIB = 2**20


def test_a_container_limit_of_version_2_lowers_memory_and_cores(tmp_path: Path) -> None:
    files = {
        "box/memory.max": f"{64 * MIB}\n",
        "box/memory.current": f"{40 * MIB}\n",
        "box/memory.stat": f"anon 1\ninactive_file {10 * MIB}\n",
        "box/job/memory.max": "max\n",
        "box/cpu.max": "max 100000\n",
        "box/job/cpu.max": "100000 100000\n",
    }
    groups = kernel(tmp_path, "0::/box/job\n", files)
    memory = host_memory(*groups)
    assert memory.total_bytes == 64 * MIB, "the limit of a group above holds"
    assert memory.free_bytes == 34 * MIB, "the cache that the kernel gives back is free"
    assert host_cores(*groups) == 1


def test_a_container_limit_of_version_1_lowers_memory_and_cores(tmp_path: Path) -> None:
    files = {
        "memory/box/memory.limit_in_bytes": str(64 * MIB),
        "memory/box/memory.usage_in_bytes": str(40 * MIB),
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "cpu,cpuacct/box/cpu.cfs_quota_us": "150000",
        "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
    }
    groups = kernel(tmp_path, "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n", files)
    memory = host_memory(*groups)
    assert (memory.total_bytes, memory.free_bytes) == (64 * MIB, 24 * MIB)
    assert host_cores(*groups) == 1


def test_without_limits_it_is_the_machine(tmp_path: Path) -> None:
    memory = host_memory(tmp_path, tmp_path / "none")
    assert memory.total_bytes == psutil.virtual_memory().total
    assert host_cores(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))


def test_the_cpu_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Test CPU @ 3 GHz\n")
    assert cpu_name(info) == "Test CPU @ 3 GHz"
    assert cpu_name(tmp_path / "none")


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [("cuda: Optional[str] = None", None), ("cuda = '13.0'", "13.0"), ("cuda: Optional[str] = '12.8'", "12.8")],
)
def test_the_build_of_torch_is_read_without_importing_it(tmp_path: Path, cuda: str, expected: str | None) -> None:
    (tmp_path / "version.py").write_text(f"from typing import Optional\n__version__ = '2.11.0'\n{cuda}\n")
    version, words = cuda_version_of_torch(tmp_path)
    assert version == expected
    assert "torch 2.11.0" in words


def test_the_build_that_is_installed_is_the_one_that_runs() -> None:
    import torch

    assert cuda_version_of_torch()[0] == torch.version.cuda
