"""What products of matrices allocate on CUDA beyond their results: the workspace that torch hands to cuBLAS.

Up to torch 2.14 the first product in a thread allocates one for good. Since then each product has its own, which is
freed as it ends, unless ``TORCH_CUBLAS_WORKSPACE_CACHE=1`` asks for the former.

Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of PyTorch, and ``CublasLtWorkspace`` in
``aten/src/ATen/cuda/detail/CublasLtUtils.h``; without ``CUBLAS_WORKSPACE_CONFIG`` and ``CUBLASLT_WORKSPACE_SIZE``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import torch

from advisor.predict.prediction import CudaDevice
from advisor.predict.workspace.call import Like, Step, WorkspaceCall, holding, results

__all__ = ["PRODUCTS", "cublas_workspace_bytes", "keeps_workspaces"]

_HOPPER = (9, 0)
_OF_EACH_PRODUCT = (2, 15)
_LIGHT_BYTES = 2**20
"""Of cuBLASLt, on every device."""
_HALVES = (torch.float16, torch.bfloat16)


def keeps_workspaces(version: str = torch.__version__, variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the workspace of a thread's first product stays, for all that follow."""
    known = tuple(int(part) for part in version.split(".")[:2])
    return known < _OF_EACH_PRODUCT or variables.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def cublas_workspace_bytes(device: CudaDevice) -> int:
    """What torch allocates for cuBLAS: in a thread for good, or with each product.

    On CUDA two threads multiply: the caller's, and that of the backward pass.

    Source: ``parseChosenWorkspaceSize``, for one stream.
    """
    return 32 * 2**20 if device.compute_capability >= _HOPPER else (2 * 4096 + 8 * 16) * 2**10


def _product(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """The result, copies of matrices that cuBLAS cannot read as they lie, and the workspace.

    Source: ``addmm_out_cuda_impl`` and ``bmm_out_cuda_impl`` in ``aten/src/ATen/native/cuda/Blas.cpp``.
    """
    yield from results(call)
    left, right = (call.given("mat1") or call.given("batch1") or call.given("self"), _right(call))
    outer = call.operator == "bmm.default" and left.shape[-1] == 1  # is no product of cuBLAS's
    if left.count and right.count and not outer:
        copied = {f"copy {place}": one.nbytes for place, one in enumerate((right, left)) if not _is_readable(one)}
        light = call.operator == "_scaled_mm.default" or (call.operator == "addmm.default" and _is_light(call))
        yield from holding({**copied, "workspace": _LIGHT_BYTES if light else cublas_workspace_bytes(device)})


def _right(call: WorkspaceCall) -> Like:
    found: Like = call.given("mat2") or call.given("batch2")
    return found


def _is_readable(matrix: Like) -> bool:
    """Whether rows or columns lie one after another. Source: ``prepare_matrix_for_cublas`` there."""
    (rows, columns), (by_row, by_column) = matrix.shape[-2:], matrix.strides[-2:]
    return (
        rows == columns == 1
        or (by_column == 1 and by_row >= max(1, columns))
        or (by_row == 1 and by_column >= max(1, rows))
    )


def _is_light(call: WorkspaceCall) -> bool:
    """Whether cuBLASLt adds what is to be added, in one kernel. Source: ``isInputCompliesAddmmCudaLt`` there."""
    added, (inner, columns), [result] = call.given("self"), call.given("mat2").shape, call.results
    if inner == 1 or columns == 1 or not added.contiguous:
        return False
    beta = call.given("beta", 1)
    if added.shape[-1:] == (columns,) and added.count == columns:
        return bool(beta == 1)
    return beta != 0 and added.shape == result.shape and result.dtype in _HALVES


def _of_vectors(call: WorkspaceCall, device: CudaDevice) -> Iterator[Step]:
    """Of a matrix and a vector, or of two vectors. Source: ``aten/src/ATen/native/cuda/Blas.cpp``."""
    yield from results(call)
    if call.given("self").count:
        yield from holding({"workspace": cublas_workspace_bytes(device)})


PRODUCTS: Mapping[str, Callable[[WorkspaceCall, CudaDevice], Iterator[Step]]] = {
    **{f"{name}.default": _product for name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")},
    **{f"{name}.default": _of_vectors for name in ("addmv", "mv", "dot")},
}
"""What cuBLAS computes, and what happens meanwhile if each product has a workspace of its own."""
