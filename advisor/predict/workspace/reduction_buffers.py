"""What a reduction allocates as workspace on CUDA: partial results of blocks that share an output.

A sum over many rows with few results, such as the gradient of a bias, would leave most of the device idle if each
result were one block's. So several blocks work on one, and put their partial results into a buffer.

Source: ``setReduceConfig`` and ``gpu_reduce_kernel`` in ``aten/src/ATen/native/cuda/Reduce.cuh`` of PyTorch (its wheels
have it), and ``reorder_dimensions`` and ``coalesce_dimensions`` in ``aten/src/ATen/TensorIterator.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from advisor.predict.prediction import CudaDevice
from advisor.predict.whole_numbers import ceil_div
from advisor.predict.workspace.call import Like, Step, holding

__all__ = ["Accumulation", "partial_results", "reduction_buffers"]

_WARP = 32
_MOST_THREADS = 512
"""``MAX_NUM_THREADS`` of a block, for all but complex numbers."""
_FEWEST_VALUES, _MOST_VALUES = 16, 256
"""``min_values_per_thread`` and ``max_values_per_thread``."""
_LARGEST_INDEX = 2**31 - 1


class Accumulation(NamedTuple):
    """How a kernel adds up.

    Attributes:
        item_bytes: Of an input (``scalar_t``).
        partial_bytes: Of a partial result (``arg_t``).
        vector: Inputs that a thread loads at once along the dimension that is reduced (``input_vec_size``).
    """

    item_bytes: int
    partial_bytes: int
    vector: int = 4

    @classmethod
    def of_sum(cls, item_bytes: int) -> Accumulation:
        """``sum`` and ``mean``, which add up in 32 bits at least."""
        return cls(item_bytes, max(item_bytes, 4), 8 if item_bytes == 2 else 4)


class _Dimension(NamedTuple):
    size: int
    output_stride: int
    input_stride: int


def partial_results(given: Like, reduced: Sequence[int], kind: Accumulation, device: CudaDevice) -> Iterator[Step]:
    """What a reduction allocates and frees, in order."""
    partials, counters = reduction_buffers(given.shape, given.strides, reduced, kind, device)
    return holding({"partial results": partials, "counters": counters} if partials else {})


def reduction_buffers(
    sizes: Sequence[int], strides: Sequence[int], reduced: Sequence[int], kind: Accumulation, device: CudaDevice
) -> tuple[int, int]:
    """Bytes of the partial results and of the counters beside them; zeros where each result is one block's.

    Inputs of more than 2 GiB, which torch reduces in several parts, are taken to need none.
    """
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 in sizes or extent * kind.item_bytes > _LARGEST_INDEX or math.prod(sizes) > _LARGEST_INDEX:
        return 0, 0
    dimensions = _coalesced(_in_order(sizes, strides, reduced))
    inner = [one for one in dimensions if not one.output_stride]
    outer = [one for one in dimensions if one.output_stride]
    inputs, outputs = math.prod(one.size for one in inner), math.prod(one.size for one in outer)
    along_rows = not outer or (bool(inner) and inner[0].input_stride < outer[0].input_stride)
    width, height = (inputs, outputs) if along_rows else (outputs, inputs)
    fastest = (inner if along_rows else outer)[0].input_stride if dimensions else 1
    vector = 1
    if fastest == 1:
        if along_rows and width >= 128 and len(inner) == 1:
            width //= kind.vector
        elif not along_rows:
            vector = _vector_of_outputs(dimensions, len(inner))
            width //= vector
    block_width, block_height = _block(width, height, _MOST_THREADS // vector)
    step_input = block_width if along_rows else 1
    step_output = 1 if along_rows else block_width
    splits_over_warps = ceil_div(inputs, step_input) >= min(block_height * 16, _MOST_VALUES)
    if splits_over_warps:
        step_input *= block_height
    else:
        step_output *= block_height
    target = device.multiprocessors * (device.threads_per_multiprocessor // (block_width * block_height))
    grid, values = ceil_div(outputs // vector, step_output), ceil_div(inputs, step_input)
    if not splits_over_warps or values < _MOST_VALUES or grid > target:
        return 0, 0
    fewest, most = ceil_div(values, _MOST_VALUES), ceil_div(values, _FEWEST_VALUES)
    blocks = min(max(ceil_div(target, grid), fewest), most)
    if blocks <= 1:
        return 0, 0
    partials = kind.partial_bytes * outputs * blocks
    return partials if along_rows else partials * block_width * vector, 4 * grid


def _in_order(sizes: Sequence[int], strides: Sequence[int], reduced: Sequence[int]) -> list[_Dimension]:
    """Dimensions as an iterator goes through them: reduced ones first, and the fastest of each kind before others."""
    gone = {dim % len(sizes) for dim in reduced} if sizes else set()
    dimensions, stride = [], 1
    for dim in reversed(range(len(sizes))):
        dimensions.append(_Dimension(sizes[dim], 0 if dim in gone else stride, strides[dim]))
        stride *= 1 if dim in gone else sizes[dim]
    for place in range(1, len(dimensions)):
        here = place
        for before in reversed(range(place)):
            order = _compare(dimensions[before], dimensions[here])
            if order > 0:
                dimensions[before], dimensions[here] = dimensions[here], dimensions[before]
                here = before
            elif order < 0:
                break
    return dimensions


def _compare(one: _Dimension, other: _Dimension) -> int:
    """Positive where the other goes first, negative where it must not; 0 leaves it open."""
    if (one.output_stride == 0) is not (other.output_stride == 0):
        return 1 if other.output_stride == 0 else -1
    for mine, others in ((one.output_stride, other.output_stride), (one.input_stride, other.input_stride)):
        if mine == 0 or others == 0:
            continue
        if mine != others:
            return -1 if mine < others else 1
        if one.size > other.size:
            return 1
    return 0


def _coalesced(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    """Neighbours that are one dimension to both tensors become one."""
    found: list[_Dimension] = []
    for one in dimensions:
        if not found:
            found.append(one)
            continue
        size, output_stride, input_stride = found[-1]
        if size == 1:
            found[-1] = one
        elif one.size == 1 or (size * output_stride, size * input_stride) == one[1:]:
            found[-1] = found[-1]._replace(size=size * one.size)
        else:
            found.append(one)
    return [] if [one.size for one in found] == [1] else found


def _vector_of_outputs(dimensions: Sequence[_Dimension], place: int) -> int:
    """``get_output_vec_size``: results that a thread works on at once."""
    vector = 4
    others = [one.input_stride for position, one in enumerate(dimensions) if position != place]
    while any(number % vector for number in (dimensions[place].size, *others)):
        vector //= 2
    return vector


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """``set_block_dimension``."""
    wide, high = (_power_of_two(size) if size < most else most for size in (width, height))
    block_width = min(wide, _WARP)
    block_height = min(high, most // block_width)
    return min(wide, most // block_height), block_height


def _power_of_two(number: int) -> int:
    """The largest that is not above it, and at least 1."""
    return 1 << max(0, number.bit_length() - 1)
