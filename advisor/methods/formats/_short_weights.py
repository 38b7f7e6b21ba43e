"""A model whose parameters have 16 bits, and what must then stay in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from advisor.errors import MethodRefusedError
from advisor.training.training import Training

__all__ = ["clip_grad_norm_", "shorten"]

_LOSS_NAMES = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
    gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss
    soft_margin_loss triplet_margin_loss
"""
_LOSSES = frozenset(getattr(functional, name) for name in _LOSS_NAMES.split())

_LOOKS = 8
"""Calls in which counts are looked for."""


def shorten(training: Training, dtype: torch.dtype) -> int:
    """Bring a model's parameters into bfloat16 or float16, and let it be trained in it; returns how many were not.

    Normalizations with running statistics stay in float32: these move by a tenth or less of a difference. Buffers of
    the saved state are shortened, since they meet activations, except those that the first forward pass writes to.
    Others (``persistent=False``) stay: rotary frequencies are among them, for which bfloat16 is too coarse. Floats are
    cast where the model is called; torch's losses are computed in float32. The training must not have an optimizer yet;
    its parameters stay the same objects.

    Raises:
        MethodRefusedError: The model has no parameter outside such normalizations.
    """
    model = training.model
    changed, short = 0, 0
    shortened: list[_Shortened] = []
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            continue
        for parameter in module.parameters(recurse=False):
            if _is_float(parameter) and parameter.dtype != dtype:
                parameter.data = parameter.data.to(dtype)
                changed += 1
            short += parameter.dtype == dtype
        for name, buffer in module.named_buffers(recurse=False):
            if _is_float(buffer) and name not in module._non_persistent_buffers_set:
                setattr(module, name, buffer.to(dtype))
                if buffer.dtype != dtype:
                    shortened.append(_Shortened(module, name, buffer))
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants them in one piece of memory.
    if not short:
        raise MethodRefusedError(
            f"{type(model).__name__} has no parameters in a float format, except in normalizations with running "
            "statistics, which stay float32"
        )
    if shortened:
        lengthen = _LengthenWritten(shortened)
        model.register_forward_pre_hook(lengthen.before)
        model.register_forward_hook(lengthen.after)
        training.after_forward.append(lengthen.after_loss)
    model.register_forward_pre_hook(_CastCall(dtype), with_kwargs=True)
    training.forward_contexts.append(_LossesInFloat32)
    return changed


class _Shortened(NamedTuple):
    module: nn.Module
    name: str
    buffer: torch.Tensor


class _LengthenWritten:
    """Restores the format of buffers that the first forward pass in training mode, or its loss, writes to.

    In bfloat16 a counter stops at 256, and a mean does not move by a thousandth. Writes through ``.data`` change no
    version, so contents are compared. A class, so that a model with these hooks can be pickled.
    """

    def __init__(self, shortened: list[_Shortened]) -> None:
        self._shortened = shortened
        self._known: list[tuple[_Shortened, torch.Tensor, int, torch.Tensor | None]] = []

    def before(self, module: nn.Module, args: Any) -> None:
        """Remember every buffer with its version and contents."""
        if module.training and not self._known:
            tracing = torch.compiler.is_compiling()
            self._known = [
                (one, now, now._version, None if tracing else now.detach().clone())
                for one in self._shortened
                if (now := one.module._buffers.get(one.name)) is not None
            ]

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._known:
            return
        left = []
        for known in self._known:
            one, buffer, version, contents = known
            now = one.module._buffers.get(one.name)
            if now is None or (now is buffer and now._version == version and _equal(now, contents)):
                left.append(known)
            else:
                with torch.no_grad():
                    setattr(one.module, one.name, _lengthened(now, one.buffer))
        self._known, self._shortened = left, [known[0] for known in left]

    def after_loss(self, loss: torch.Tensor) -> None:
        """Lengthen those that the loss wrote to; later passes write to the same ones."""
        if self._known:
            self.after(self._shortened[0].module, (), loss)
            self._shortened, self._known = [], []


def _equal(now: torch.Tensor, contents: torch.Tensor | None) -> bool:
    return contents is None or isinstance(now, FakeTensor) or bool(torch.equal(now, contents))


def _lengthened(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """A buffer in its own format: what it was before, moved by as much as it has moved."""
    own = now.to(before.dtype)
    if now.shape != before.shape:
        return own
    old = before.to(now.device)
    moved = old + (own - old.to(now.dtype).to(before.dtype))
    return torch.where(torch.isfinite(moved), moved, own)


def clip_grad_norm_(
    parameters: list[torch.nn.Parameter], max_norm: float, factor: torch.Tensor | None = None
) -> torch.Tensor:
    """Clip 16-bit gradients in place to a total 2-norm of the true ones, which are ``factor`` times as large.

    The norm is computed in float32, for in float16 it would be infinite; returns that before clipping.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    device = gradients[0].device
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32).to(device) for gradient in gradients]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if factor is not None:
        total = total * factor.to(device)
    share = (max_norm / (total + 1e-6)).clamp(max=1.0)  # As in torch's own clipping.
    for gradient in gradients:
        gradient.mul_(share.to(gradient.device))
    return total


class _LossesInFloat32(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOSSES:
            args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, torch.float32), (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class _CastCall:
    """Casts the floats that a model is called with, except counts. A class, so that the model can still be pickled.

    A vector of whole numbers that the format cannot hold, such as the time steps of diffusion, is no activation:
    1,001 is 1,000 in bfloat16. Counts are looked for only in the first calls, since that waits for a GPU.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._counts: set[str] = set()
        self._looks = _LOOKS

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            self._looks -= self._looks > 0
        return pytree.tree_map_with_path(self._cast, (args, kwargs))

    def _cast(self, path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not _is_float(leaf):
            return leaf
        short = leaf.to(self._dtype)
        if leaf.dim() > 1 or leaf.requires_grad:
            return short
        place = pytree.keystr(path)
        may_look = self._looks and not torch.compiler.is_compiling() and not isinstance(leaf, FakeTensor)
        if may_look and bool((leaf == leaf.round()).all() & (short != leaf).any()):
            self._counts.add(place)
        return leaf if place in self._counts else short


def _is_float(tensor: torch.Tensor) -> bool:
    """Whether it is a float that may be shortened: narrower ones hold something else."""
    return tensor.is_floating_point() and tensor.dtype.itemsize >= 2


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and _is_float(leaf) else leaf
