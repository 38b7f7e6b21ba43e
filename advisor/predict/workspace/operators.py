"""What an operator allocates on CUDA beyond its results, and in which order it allocates these.

A trace sees results, in the order of their list. A buffer that is freed before the operator returns counts in the peak
all the same, and leaves a gap for which the next tensors may be too large.

Every rule follows the source of PyTorch that it names. Left out are what cuDNN's plans allocate, which only cuDNN
knows, and the temporary storage of scans, which is a few KiB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from advisor.predict.prediction import CudaDevice
from advisor.predict.whole_numbers import ceil_div, round_up
from advisor.predict.workspace.attention_buffers import (
    cudnn_backward,
    efficient,
    efficient_backward,
    flash,
    flash_backward,
    seeds_first,
)
from advisor.predict.workspace.call import Give, Like, Result, Step, Take, WorkspaceCall, copies, holding, results
from advisor.predict.workspace.convolution import convolution, convolution_backward
from advisor.predict.workspace.products import PRODUCTS, keeps_workspaces
from advisor.predict.workspace.reduction_buffers import Accumulation, partial_results

__all__ = ["has_workspace", "steps_of"]

_FLOAT = 4
_PAIR = 16
"""Of a value and its index, or of the parts of a variance."""
_HALVES = (torch.float16, torch.bfloat16)

_Rule = Callable[[WorkspaceCall, CudaDevice], Iterator[Step]]


def has_workspace(operator: str) -> bool:
    """Whether there is a rule for an operator, with the torch that runs."""
    return operator in _RULES and not (operator in PRODUCTS and keeps_workspaces())


@functools.lru_cache(maxsize=2**14)
def steps_of(call: WorkspaceCall, device: CudaDevice) -> tuple[Step, ...]:
    """What happens while an operator runs, in order."""
    return tuple(_RULES[call.operator](call, device))


def _sum(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """``sum`` and ``mean``: what is not of the result's type is converted before, but for 16 bits to 32 bits.

    Source: ``make_reduction_from_out_ty`` in ``aten/src/ATen/native/ReduceOpsUtils.h``, and
    ``aten/src/ATen/native/cuda/ReduceSumProdKernel.cu``.
    """
    given, [result] = call.given("self"), call.results
    yield Result(0)
    converted = {}
    if given.dtype is not result.dtype and not (given.dtype in _HALVES and result.dtype is torch.float32):
        given = Like(given.shape, given.strides, result.dtype)  # a dense tensor keeps its order of dimensions
        converted = {"converted": given.nbytes}
    kind = Accumulation.of_sum(given.dtype.itemsize)
    yield from holding(converted, partial_results(given, _reduced(call, given), kind, device))


def _reduction(partial_bytes: int = 0, vector: int = 4) -> _Rule:
    """One with partial results of so many bytes; by default of an input's."""

    def rule(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
        given = call.given("self")
        yield from results(call)
        kind = Accumulation(given.dtype.itemsize, partial_bytes or given.dtype.itemsize, vector)
        yield from partial_results(given, _reduced(call, given), kind, device)

    return rule


def _reduced(call: WorkspaceCall, given: Like) -> tuple[int, ...]:
    dims = call.given("dim")
    if dims is None or dims == ():
        return tuple(range(len(given.shape)))
    return (dims,) if isinstance(dims, int) else tuple(dims)


def _dropout(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """The mask comes first. Source: ``dropout_cuda`` in ``aten/src/ATen/native/cuda/Dropout.cu``."""
    yield from (Result(1), Result(0))


def _softmax_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """The product of gradient and output. Source: ``softmax_backward_cuda_out`` in ``cuda/SoftMax.cu``."""
    yield Result(0)
    yield from holding({"product": call.given("grad_output").nbytes})


def _layer_norm(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """What is not contiguous is copied. Source: ``layer_norm_cuda`` in ``cuda/layer_norm_kernel.cu``."""
    yield from holding(copies(input=call.given("input")), results(call))


_MANY_ROWS, _ROWS_OF_A_BLOCK, _MOST_PARTS = 2**16, 32, 2**20


def _layer_norm_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Likewise; for many short rows, gradients of the weights are summed in two steps.

    Source: ``layer_norm_backward_cuda`` and ``LaunchAndAllocGammaBetaBackwardKernel`` there.
    """
    given, gradient, weight = (call.given(name) for name in ("input", "grad_out", "weight"))
    parts = 0 if weight is None else _parts(given.count // weight.count, weight.count, device)
    if not parts:
        yield from holding(copies(input=given), [*results(call), *holding(copies(gradient=gradient))])
        return
    of_parts = Like((parts, weight.count), (weight.count, 1), weight.dtype)
    partials = [*partial_results(of_parts, (0,), Accumulation(weight.dtype.itemsize, _FLOAT), device)]
    # A sum takes the place of what was allocated for it.
    sums: list[Step] = [Result(1), *partials, Give("scale"), Result(2), *partials, Give("offset")]
    inside: list[Step] = [Result(0), Take("scale", weight.nbytes), Take("offset", weight.nbytes)]
    inside += holding({"scales": of_parts.nbytes, "offsets": of_parts.nbytes}, sums)
    yield from holding(copies(input=given, gradient=gradient), inside)


def _parts(rows: int, columns: int, device: CudaDevice) -> int:
    """Parts into which the rows are divided; 0 where there are too few of them, or blocks enough without."""
    if rows <= _MANY_ROWS or columns // 32 >= device.multiprocessors / 2:
        return 0
    return min(ceil_div(rows, _ROWS_OF_A_BLOCK), _MOST_PARTS // columns)


_FEW_INDICES, _FEW_ROWS, _ROWS_OF_A_THREAD = 3072, 128, 10


def _embedding_backward(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Many indices are sorted, and the gradients of equal ones summed in pieces of ten.

    Source: ``embedding_dense_backward_cuda`` in ``cuda/Embedding.cu``, and ``cuda/EmbeddingBackwardKernel.cu``.
    """
    gradient, indices, rows = call.given("grad_output"), call.given("indices"), call.given("num_weights")
    inside: Iterable[Step] = [Result(0)]
    if indices.count > _FEW_INDICES or call.given("scale_grad_by_freq"):
        item = indices.dtype.itemsize
        segments = min(indices.count, rows)
        pieces = indices.count // _ROWS_OF_A_THREAD + segments
        width = gradient.shape[-1] * max(gradient.dtype.itemsize, _FLOAT) if rows > _FEW_ROWS else item
        sort = holding({"range": indices.nbytes, "sort": _sort_bytes(indices.count, item, rows.bit_length())})
        sums = {"in segment": segments * item, "before segment": segments * item, "piece count": 8}
        sums |= {"pieces": pieces * item, "sums": pieces * width}
        counted = [*holding({"keys": indices.nbytes}), *holding(sums)]
        summed = holding({"segments": indices.nbytes, "segment count": 8}, counted)
        inside = holding({"sorted": indices.nbytes, "order": indices.nbytes}, [*sort, Result(0), *summed])
    yield from holding(copies(gradient=gradient, indices=indices), inside)


_DIGITS, _ITEMS_OF_A_BLOCK, _ALIGNMENT = 256, 4608, 256


def _sort_bytes(count: int, item: int, bits: int) -> int:
    """Temporary storage of a radix sort of pairs: a second copy, unless there is one pass, and counts for digits.

    Source: ``DispatchRadixSort::InvokeOnesweep`` of CUB; items of a block as its tuning has them for 8 bytes.
    """
    passes = ceil_div(bits, 8)
    second = 2 * round_up(count * item, _ALIGNMENT) if passes > 1 else 0
    blocks = ceil_div(count, _ITEMS_OF_A_BLOCK * 8 // item)
    return second + 8 * _DIGITS * passes + 4 * _DIGITS * blocks + _ALIGNMENT + _ALIGNMENT - 1


def _cumsum(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """What is not of the result's type is converted before. Source: ``cumsum`` in ``ReduceOps.cpp``."""
    [result] = call.results
    yield Result(0)
    if call.given("self").dtype is not result.dtype:
        yield from holding({"converted": result.nbytes})


def _roll(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Over one dimension after the other, each into new memory; none is given back before the last one is there.

    Source: ``roll_cuda`` in ``cuda/TensorTransformations.cu``, and ``roll_common`` in ``TensorTransformations.h``.
    """
    given = call.given("self")
    copied = copies(input=given)
    rolled = {f"rolled {place}": given.nbytes for place in range(len(call.given("dims", ())) - 1)}
    first, *others = holding(rolled, [Result(0)])
    yield from holding(copied, [first])
    yield from others


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("sum.default", "sum.dim_IntList", "mean.default", "mean.dim"), _sum),
    **dict.fromkeys(("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim"), _reduction(_FLOAT)),
    **dict.fromkeys(("amax.default", "amin.default", "max.default", "min.default"), _reduction()),
    **dict.fromkeys(("max.dim", "min.dim", "argmax.default", "argmin.default"), _reduction(_PAIR)),
    **dict.fromkeys(("var.correction", "var_mean.correction"), _reduction(_PAIR, vector=2)),
    "native_dropout.default": _dropout,
    "_softmax_backward_data.default": _softmax_backward,
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm_backward,
    "embedding_dense_backward.default": _embedding_backward,
    "cumsum.default": _cumsum,
    "roll.default": _roll,
    "convolution.default": convolution,
    "convolution_backward.default": convolution_backward,
    "_scaled_dot_product_efficient_attention.default": efficient,
    "_scaled_dot_product_efficient_attention_backward.default": efficient_backward,
    "_scaled_dot_product_flash_attention.default": flash,
    "_scaled_dot_product_flash_attention_backward.default": flash_backward,
    "_scaled_dot_product_cudnn_attention.default": seeds_first,
    "_scaled_dot_product_cudnn_attention_backward.default": cudnn_backward,
    **PRODUCTS,
}
