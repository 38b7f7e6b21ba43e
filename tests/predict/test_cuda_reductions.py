"""What torch's reductions take inside on an H100: every figure is one that its allocator was asked for."""

from __future__ import annotations

import pytest

from advisor.predict.prediction import CudaDevice
from advisor.predict.workspace.reduction_buffers import Accumulation, reduction_buffers

H100 = CudaDevice(compute_capability=(9, 0), multiprocessors=132)
FLOAT = Accumulation(item_bytes=4, partial_bytes=4)


def contiguous(*sizes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    return sizes, tuple(reversed(strides))


@pytest.mark.parametrize(
    ("sizes", "reduced", "buffers"),
    [
        ((1024, 8192), [0], (67_108_864, 256)),  # the bias of a head
        ((3072, 8192), [0], (138_412_032, 256)),
        ((1024, 384), [0], (3_145_728, 12)),
        ((1024, 1536), [0], (12_582_912, 48)),
        ((256, 4, 1152), [0, 1], (9_437_184, 36)),
        ((3072, 384), [0], (9_437_184, 12)),
        ((2049, 384), [0], (6_488_064, 12)),
        ((16384, 64), [0], (2_097_152, 4)),
    ],
)
def test_a_sum_over_rows_has_parts_of_several_blocks(
    sizes: tuple[int, ...], reduced: list[int], buffers: tuple[int, int]
) -> None:
    assert reduction_buffers(*contiguous(*sizes), reduced, FLOAT, H100) == buffers


@pytest.mark.parametrize(
    ("sizes", "reduced"),
    [((8192, 1024), [1]), ((16, 384), [0]), ((4, 6, 256, 64), [3]), ((0, 5), [0]), ((), [])],
)
def test_rows_of_their_own_and_few_rows_have_none(sizes: tuple[int, ...], reduced: list[int]) -> None:
    assert reduction_buffers(*contiguous(*sizes), reduced, FLOAT, H100) == (0, 0)


def test_dimensions_that_are_one_to_memory_are_one() -> None:
    apart = reduction_buffers(*contiguous(4, 256, 1536), [0, 1], FLOAT, H100)
    assert apart == reduction_buffers(*contiguous(1024, 1536), [0], FLOAT, H100)


def test_a_layout_with_channels_last_is_summed_as_rows_are() -> None:
    sizes, strides = (12, 384, 14, 14), (75_648, 1, 5376, 384)
    assert reduction_buffers(sizes, strides, [0, 2, 3], FLOAT, H100) == (7_274_496, 12)


def test_a_smaller_device_has_fewer_blocks() -> None:
    small = CudaDevice(compute_capability=(8, 9), multiprocessors=58)
    here = reduction_buffers(*contiguous(65_536, 384), [0], FLOAT, H100)[0]
    assert 0 < reduction_buffers(*contiguous(65_536, 384), [0], FLOAT, small)[0] < here


def test_more_than_two_gibibytes_are_left_to_torch() -> None:
    assert reduction_buffers(*contiguous(2**20, 1024), [0], FLOAT, H100) == (0, 0)
