"""What kernels of scaled dot-product attention allocate as workspace on CUDA.

Sources: of PyTorch, in ``aten/src/ATen/native/transformers/cuda``, ``attention.cu``, ``attention_backward.cu``,
``mem_eff_attention/kernel_forward.h``, ``mem_eff_attention/kernel_backward.h`` and ``flash_attn/flash_api.cpp``; of
cuDNN's frontend the operator of attention's backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from advisor.predict.prediction import CudaDevice
from advisor.predict.workspace.call import Give, Like, Result, Step, Take, WorkspaceCall

__all__ = [
    "cudnn_backward",
    "efficient",
    "efficient_backward",
    "flash",
    "flash_backward",
    "seeds_first",
]

_FLOAT = 4
_WIDEST_IN_REGISTERS = 128
"""Heads whose output a kernel with 16 bits keeps in registers."""
_KEEPS_OUTPUTS = 200
"""Blocks among which keys are split where gradients of keys and values are accumulated in memory."""


def seeds_first(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Seed and offset of the random numbers come before output and statistics."""
    yield from (Result(index) for index in (2, 3, 0, 1, *range(4, len(call.results))))


def efficient(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """With dropout, seed and offset are the host's outside of CUDA graphs.

    Outputs of wide heads do not fit into registers, and are added up in 32 bits.
    """
    if call.given("dropout_p", 0.0) > 0:
        yield from (Result(0), Result(1))
    else:
        yield from seeds_first(call, device)
    query, value = call.given("query"), call.given("value")
    if query.dtype.itemsize == 2 and value.shape[3] > _WIDEST_IN_REGISTERS:
        yield Take("outputs", query.count // query.shape[3] * value.shape[3] * _FLOAT)
        yield Give("outputs")


def efficient_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """A product of gradient and output where the kernel does not sum it up itself, and parts of gradients."""
    gradient, query, key, value = (call.given(name) for name in ("grad_out_", "query", "key", "value"))
    batch, heads, queries, _ = query.shape
    rows = batch * heads * queries
    copied = [("the gradient", gradient)] if not gradient.transposed(1, 2).contiguous else []
    for name, tensor in copied:
        yield Take(name, tensor.nbytes)
    yield from (Result(index) for index in range(len(call.results)))
    spread = [] if key.shape[1] == heads else [("keys", key), ("values", value)]
    for name, tensor in spread:
        yield Take(name, tensor.nbytes // tensor.shape[1] * heads)
    half = query.dtype.itemsize == 2
    if not half:
        yield Take("product", gradient.count * _FLOAT)
        yield Take("sums", rows * _FLOAT)
        yield Take("sums in order", rows * _FLOAT)
        yield Give("sums")
        yield Give("product")
    else:
        yield Take("sums in order", rows * _FLOAT)
    yield Take("workspace", efficient_workspace_bytes(query, key, value, device))
    yield Give("sums in order")
    yield Give("workspace")
    for name, _ in reversed([*copied, *spread]):
        yield Give(name)


def efficient_workspace_bytes(query: Like, key: Like, value: Like, device: CudaDevice) -> int:
    """``workspace_size`` of the kernel that is chosen: the first that has room for the heads and in shared memory."""
    batch, heads, queries, size = query.shape
    half = query.dtype.itemsize == 2
    widest = max(size, value.shape[3])
    roomy = device.compute_capability >= (8, 0) and not device.is_short_of_shared_memory
    block_rows = 128 if roomy and widest > 64 else 64
    block_columns = 128 if half and 64 < widest <= 128 and block_rows == 128 else 64
    elements = _ceil(queries, block_rows) * _ceil(size, block_columns) * (block_rows * block_columns + 4)
    if half and not _fits_registers(widest, block_rows):
        splits = max(1, min(_ceil(key.shape[2], block_columns), _KEEPS_OUTPUTS // (batch * heads)))
        columns = sum(_up(width, block_rows) for width in (size, value.shape[3]))
        elements += splits * block_columns * columns
    return batch * heads * _up(elements, 4) * _FLOAT


def _fits_registers(widest: int, block_rows: int) -> bool:
    """``kOutputInRF``: kernels are compiled for heads of at most 32, 64, 128 and any number."""
    return next((most for most in (32, 64, 128) if widest <= most), 2**16) <= block_rows


def flash(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Where there are few blocks, keys are split among several, whose outputs are put together afterwards."""
    query, key = call.given("query"), call.given("key")
    batch, heads, queries, size = query.shape
    yield from (Result(0), Result(1))
    if call.given("dropout_p", 0.0) > 0:
        yield Take("state", 16)
        yield from (Result(3), Result(2), Give("state"))
        return
    splits = _flash_splits(batch * heads * _ceil(queries, 64), device.multiprocessors * 2, key.shape[2], size)
    if splits > 1:
        yield Take("statistics of parts", splits * batch * heads * queries * _FLOAT)
        yield Take("parts", splits * batch * heads * queries * _flash_width(size) * _FLOAT)
    yield from (Result(2), Result(3))
    if splits > 1:
        yield from (Give("statistics of parts"), Give("parts"))


def _flash_splits(blocks: int, places: int, keys: int, size: int) -> int:
    """``num_splits_heuristic``: as few as come near the best use of the device."""
    if blocks >= 0.8 * places:
        return 1
    columns = _ceil(keys, 256 if size <= 64 else 128 if size <= 128 else 64)
    eligible = [
        splits
        for splits in range(1, min(128, places, columns) + 1)
        if splits == 1 or _ceil(columns, splits) != _ceil(columns, splits - 1)
    ]
    waves = {splits: blocks * splits / places for splits in eligible}
    use = {splits: wave / math.ceil(wave) for splits, wave in waves.items()}
    return next(splits for splits in eligible if use[splits] >= 0.85 * max(use.values()))


def flash_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Gradients of queries are accumulated in 32 bits; shared keys and values get one for every head first."""
    gradient, query, key, output = (call.given(name) for name in ("grad_out", "query", "key", "out"))
    batch, heads, queries, size = query.shape
    rows = batch * heads * _up(queries, 128)
    copied = [
        (name, tensor)
        for name, tensor in (("the gradient", gradient), ("the output", output))
        if not tensor.transposed(1, 2).contiguous
    ]
    for name, tensor in copied:
        yield Take(name, tensor.nbytes)
    yield from (Result(index) for index in range(len(call.results)))
    yield Take("sums", rows * _FLOAT)
    yield Take("queries", rows * _flash_width(size) * _FLOAT)
    spread = ["keys", "values"] if key.shape[1] != heads else []
    for name in spread:
        yield Take(name, key.nbytes // key.shape[1] * heads)
    for name in (*reversed(spread), "queries", "sums", *(name for name, _ in reversed(copied))):
        yield Give(name)


def _flash_width(size: int) -> int:
    """``head_size_rounded``."""
    return _up(size, 32) if size <= 128 else _up(size, 64)


def cudnn_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """The frontend's own: gradients of queries in 32 bits, and a sum for each row. cuDNN's plan may add more."""
    query = call.given("query")
    yield from (Result(index) for index in range(len(call.results)))
    yield Take("workspace", (query.count + query.count // query.shape[3]) * _FLOAT)
    yield Give("workspace")


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _up(number: int, multiple: int) -> int:
    return _ceil(number, multiple) * multiple
