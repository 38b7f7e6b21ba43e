"""A part of a GPU, as MIG cuts them: what CUDA shows of it, what NVML tells of it, and what it does not."""

from __future__ import annotations

import sys

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import A100, H100, Gpu, Machine

SMALL, LARGE = ("1g.10gb", 9_856), ("2g.20gb", 19_968)
IN_PARTS = Machine(gpus=(Gpu(H100.name, H100.mebibytes, H100.capability, (SMALL, LARGE)),))
FIRST, SECOND = f"{H100.name} MIG 1g.10gb", f"{H100.name} MIG 2g.20gb"
SECONDS_UUID = "MIG-a25a0000-0000-4000-8000-000000000002"

FOUND = """
from advisor.hardware.gpus import list_gpus
found = list_gpus()
print(*(f"{gpu.index} {gpu.name} {gpu.memory_bytes >> 20} {gpu.compute_capability}" for gpu in found.gpus))
print(found.reason)
"""


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, f"0 {FIRST} 9856 (9, 0)"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, f"0 {FIRST} 9856 (9, 0)"),
        ({"CUDA_VISIBLE_DEVICES": SECONDS_UUID}, f"0 {SECOND} 19968 (9, 0)"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a2"}, f"0 {SECOND} 19968 (9, 0)"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a2,MIG-a1"}, f"0 {SECOND} 19968 (9, 0)"),  # one to a process
    ],
    ids=str,
)
@pytest.mark.parametrize("nvml", [True, False], ids=["NVML", "no NVML"])
def test_a_process_has_the_instance_that_cuda_shows_it(
    variables: dict[str, str], shown: str, nvml: bool, python: Python
) -> None:
    said = python(FOUND, Machine(gpus=IN_PARTS.gpus, nvml=nvml), **variables)
    assert said.splitlines()[0] == shown


def test_a_gpu_in_mig_mode_without_an_instance_is_hidden(python: Python) -> None:
    machine = Machine(gpus=(Gpu(A100.name, A100.mebibytes, A100.capability, ()),))
    said = python(FOUND, machine).splitlines()
    assert said == ["", "MIG mode without an instance hides every GPU of this machine (1 installed)"]


def test_people_are_shown_the_instance_and_its_memory() -> None:
    shown = IN_PARTS.run([sys.executable, "-m", "advisor", "hardware"], capture_output=True)
    text = " ".join(shown.stdout.split())
    assert FIRST in text
    assert "9.62 GiB" in text
    assert "published nothing for this device" in text, "the figures of a whole GPU are not those of a part"


@pytest.mark.parametrize("lacking", [(), ("nvmlDeviceGetComputeRunningProcesses_v3",)], ids=["allowed", "forbidden"])
def test_a_trial_has_the_figures_of_its_instance_and_none_of_the_whole_gpu(
    lacking: tuple[str, ...], python: Python
) -> None:
    script = """
import torch
from advisor.measure.memory.cuda import nvml_device
from advisor.trial.worker.failure import failed_result
from tests.trial.specs import spec
device = torch.device("cuda:0")
kept = torch.empty(2**30, dtype=torch.uint8, device=device)
nvml = nvml_device(device)
used = nvml.used_bytes()
print(used if used is None else used >= 2**30, nvml.energy_joules())
try:
    torch.empty(10 * 2**30, dtype=torch.uint8, device=device)
except RuntimeError as error:
    print(failed_result(spec(device=str(device), memory_limit_bytes=9 * 2**30), error).outcome.value)
"""
    used = None if lacking else True
    assert python(script, Machine(gpus=IN_PARTS.gpus, nvml_lacks=lacking)) == f"{used} None\nout of memory\n"
