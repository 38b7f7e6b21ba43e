"""What kernels of scaled dot-product attention allocate as workspace on CUDA.

Sources: of PyTorch, in ``aten/src/ATen/native/transformers/cuda``, ``attention.cu``, ``attention_backward.cu``,
``mem_eff_attention/kernel_forward.h``, ``mem_eff_attention/kernel_backward.h`` and ``flash_attn/flash_api.cpp``; of
cuDNN's frontend the operator of attention's backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from advisor.predict.prediction import CudaDevice
from advisor.predict.whole_numbers import ceil_div, round_up
from advisor.predict.workspace.call import Give, Like, Result, Step, Take, WorkspaceCall, copies, holding, results

__all__ = ["cudnn_backward", "efficient", "efficient_backward", "flash", "flash_backward", "seeds_first"]

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
        yield from holding({"outputs": query.count // query.shape[3] * value.shape[3] * _FLOAT})


def efficient_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """A product of gradient and output where the kernel does not sum it up itself, and parts of gradients."""
    gradient, query, key, value = (call.given(name) for name in ("grad_out_", "query", "key", "value"))
    batch, heads, queries, _ = query.shape
    row_bytes = batch * heads * queries * _FLOAT
    copied = copies(gradient=gradient.transposed(1, 2))
    spread = {} if key.shape[1] == heads else _for_each_head(heads, keys=key, values=value)
    inside: list[Step] = [Take("sums in order", row_bytes)]
    if query.dtype.itemsize != 2:
        inside = [*holding({"product": gradient.count * _FLOAT, "sums": row_bytes}, inside)]
    workspace_bytes = _efficient_workspace_bytes(query, key, value, device)
    inside += [Take("workspace", workspace_bytes), Give("sums in order"), Give("workspace")]
    yield from holding(copied, [*results(call), *holding(spread, inside)])


def _efficient_workspace_bytes(query: Like, key: Like, value: Like, device: CudaDevice) -> int:
    """``workspace_size`` of the kernel that is chosen: the first that has room for the heads and in shared memory."""
    batch, heads, queries, size = query.shape
    half = query.dtype.itemsize == 2
    widest = max(size, value.shape[3])
    roomy = device.compute_capability >= (8, 0) and not device.is_short_of_shared_memory
    block_rows = 128 if roomy and widest > 64 else 64
    block_columns = 128 if half and 64 < widest <= 128 and block_rows == 128 else 64
    elements = ceil_div(queries, block_rows) * ceil_div(size, block_columns) * (block_rows * block_columns + 4)
    if half and not _fits_registers(widest, block_rows):
        splits = max(1, min(ceil_div(key.shape[2], block_columns), _KEEPS_OUTPUTS // (batch * heads)))
        columns = sum(round_up(width, block_rows) for width in (size, value.shape[3]))
        elements += splits * block_columns * columns
    return batch * heads * round_up(elements, 4) * _FLOAT


def _for_each_head(heads: int, **shared: Like) -> dict[str, int]:
    """Buffers for gradients of keys and values that several heads share."""
    return {name: tensor.nbytes // tensor.shape[1] * heads for name, tensor in shared.items()}


def _fits_registers(widest: int, block_rows: int) -> bool:
    """``kOutputInRF``: kernels are compiled for heads of at most 32, 64, 128 and any number."""
    return next((most for most in (32, 64, 128) if widest <= most), 2**16) <= block_rows


def flash(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Where there are few blocks, keys are split among several, whose outputs are put together afterwards."""
    query, key = call.given("query"), call.given("key")
    batch, heads, queries, size = query.shape
    yield from (Result(0), Result(1))
    if call.given("dropout_p", 0.0) > 0:
        yield from holding({"state": 16}, (Result(3), Result(2)))
        return
    splits = _flash_splits(batch * heads * ceil_div(queries, 64), device.multiprocessors * 2, key.shape[2], size)
    part_bytes = splits * batch * heads * queries * _FLOAT
    parts = {"statistics of parts": part_bytes, "parts": part_bytes * _flash_width(size)} if splits > 1 else {}
    yield from (Take(name, nbytes) for name, nbytes in parts.items())
    yield from (Result(2), Result(3))
    yield from (Give(name) for name in parts)


def _flash_splits(blocks: int, places: int, keys: int, size: int) -> int:
    """``num_splits_heuristic``: as few as come near the best use of the device."""
    if blocks >= 0.8 * places:
        return 1
    columns = ceil_div(keys, 256 if size <= 64 else 128 if size <= 128 else 64)
    eligible = [
        splits
        for splits in range(1, min(128, places, columns) + 1)
        if splits == 1 or ceil_div(columns, splits) != ceil_div(columns, splits - 1)
    ]
    waves = {splits: blocks * splits / places for splits in eligible}
    use = {splits: wave / math.ceil(wave) for splits, wave in waves.items()}
    return next(splits for splits in eligible if use[splits] >= 0.85 * max(use.values()))


def flash_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Gradients of queries are accumulated in 32 bits; shared keys and values get one for every head first."""
    gradient, query, key, output = (call.given(name) for name in ("grad_out", "query", "key", "out"))
    batch, heads, queries, size = query.shape
    row_bytes = batch * heads * round_up(queries, 128) * _FLOAT
    copied = copies(gradient=gradient.transposed(1, 2), output=output.transposed(1, 2))
    buffers = {"sums": row_bytes, "queries": row_bytes * _flash_width(size)}
    if key.shape[1] != heads:
        buffers |= _for_each_head(heads, keys=key, values=key)
    yield from holding(copied, [*results(call), *holding(buffers)])


def _flash_width(size: int) -> int:
    """``head_size_rounded``."""
    return round_up(size, 32 if size <= 128 else 64)


def cudnn_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """The frontend's own: gradients of queries in 32 bits, and a sum for each row. cuDNN's plan may add more."""
    query = call.given("query")
    yield from results(call)
    yield from holding({"workspace": (query.count + query.count // query.shape[3]) * _FLOAT})
