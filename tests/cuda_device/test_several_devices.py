"""Nothing of a training on one GPU happens on another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import H100, Machine

TWO = (H100, H100)


def devices_of_kernels(trace: Path) -> set[str]:
    return {line.split("\t")[2] for line in trace.read_text().splitlines()}


@pytest.mark.parametrize("method", ["compress_activations(bits=4)", "checkpoint(every=1)", "swap(min_bytes=1048576)"])
def test_a_training_on_the_second_gpu_launches_nothing_on_the_first(
    method: str, python: Python, tmp_path: Path
) -> None:
    name, _, parameter = method.removesuffix(")").partition("(")
    key, _, value = parameter.partition("=")
    script = f"""
import advisor, torch
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from tests.session.workloads import tiny
training = advisor.apply_policy(
    Policy(methods=(use("{name}", {key}={value}),), micro_batch=4), tiny.build_model(), device="cuda:1"
)
assert torch.cuda.current_device() == 0
for _ in range(2):
    training.step(tiny.make_batch(4))
print(*training.notes)
"""
    trace = tmp_path / "trace"
    said = python(script, Machine(gpus=TWO, trace=trace))
    assert "plain PyTorch" not in said
    assert devices_of_kernels(trace) == {"cuda:1"}


def test_a_rank_takes_its_own_gpu_and_makes_it_the_current_one(python: Python, tmp_path: Path) -> None:
    script = """
import advisor, torch
from advisor.policy.policy import Policy
from tests.session.workloads import tiny
training = advisor.apply_policy(Policy(micro_batch=4), tiny.build_model())
training.step(tiny.make_batch(4))
print(training.device, torch.cuda.current_device())
"""
    assert python(script, Machine(gpus=TWO), LOCAL_RANK="1") == "cuda:1 1\n"
    assert python(script, Machine(gpus=(H100,)), LOCAL_RANK="1") == "cuda:0 0\n"  # its own is all that it sees
    too_many = Machine(gpus=TWO).run([sys.executable, "-c", script], {"LOCAL_RANK": "2"}, capture_output=True)
    assert "LOCAL_RANK is 2 and 2 GPUs are visible" in too_many.stderr


def test_a_kernel_is_compiled_once_for_tensors_of_every_size(python: Python) -> None:
    script = """
import torch
from advisor.methods.activations import _group_kernel as group_kernel
for count in (1, 2, 16, 255, 256, 257, 4096, 65536, 65537):
    flat = torch.empty(count + 1, device="cuda")[1:]
    buffer = group_kernel.encode_groups(flat, bits=4, seed=count)
    group_kernel.decode_groups(buffer, count=count, dtype=flat.dtype, bits=4)
print(*(len(kernel.device_caches[0][0]) for kernel in (group_kernel._encode, group_kernel._decode)))
"""
    assert python(script) == "1 1\n"


def test_a_kernel_that_broke_the_device_is_no_reason_to_go_on(python: Python) -> None:
    """Trap: what a kernel did to a device is raised again by everything that follows."""
    script = """
import torch
from advisor.methods.activations import _group_coder as group_coder
from advisor.methods.activations import _group_kernel as group_kernel
def broken(*args, **kwargs):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
group_kernel.encode_groups = broken
device = torch.device("cuda:0")
print(group_coder._working_kernel(4, device)[1])
torch.cuda.synchronize = broken
try:
    group_coder._working_kernel(4, device)
except RuntimeError as error:
    print(error)
"""
    said = python(script).splitlines()
    assert said[0].startswith("RuntimeError: CUDA error")
    assert said[1:] == ["CUDA error: an illegal memory access was encountered"]
