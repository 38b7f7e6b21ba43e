"""What predictions without a GPU take from CUDA, held against torch on a device."""

from __future__ import annotations

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import Gpu, Machine


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.9", "9.0", "10.0", "12.0"])
def test_the_kernel_of_attention_is_the_one_that_torch_chooses(capability: str, python: Python) -> None:
    script = """
import itertools, warnings, torch
from torch.nn.attention import SDPBackend
from advisor.predict.cuda.attention_choice import Attention, AttentionGpu, chosen_kernel
warnings.simplefilter("ignore")
gpu = AttentionGpu(
    compute_capability=torch.cuda.get_device_capability(), cudnn_version=torch.backends.cudnn.version()
)
cases = itertools.product(
    [torch.float32, torch.bfloat16, torch.float16], [4, 2], [64, 20, 36, 128, 200, 256],
    [(128, 128), (100, 100), (1, 128), (64, 128)], [None, "2d", "4d", "numbers"], [0.0, 0.1, 0.125], [False, True],
    [False, True],
)
seen = set()
for dtype, shared, size, (queries, keys), kind, dropout, causal, trains in cases:
    if kind and causal:
        continue
    make = lambda heads, length: torch.empty(2, heads, length, size, dtype=dtype, device="cuda", requires_grad=trains)
    inputs = make(4, queries), make(shared, keys), make(shared, keys)
    mask = {
        None: lambda: None,
        "2d": lambda: torch.empty(queries, keys, dtype=torch.bool, device="cuda"),
        "4d": lambda: torch.empty(2, 1, queries, keys, dtype=torch.bool, device="cuda"),
        "numbers": lambda: torch.empty(2, 4, queries, keys, dtype=dtype, device="cuda"),
    }[kind]()
    grouped = shared != 4
    torchs = SDPBackend(torch._fused_sdp_choice(*inputs, mask, dropout, causal, enable_gqa=grouped))
    ours = chosen_kernel(Attention(*inputs, mask, dropout, causal, None, grouped), gpu)
    assert ours == torchs, (dtype, shared, size, queries, keys, kind, dropout, causal, trains, ours, torchs)
    seen.add(torchs.name)
print(*sorted(seen))
"""
    kernels = set(python(script, Machine(gpus=(Gpu("a GPU", 80_000, capability),))).split())
    assert {"EFFICIENT_ATTENTION", "MATH"} <= kernels
    assert ("FLASH_ATTENTION" in kernels) == (capability != "7.5")
    assert ("CUDNN_ATTENTION" in kernels) == (capability in ("9.0", "10.0"))


def test_autocast_of_a_cpu_that_stands_for_cuda_is_that_of_cuda(python: Python) -> None:
    script = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from advisor.predict.cuda.dispatch import as_cuda
from tests.predict.test_cuda_autocast import OPERATORS, SAMPLES
for dtype in (torch.bfloat16, torch.float16):
    for name, (operator, _) in OPERATORS.items():
        with torch.autocast("cuda", dtype):
            real = operator(torch.empty(SAMPLES, dtype=dtype, device="cuda")).dtype
        with FakeTensorMode(), as_cuda(), torch.autocast("cpu", dtype):
            assert operator(torch.empty(SAMPLES, dtype=dtype)).dtype is real, name
print(len(OPERATORS))
"""
    assert int(python(script)) > 10


def test_what_cublas_takes_for_a_product_is_what_torch_gives_it(python: Python) -> None:
    script = """
import torch
from advisor.predict.prediction import CudaDevice
from advisor.predict.workspace.call import Result, Take, described
from advisor.predict.workspace.operators import steps_of
from advisor.predict.workspace.products import cublas_workspace_bytes, keeps_workspaces
aten, memory = torch.ops.aten, torch.cuda.memory
SIZES = (4, 16, 8), (1, 16, 8), (4, 1, 8), (4, 16, 1), (1, 1, 1), (512, 768, 3072), (4, 0, 8)
device = CudaDevice(compute_capability=torch.cuda.get_device_capability(), multiprocessors=132)

def taken(operator, *given, **options):
    memory._record_memory_history(stacks="python", context=None)
    result = operator(*given, **options)
    changes = [(one["action"] == "alloc", one["size"]) for one in memory._snapshot()["device_traces"][0]
               if one["action"] in ("alloc", "free_completed")]
    memory._record_memory_history(None)
    call = described(operator, given, options, result)
    sizes, expected = {}, []
    for step in steps_of(call, device):
        if isinstance(step, Result):
            expected.append((True, call.results[step.place].nbytes))
        else:
            size = sizes.setdefault(step.name, getattr(step, "nbytes", 0))
            expected.append((isinstance(step, Take), size))
    return changes, expected

def given(*shape, dtype=torch.float32):
    return torch.empty(shape, device="cuda", dtype=dtype)

def agree(operator, *given, **options):
    changes, expected = taken(operator, *given, **options)
    assert changes == expected, (operator, [one.shape for one in given], options, changes, expected)

if keeps_workspaces():
    given(4, 4) @ given(4, 4)
    held = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    assert held - torch.cuda.memory_allocated() == cublas_workspace_bytes(device)
else:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for rows, inner, columns in SIZES:
            left, right = given(rows, inner, dtype=dtype), given(inner, columns, dtype=dtype)
            agree(aten.mm.default, left, right)
            agree(aten.mm.default, left, given(columns, inner, dtype=dtype).t())
            wide = given(rows, 2 * inner, dtype=dtype), given(inner, 2 * columns, dtype=dtype)
            agree(aten.mm.default, *(one[:, ::2] for one in wide))
            del wide
            agree(aten.bmm.default, left[None], right[None])
            agree(aten.baddbmm.default, given(1, rows, columns, dtype=dtype), left[None], right[None])
            for added in ((columns,), (1, columns), (rows, columns), (rows, 1), (1,)):
                if not inner:
                    continue
                agree(aten.addmm.default, given(*added, dtype=dtype), left, right)
                for beta in (0.5, 0):
                    agree(aten.addmm.default, given(*added, dtype=dtype), left, right, beta=beta)
            agree(aten.mv.default, left, given(inner, dtype=dtype))
            if inner:
                agree(aten.dot.default, given(inner, dtype=dtype), given(inner, dtype=dtype))
    del left, right
    assert not torch.cuda.memory_allocated(), "nothing stays"
print("equal")
"""
    assert python(script) == "equal\n"
