"""The work of one operator, from its schema and its tensors, which may be fake."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.utils.flop_counter import flop_registry

from advisor.measure.memory.storages import tensors_in
from advisor.phase import Phase
from advisor.predict.step_work import Kind, Work
from advisor.predict.trace.fake_device import device_of
from advisor.predict.trace.recurrent import is_recurrent

__all__ = ["as_on_cuda", "operator_work"]

_ELSEWHERE = {"prim", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd"}
"""Namespaces of what is no operator of the device: communication takes the time of the links and of the others."""

_NO_KERNEL = {"_local_scalar_dense", "record_stream", "requires_grad_", "is_pinned"}
"""Operators that neither read nor write, beside the views, which are recognized by what they return."""

_OVERWRITING = {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
"""In-place operators that do not read what was there before, also those on lists (``_foreach_zero_``)."""

_PICKED_FROM = {
    ("embedding", "weight"),
    ("gather", "self"),
    ("index", "self"),
    ("index_select", "self"),
    ("nll_loss_forward", "self"),
    ("nll_loss2d_forward", "self"),
}
"""Tables of which as much is read as is returned."""

_SHAPE_ONLY = {
    ("nll_loss_backward", "self"),
    ("nll_loss2d_backward", "self"),
    ("max_pool2d_with_indices_backward", "self"),
}
"""Arguments of which only the shape is looked at."""

_SCATTERING = {"index_put_", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_"}
"""In-place operators that touch no more of their first argument than the others bring."""

_FUNCTIONS = {
    *("exp", "exp_", "log", "log_", "pow", "pow_", "tanh", "tanh_", "sigmoid", "sigmoid_", "erf", "sin", "cos"),
    *("gelu", "gelu_backward", "silu", "silu_", "silu_backward", "softplus", "elu", "mish", "logsumexp"),
    *("_softmax", "_log_softmax", "_log_softmax_backward_data"),
}
"""Operators that compute an exponential or the like of every element: on a CPU that takes longer than to move it."""

_RANDOM = {
    *("bernoulli", "bernoulli_", "native_dropout", "exponential_", "normal_", "uniform_", "random_", "randperm"),
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like"),
}

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward
_SAME_FORMULA = {
    "_scaled_dot_product_flash_attention_for_cpu": _FLASH,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _FLASH_BACKWARD,
    "_scaled_dot_product_fused_attention_overrideable": _FLASH,
    "_scaled_dot_product_fused_attention_overrideable_backward": _FLASH_BACKWARD,
}
"""Operators that torch's registry does not have -> one with the same arguments in front that it has."""


def operator_work(
    operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, phase: Phase
) -> Work | None:
    """The work of a call; ``None`` where nothing is read or written: views, empty tensors, questions about a tensor."""
    name = operator._schema.name.split("::")[-1]
    if operator.namespace in _ELSEWHERE or name in _NO_KERNEL or name.startswith(("empty", "new_empty")):
        return None
    if torch.Tag.inplace_view in operator.tags:
        return None
    given = list(_given(operator, args, kwargs))
    known = {tensor.untyped_storage()._cdata for _, tensors, _ in given for tensor in tensors}
    fresh = [tensor for tensor in tensors_in(result) if tensor.untyped_storage()._cdata not in known]
    if not fresh and not operator._schema.is_mutable:
        return None
    fresh_bytes = sum(_touched_bytes(tensor) for tensor in fresh)
    read, written = _read_and_written(name, given, fresh_bytes, kwargs)
    tensors = [tensor for _, some, _ in given for tensor in some]
    kind = _kind(name, [*tensors, *fresh])
    product = kind in (Kind.MATRIX, Kind.CONVOLUTION, Kind.ATTENTION)
    return Work(
        phase=phase,
        kind=kind,
        operator=name,
        number_format=_number_format(kind, tensors or fresh),
        launches=_launches(name, given) if tensors or fresh else 0,
        flops=_flops(operator, name, args, kwargs, result) if product else 0,
        read_bytes=read,
        written_bytes=written,
        fresh_bytes=fresh_bytes,
    )


def as_on_cuda(work: Work) -> Work:
    """The same work on a CUDA device, where float32 products may be in TF32; the counted tensors were a CPU's."""
    if work.number_format == "float32" and _tf32(work.kind):
        return msgspec.structs.replace(work, number_format="tf32")
    return work


