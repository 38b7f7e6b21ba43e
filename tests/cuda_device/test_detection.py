"""What is found on machines of every kind, held against what torch finds there."""

from __future__ import annotations

import sys

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import A100, H100, V100, Machine

FOUND = """
from advisor.hardware.detect import choose_device, list_devices
from advisor.hardware.gpus import list_gpus
ours = [(gpu.uuid, gpu.name, gpu.compute_capability, gpu.memory_bytes) for gpu in list_gpus().gpus]
import torch
properties = [torch.cuda.get_device_properties(device) for device in range(torch.cuda.device_count())]
torchs = [(f"GPU-{each.uuid}", each.name, (each.major, each.minor), each.total_memory) for each in properties]
assert ours == torchs, (ours, torchs)
print(*(name for _, name, *_ in ours), choose_device().device, sep="; ")
"""
MIXED = (A100, H100)


@pytest.mark.parametrize(
    ("machine", "variables", "found"),
    [
        (Machine(), {}, [H100.name, "cuda:0"]),
        (Machine(nvml=False), {}, [H100.name, "cuda:0"]),
        (Machine(gpus=MIXED), {}, [H100.name, A100.name, "cuda:0"]),
        (Machine(gpus=MIXED), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [A100.name, H100.name, "cuda:0"]),
        (Machine(gpus=MIXED), {"CUDA_VISIBLE_DEVICES": "1"}, [A100.name, "cuda:0"]),
        (Machine(gpus=MIXED, nvml=False), {"CUDA_VISIBLE_DEVICES": "1,0"}, [A100.name, H100.name, "cuda:0"]),
        (Machine(gpus=(H100,) * 3), {"CUDA_VISIBLE_DEVICES": "2nd,GPU-a0"}, [H100.name, H100.name, "cuda:0"]),
        (Machine(gpus=(V100,)), {}, [V100.name, "cpu"]),
        (Machine(gpus=(V100, A100)), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [V100.name, A100.name, "cuda:1"]),
    ],
    ids=[
        "one",
        "no NVML",
        "mixed",
        "by bus",
        "one of the mixed",
        "mixed without NVML",
        "spelled",
        "old",
        "old and new",
    ],
)
def test_it_is_what_torch_finds(machine: Machine, variables: dict[str, str], found: list[str], python: Python) -> None:
    assert python(FOUND, machine, **variables).strip() == "; ".join(found)


@pytest.mark.parametrize(
    ("machine", "why", "fix"),
    [
        (Machine(driver="12.4"), "the driver (550.54.15) is for CUDA 12.4 at most", "Update the driver"),
        (Machine(gpus=(V100,)), f"torch has no kernels for the {V100.name}", "built for an older CUDA"),
    ],
    ids=["old driver", "old GPU"],
)
def test_a_gpu_that_torch_cannot_use_is_an_error_only_where_it_is_asked_for(
    machine: Machine, why: str, fix: str, python: Python
) -> None:
    asked = machine.run(
        [sys.executable, "-m", "advisor", "predict", "hf:gpt2", "--device", "cuda"], capture_output=True
    )
    assert asked.returncode == 2
    (line,) = (line for line in asked.stderr.splitlines() if "error" in line)
    assert why in " ".join(asked.stderr.split())
    assert fix in " ".join(asked.stderr.split())
    assert line.startswith("momadvise: error:")
    said = python("from advisor.hardware.detect import choose_device as c; print(c().device, c().reason)", machine)
    assert said.startswith("cpu ")
    assert why in said


def test_a_gpu_of_which_nvml_does_not_know_the_memory_is_found(python: Python) -> None:
    script = """
from advisor.hardware.detect import detect_hardware
hardware = detect_hardware("cuda")
print(hardware.memory_bytes == hardware.host_memory_bytes)
"""
    assert python(script, Machine(nvml_lacks=("nvmlDeviceGetMemoryInfo",))) == "True\n"


@pytest.mark.parametrize(
    "lacking",
    [
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlSystemGetCudaDriverVersion_v2",
    ],
)
def test_a_trial_needs_no_function_of_nvml_that_may_be_lacking(lacking: str, python: Python) -> None:
    script = """
import torch
from advisor.measure.memory.cuda import nvml_device
from advisor.hardware.detect import detect_hardware
device = nvml_device(torch.device("cuda:0"))
device.used_bytes(), device.energy_joules()
print(detect_hardware("cuda").device)
"""
    assert python(script, Machine(nvml_lacks=(lacking,))) == "cuda:0\n"
