"""What torch sees of a machine with software GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import A100, H100, V100, Gpu, Machine

NAMES = """
import ctypes
cuda, count, name = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(100)
cuda.cuDeviceGetCount(ctypes.byref(count))
for device in range(count.value):
    cuda.cuDeviceGetName(name, 100, device)
    print(name.value.decode())
"""
MIXED = Machine(gpus=(A100, H100))
H, A = H100.name, A100.name


def test_torch_sees_a_gpu_with_its_name_capability_and_memory(python: Python) -> None:
    script = (
        "import torch; p = torch.cuda.get_device_properties(0); print(p.name, p.major, p.minor, p.total_memory >> 20)"
    )
    assert python(script) == f"{H} 9 0 {H100.mebibytes}\n"


@pytest.mark.parametrize(
    ("capability", "threads"),
    [("7.5", 1024), ("8.0", 2048), ("8.6", 1536), ("8.9", 1536), ("9.0", 2048), ("10.0", 2048), ("12.0", 1536)],
)
def test_a_multiprocessor_has_the_threads_of_its_capability(capability: str, threads: int, python: Python) -> None:
    script = """
import torch
from advisor.predict.prediction import CudaDevice
p = torch.cuda.get_device_properties(0)
device = CudaDevice(compute_capability=(p.major, p.minor), multiprocessors=p.multi_processor_count)
print(p.max_threads_per_multi_processor, device.threads_per_multiprocessor)
"""
    machine = Machine(gpus=(Gpu("A GPU", 16_384, capability),))
    assert python(script, machine) == f"{threads} {threads}\n", "of the device, and in predictions for it"


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, [H, A]),  # the fastest first
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [A, H]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [A]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [A, H]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 0 "}, [A, H]),
        ({"CUDA_VISIBLE_DEVICES": "1st,0th"}, [A, H]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, [A]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [H]),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a0"}, [A]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a1,GPU-a0"}, [H, A]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a"}, []),
    ],
    ids=str,
)
def test_cuda_shows_what_its_variables_say(variables: dict[str, str], names: list[str], python: Python) -> None:
    assert python(NAMES, MIXED, **variables).splitlines() == names


def test_a_training_goes_through_torchs_own_allocator_and_reads_zeros(python: Python) -> None:
    script = """
import torch
layer = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.AdamW(layer.parameters())
loss = layer(torch.ones(8, 1024, device="cuda")).square().mean()
loss.backward()
optimizer.step()
assert bool(torch.isfinite(loss))
print(loss.item(), torch.cuda.max_memory_allocated() >= 4 * 4 * 1024 * 1024, torch.cuda.memory_reserved() % 2**21)
"""
    assert python(script) == "0.0 True 0\n"


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_ends_where_the_gpu_says(settings: str, python: Python) -> None:
    script = """
