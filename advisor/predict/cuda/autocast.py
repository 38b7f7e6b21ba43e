"""Autocast of CPU tensors as CUDA has it: which operators compute in 16 bits, and which in 32.

A CPU keeps few operators in 32 bits; CUDA keeps powers, exponentials, sums, norms, softmax and losses there, so that
their results, and what they save for the backward pass, are twice as large. Matrix products are in 16 bits on both, by
torch's own kernels, which also keep the copies of weights.

Source: ``AT_FORALL_FP32`` and the lists beside it in ``aten/src/ATen/autocast_mode.h`` of PyTorch (its wheels have it).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["autocast_as_on_cuda"]

_aten: Any = torch.ops.aten
_KEY = "AutocastCPU"
_ONLY_KEY: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

_IN_32_BITS = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
_WITH_A_32_BIT_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
_IN_THE_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip
_IN_16_BITS = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
_SIMPLE_IN_16_BITS = ("addmv", "addr", "mv")
"""Of those, the ones that a CPU leaves as they are and that consist of no others."""

_OTHER_ON_A_CPU = (
    "cat", "stack", "index_copy", "conv1d.padding", "conv2d.padding", "conv3d.padding", "_addmm_activation",
    "_native_multi_head_attention", "mkldnn_rnn_layer", "binary_cross_entropy",
)  # fmt: skip
"""Not in CUDA's lists, but what a CPU does with them comes to the same."""

_HALF_TO_FLOAT = {"softmax.int": _aten._softmax.default, "log_softmax.int": _aten._log_softmax.default}
"""CUDA computes a float32 result of these from float16 without a copy of the input."""


def autocast_as_on_cuda(library: Any) -> None:
    """Have ``torch.autocast("cpu")`` follow CUDA's lists while this library of ``aten`` implementations lives."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*previously registered kernel", UserWarning)  # that is the purpose
        for name, kernel in _kernels().items():
            library.impl(name, kernel, _KEY)


def _kernels() -> dict[str, Any]:
    """By the name of the operator."""
    kernels: dict[str, Any] = {
        "norm.Scalar": _norm(_aten.norm.ScalarOpt_dtype),
        "norm.ScalarOpt_dim": _norm(_aten.norm.ScalarOpt_dim_dtype),
        **{name: _casting(name, lambda arguments: torch.float32) for name in _IN_32_BITS},
        **{name: _with_result(name) for name in _WITH_A_32_BIT_RESULT},
        **{name: _casting(name, _widest) for name in _IN_THE_WIDEST},
        **{name: _casting(name, lambda arguments: torch.get_autocast_dtype("cpu")) for name in _SIMPLE_IN_16_BITS},
    }
    # What a CPU has a rule for and CUDA has none goes through.
    for full in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
        name = full.removeprefix("aten::")
        if full != name and name not in kernels and name not in (*_IN_16_BITS, *_OTHER_ON_A_CPU):
            kernels[name] = torch.library.fallthrough_kernel
    return kernels


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _casting(name: str, chosen: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    operator = _operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_ONLY_KEY):
            dtype = chosen((args, kwargs))
            args, kwargs = tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _with_result(name: str) -> Callable[..., Any]:
    operator, from_half = _operator(name), _HALF_TO_FLOAT.get(name)
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_ONLY_KEY):
            given = dict(zip(names, args, strict=False)) | kwargs
            samples = given[names[0]]
            if _is_cast(samples) and given.get("dtype") is None:
                given["dtype"] = torch.float32
            if from_half is not None and (samples.dtype, given.get("dtype")) == (torch.float16, torch.float32):
                return from_half(samples, given["dim"], True)
            keywords = {argument.name for argument in operator._schema.arguments if argument.kwarg_only}
            positional = [given.pop(name) for name in names if name in given and name not in keywords]
            return operator(*positional, **given)

    return kernel


def _norm(operator: Any) -> Callable[..., Any]:
    def kernel(samples: torch.Tensor, p: Any = 2, *args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_ONLY_KEY):
            return operator(samples, p, *args, dtype=torch.float32 if _is_cast(samples) else samples.dtype)

    return kernel


def _widest(arguments: Any) -> torch.dtype:
    formats = {value.dtype for value in tree_leaves(arguments) if _is_cast(value)}
    return torch.float32 if torch.float32 in formats or not formats else next(iter(formats))


def _is_cast(value: Any) -> bool:
    """Whether autocast has a say: a tensor of floats that are no doubles."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )
