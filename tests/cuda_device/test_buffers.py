"""What operators are said to take inside themselves, held against torch's allocator on a device."""

from __future__ import annotations

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import Gpu, Machine

_LISTEN = """
import random, torch
from advisor.predict.workspace.operators import steps_of
from advisor.predict.workspace.call import Result, Take, described
from advisor.predict.prediction import CudaDevice
aten, properties = torch.ops.aten, torch.cuda.get_device_properties(0)
gpu = CudaDevice(
    compute_capability=(properties.major, properties.minor), multiprocessors=properties.multi_processor_count
)
memory = torch.cuda.memory
SIGNS = {"alloc": 1, "free_requested": -1}
SCANS = 5000  # bytes: the temporary storage of scans is left out

def rounded(size):
    return -(-size // 512) * 512

def compare(func, *args, **kwargs):
    # Results are named by their place, all else by its bytes.
    memory._record_memory_history("all", context=None, stacks="python", clear_history=True, max_entries=1000)
    result = func(*args, **kwargs)
    entries = [one for one in memory._snapshot()["device_traces"][0] if one["action"] in SIGNS]
    memory._record_memory_history(None)
    call = described(func, args, kwargs, result)
    tensors = [result] if isinstance(result, torch.Tensor) else [one for one in result if isinstance(one, torch.Tensor)]
    places = {one.untyped_storage().data_ptr(): place for place, one in enumerate(tensors) if one.is_cuda}
    living = {}
    for index, one in enumerate(entries):
        if one["action"] == "alloc":
            living[one["addr"]] = index
        else:
            living.pop(one["addr"])
    real = []
    for index, one in enumerate(entries):
        if index in living.values():
            real.append("=%d" % places[one["addr"]])
        elif one["size"] > SCANS or not EMBEDS:
            real.append("%+d" % (SIGNS[one["action"]] * rounded(one["size"])))
    sizes, said = {}, []
    for step in steps_of(call, gpu):
        if isinstance(step, Result):
            said.append("=%d" % step.place)
            continue
        if isinstance(step, Take):
            sizes[step.name] = step.nbytes
        if sizes[step.name] > SCANS or not EMBEDS:
            said.append("%+d" % (rounded(sizes[step.name]) * (1 if isinstance(step, Take) else -1)))
    assert said == real, (func, call, said, real)
    return result
EMBEDS = False
"""


@pytest.mark.parametrize("capability", ["9.0", "8.0"])
def test_reductions_of_any_layout(capability: str, python: Python) -> None:
    script = (
        _LISTEN
        + """
random.seed(0)
with_buffers = 0
for _ in range(150):
    sizes = [random.choice([1, 2, 3, 8, 32, 100, 128, 197, 384, 768, 1000, 4096]) for _ in range(random.randint(1, 4))]
    while torch.Size(sizes).numel() > 2**25:
        sizes[random.randrange(len(sizes))] = random.choice([1, 2, 3])
    tensor = torch.empty(sizes, dtype=random.choice([torch.float32, torch.bfloat16]), device="cuda")
    if random.random() < 0.5:
        tensor = tensor.permute(random.sample(range(tensor.dim()), tensor.dim()))
    dims = random.sample(range(tensor.dim()), random.randint(1, tensor.dim()))
    compare(aten.sum.dim_IntList, tensor, dims)
    compare(aten.mean.dim, tensor, dims)
    compare(aten.amax.default, tensor, dims)
    compare(aten.linalg_vector_norm.default, tensor, 2, dims)
    compare(aten.max.dim, tensor, dims[0])
    compare(aten.var.correction, tensor, dims)
"""
    )
    python(script, Machine(gpus=(Gpu("a GPU", 80_000, capability),)))


def test_attention_normalization_embeddings_and_convolutions(python: Python) -> None:
    script = (
        _LISTEN
        + """
def laid_out(batch, heads, length, size, dtype, as_layers=True):
    shape = (batch, length, heads, size) if as_layers else (batch, heads, length, size)
    tensor = torch.empty(shape, dtype=dtype, device="cuda")
    return tensor.transpose(1, 2) if as_layers else tensor

for dtype in (torch.float32, torch.bfloat16):
    for batch, heads, shared, queries, keys, size in [
        (4, 6, 6, 256, 256, 64), (4, 6, 6, 100, 130, 32), (2, 8, 8, 300, 256, 128), (2, 8, 8, 256, 256, 96),
        (2, 4, 4, 256, 320, 256), (4, 8, 2, 128, 128, 64),
    ]:
        query, key, value = (laid_out(batch, *one, size, dtype) for one in ((heads, queries), *[(shared, keys)] * 2))
        for dropout in (0.0, 0.1):
            gradients = [laid_out(batch, heads, queries, size, dtype, one) for one in (True, False)]
            if shared == heads:
                efficient = aten._scaled_dot_product_efficient_attention
                out, sums, seed, offset = compare(efficient.default, query, key, value, None, True, dropout)
                for gradient in gradients:
                    compare(
                        aten._scaled_dot_product_efficient_attention_backward.default, gradient, query, key, value,
                        None, out, sums, seed, offset, dropout, [True, True, True, False],
                    )
            if dtype is torch.bfloat16:
                flash = aten._scaled_dot_product_flash_attention
                out, *rest, seed, offset, _ = compare(flash.default, query, key, value, dropout)
                for gradient in gradients:
                    compare(
                        aten._scaled_dot_product_flash_attention_backward.default, gradient, query, key, value, out,
                        *rest, dropout, False, seed, offset,
                    )
for rows, columns in [(1024, 384), (65_537, 384), (131_072, 768), (131_072, 4096)]:
    given, weight = torch.empty(rows, columns, device="cuda"), torch.empty(columns, device="cuda")
    _, mean, deviation = compare(aten.native_layer_norm.default, given, [columns], weight, weight, 1e-5)
    compare(
        aten.native_layer_norm_backward.default, given, given, [columns], mean, deviation, weight, weight, [True] * 3
    )
given = torch.empty(32, 64, 384, device="cuda")
turned, weight = given.transpose(0, 1), torch.empty(384, device="cuda")
_, mean, deviation = compare(aten.native_layer_norm.default, turned, [384], weight, weight, 1e-5)
for gradient, samples in ((turned, turned.contiguous()), (turned.contiguous(), turned), (turned, turned)):
    compare(
        aten.native_layer_norm_backward.default, gradient, samples, [384], mean, deviation, weight, weight, [True] * 3
    )
compare(aten.native_dropout.default, given, 0.1, True)
compare(aten._softmax_backward_data.default, given, given, -1, torch.float32)
compare(aten.cumsum.default, torch.empty(4, 512, dtype=torch.bool, device="cuda"), -1)
weight = torch.empty(64, 32, 3, 3, device="cuda")
for last in (torch.contiguous_format, torch.channels_last):
    images = torch.empty(8, 32, 20, 20, device="cuda").to(memory_format=last)
    out = compare(aten.convolution.default, images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    for other in (torch.contiguous_format, torch.channels_last):
        compare(
            aten.convolution_backward.default, out.to(memory_format=other), images, weight, [64], [1, 1], [1, 1],
            [1, 1], False, [0, 0], 1, [True] * 3,
        )
EMBEDS = True
for count, rows, size in [(3072, 8192, 64), (3073, 8192, 64), (16_384, 32, 8), (65_536, 50_000, 16), (6144, 255, 64)]:
    gradient, indices = torch.empty(count, size, device="cuda"), torch.empty(count, dtype=torch.long, device="cuda")
    compare(aten.embedding_dense_backward.default, gradient, indices, rows, -1, False)
"""
    )
    python(script)