import torch
free, total = torch.cuda.mem_get_info()
kept = torch.empty(free - 2**30, dtype=torch.uint8, device="cuda")
assert torch.cuda.mem_get_info()[0] < 2**30 + 2**21
try:
    torch.empty(2**31, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(str(error).partition(".")[0])
"""
    assert python(script, PYTORCH_CUDA_ALLOC_CONF=settings) == "CUDA out of memory\n"


def test_processes_share_a_gpu_and_nvml_sees_them_all(python: Python) -> None:
    script = """
import os, subprocess, sys, torch, pynvml
kept = torch.empty(2**30, dtype=torch.uint8, device="cuda")
child = "import torch; print(torch.cuda.mem_get_info()[0] >> 20)"
free = int(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
(own,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
assert own.pid == os.getpid()
total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
print((total >> 20) - free - (own.usedGpuMemory >> 20), own.usedGpuMemory - 2**30 >> 20)
"""
    context = 520
    assert python(script) == f"{context} {context}\n"


def test_a_host_that_touches_the_devices_memory_dies() -> None:
    script = 'import ctypes, torch; ctypes.string_at(torch.ones(8, device="cuda").data_ptr(), 4)'
    assert Machine().run([sys.executable, "-c", script], capture_output=True).returncode == -11


def test_a_fork_of_a_process_that_used_cuda_cannot() -> None:
    script = """
import os, torch
torch.ones(1, device="cuda")
if os.fork() == 0:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert Machine().run([sys.executable, "-c", script], capture_output=True).stdout == "7\n"


def test_what_is_read_as_a_size_cannot_swamp_the_host(python: Python) -> None:
    script = """
try:
    bytearray(2**40)
except MemoryError:
    print("refused")
"""
    assert python(script) == "refused\n"


def test_what_the_host_copied_is_there_until_a_kernel_runs(python: Python) -> None:
    script = """
import torch
numbers = torch.tensor([1, 2, 3]).cuda()
print(numbers.tolist(), numbers[1:].tolist(), numbers.clone().tolist())
numbers += 1
print(numbers.tolist())
"""
    assert python(script) == "[1, 2, 3] [2, 3] [1, 2, 3]\n[0, 0, 0]\n"


def test_ranks_gather_what_each_of_them_has(python: Python) -> None:
    script = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=2)
mine = torch.tensor([7, 8]).cuda()
parts = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(parts, mine)
print([part.tolist() for part in parts], flush=True)
os._exit(0)  # without a wait for the other
"""
    assert python(script, Machine(gpus=(H100, H100))) == "[[7, 8], [7, 8]]\n"


def test_a_driver_that_is_too_old_is_none(python: Python) -> None:
    script = """
import warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(torch.cuda.is_available(), any("driver on your system is too old" in str(each.message) for each in caught))
"""
    assert python(script, Machine(driver="12.4")) == "False True\n"


def test_a_gpu_that_the_build_has_no_kernels_for_runs_none(python: Python) -> None:
    script = """
import warnings, torch
warnings.simplefilter("ignore")
try:
    torch.ones(1, device="cuda") + 1
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""
    said = python(script, Machine(gpus=(V100,)))
    assert "no kernel image is available" in said


def test_nvml_can_lack_a_function_or_be_missing(python: Python) -> None:
    script = """
import pynvml
try:
    pynvml.nvmlInit()
    pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
except pynvml.NVMLError as error:
    print(type(error).__name__)
"""
    lacking = Machine(nvml_lacks=("nvmlDeviceGetMemoryInfo",))
    assert python(script, lacking) == "NVMLError_NotSupported\n"
    assert python(script, Machine(nvml=False)) == "NVMLError_LibraryNotFound\n"


def test_a_kernel_in_a_stream_of_another_device_is_refused(python: Python) -> None:
    script = """
import ctypes
cuda, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
cuda.cudaSetDevice(1)
cuda.cudaStreamCreate(ctypes.byref(stream))
launch = lambda: cuda.cuLaunchKernel(b"kernel", 1, 1, 1, 1, 1, 1, 0, stream, None, None)
first = launch()
cuda.cudaSetDevice(0)
print(first, launch())
"""
    invalid_handle = 400
    assert python(script, Machine(gpus=(H100, H100))) == f"0 {invalid_handle}\n"


def test_the_trace_tells_which_kernel_ran_on_which_device(python: Python, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    script = 'import torch; torch.ones(4, device="cuda:1").exp()'
    python(script, Machine(gpus=(H100, H100), trace=trace))
    launches = [line.split("\t") for line in trace.read_text().splitlines()]
    assert {device for _, _, device, _ in launches} == {"cuda:1"}
    assert any("exp" in name for _, _, _, name in launches)


def test_any_command_runs_on_it() -> None:
    command = ["tests.cuda_device", "--count", "3", sys.executable, "-c", NAMES]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [H] * 3


def test_torch_asks_a_gpu_for_its_fabric_and_has_nothing_to_warn_of(python: Python) -> None:
    """From torch 2.15 on, for expandable segments."""
    script = """
import warnings, torch
warnings.simplefilter("error")
torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
print("fine")
"""
    assert python(script, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == "fine\n"