def _touched_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements behind a tensor: those of an expanded dimension lie at the same place."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 else min(size, 1)
    # Windows that overlap show elements more than once.
    return min(count * tensor.element_size(), tensor.untyped_storage().nbytes())


_Given = tuple[Any, list[torch.Tensor], bool]
"""An argument's schema, the tensors given for it, and whether it is written to."""


def _given(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[_Given]:
    for position, argument in enumerate(operator._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors = list({id(tensor): tensor for tensor in tensors_in(value)}.values())
        if tensors:
            # Schemas of fused optimizers let gradients be written because they may be unscaled on the way.
            unscaling = argument.name != "grads" or kwargs.get("grad_scale") is not None
            yield argument, tensors, argument.alias_info is not None and argument.alias_info.is_write and unscaling


def _read_and_written(
    name: str, given: Sequence[_Given], fresh_bytes: int, kwargs: Mapping[str, Any]
) -> tuple[int, int]:
    read = written = 0
    overwriting = name.removeprefix("_foreach_") in _OVERWRITING
    brought = sum(_touched_bytes(tensor) for _, tensors, writes in given for tensor in tensors if not writes)
    seen: set[int] = set()
    for argument, tensors, writes in given:
        if (name, argument.name) in _SHAPE_ONLY:
            continue
        # The same tensor twice (``x * x``) is read once.
        size = sum(_touched_bytes(tensor) for tensor in tensors if id(tensor) not in seen)
        seen |= {id(tensor) for tensor in tensors}
        if (name, argument.name) in _PICKED_FROM:
            size = fresh_bytes
        if writes and name in _SCATTERING:
            size = min(size, brought)
        written += size if writes else 0
        if not writes or not (overwriting or argument.kwarg_only):  # what is written as ``out=`` is not read
            read += size
    return read, written


def _kind(name: str, tensors: Sequence[torch.Tensor]) -> Kind:
    devices = [device_of(tensor).type for tensor in tensors]
    if name in ("_to_copy", "copy_", "_foreach_copy_") and len(set(devices)) > 1:
        # ``copy_`` names its target first, ``_to_copy`` its source.
        target = devices[-1] if name == "_to_copy" else devices[0]
        return Kind.TO_HOST if target == "cpu" else Kind.TO_DEVICE
    if "convolution" in name or "_conv" in name:
        return Kind.CONVOLUTION
    if "attention" in name:
        return Kind.ATTENTION
    if is_recurrent(name):
        return Kind.MATRIX
    if name in _FUNCTIONS:
        return Kind.FUNCTION
    if name in _RANDOM:
        return Kind.RANDOM
    return Kind.MATRIX if getattr(torch.ops.aten, name, None) in flop_registry else Kind.OTHER


def _number_format(kind: Kind, tensors: Sequence[torch.Tensor]) -> str:
    if not tensors:
        return ""
    tensor = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "float32" and device_of(tensor).type == "cuda" and _tf32(kind):
        return "tf32"
    return "float8" if name.startswith("float8") else name


def _tf32(kind: Kind) -> bool:
    """Whether float32 products are let be computed in TF32 in this process."""
    if kind is Kind.CONVOLUTION:
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]
    return kind is Kind.MATRIX and bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def _launches(name: str, given: Sequence[_Given]) -> int:
    """One for an operator; on a list on the CPU one for each tensor, elsewhere (nearly) one for all."""
    if given and name.startswith("_foreach_"):
        tensors = given[0][1]
        return len(tensors) if device_of(tensors[0]).type == "cpu" else 1
    return 1


def _flops(
    operator: torch._ops.OpOverload, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> int:
    if is_recurrent(name):
        weights = [tensor for tensor in tensors_in(args[1:]) if tensor.dim() == 2 and name.startswith("_cudnn")]
        samples, passes = math.prod(args[0].shape[:-1]), 2 if name.endswith("_backward") else 1
        return int(2 * passes * samples * sum(one.numel() for one in weights or args[1:3]))
    formula = flop_registry.get(_SAME_FORMULA.get(name, operator.overloadpacket))
    if formula is None:
        return 0
    if name == "convolution_backward" and args[9] > 1:
        # The registry's count for the weight's gradient takes no notice of groups: it is as much as for the input's.
        *others, mask = args[:11]
        of_input = formula(*others, [mask[0], False, False], out_val=result)
        of_weight = formula(*others, [False, mask[1], False], out_val=result)
        return int(of_input + of_weight // args[9])
    return int(formula(*args, **kwargs, out_val=result))
