"""Linear layers that keep a random projection of their input for the gradient of their weight."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from advisor.errors import MethodRefusedError
from advisor.methods.activations.linear_layers import CONV1D, no_linear
from advisor.training.replaced_forward import replace_forward
from advisor.training.state_part import StatePart
from advisor.training.structure import module_counts
from advisor.training.unsaved import Unsaved

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["RandomizedLinears", "project"]

_AT_ONCE = 2**22
"""Random signs that exist at a time: all of them would be rows times kept rows."""

_SEED_STRIDE = 1_000_003
"""Apart enough that the seeds of two processes never meet: no training has as many passes on one rank."""


def project(rows: torch.Tensor, kept: int, seed: int) -> torch.Tensor:
    """``S^T rows`` for a matrix of random signs whose ``S S^T`` is the identity on the average.

    Args:
        rows: ``[n, width]``.
        kept: Number of columns of S.
        seed: What its signs are drawn from; two calls with equal seeds, n and devices use the same S.

    Returns:
        ``[kept, width]``, in the format of ``rows``.
    """
    # A generator of its own: the model's dropout must draw what it draws in plain training.
    generator = None if isinstance(rows, FakeTensor) else torch.Generator(rows.device).manual_seed(seed)
    scale: float = kept**-0.5
    result: torch.Tensor | None = None
    parts = torch.split(rows, max(1, _AT_ONCE // kept))
    # Of fake rows two parts say all there is to know: their memory is used again for those that follow.
    for part in parts[:2] if isinstance(rows, FakeTensor) else parts:
        signs = torch.randint(0, 2, (kept, part.size(0)), generator=generator, device=rows.device, dtype=torch.int8)
        product = (signs.to(rows.dtype) * (2 * scale) - scale) @ part
        result = product if result is None else result + product
    assert result is not None, "there is at least one row"
    return result


class _Randomized(torch.autograd.Function):
    """``plain(values)``, with an exact gradient of the input and an unbiased one of the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        plain: Callable[[torch.Tensor], torch.Tensor],
        projected: Callable[[torch.Tensor, torch.dtype], tuple[torch.Tensor, int]],
        transposed: bool,
    ) -> torch.Tensor:
        """``values [..., inputs]`` -> ``[..., outputs]``."""
        output = plain(values)
        kept, seed = projected(values, output.dtype)
        # Saved as a tensor too, for comparison with a recomputation's draw, which saves this tensor anew.
        ctx.save_for_backward(weight, kept, torch.tensor(seed))
        ctx.seed, ctx.transposed = seed, transposed
        ctx.shape, ctx.dtype = values.shape, values.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gradients of the input, the weight and the bias."""
        weight, kept, seed = ctx.saved_tensors
        if not isinstance(seed, FakeTensor) and int(seed) != ctx.seed:
            raise RuntimeError(
                "randomized_linear: a recomputation drew other numbers than its forward pass, because another forward "
                "pass came between; run each backward pass before the next forward pass"
            )
        of_values = of_weight = of_bias = None
        rows = gradient.reshape(-1, gradient.size(-1))
        if ctx.needs_input_grad[0]:
            used = weight.to(rows.dtype)
            of_values = (rows @ (used.t() if ctx.transposed else used)).view(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            sketched = project(rows, kept.size(0), ctx.seed)
            of_weight = (kept.t() @ sketched if ctx.transposed else sketched.t() @ kept).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0).to(ctx.bias_dtype)
        return of_values, of_weight, of_bias, None, None, None


class RandomizedLinears(Unsaved, StatePart):
    """Puts the function into every linear layer of a model.

    All layers of one forward pass draw from one seed: a recomputation in its backward pass so draws the same numbers,
    and layers that share an input (query, key and value) share its projection. The next pass draws others.

    Args:
        training: Whose model to change.
        keep: Share of the rows that the projection has.

    Attributes:
        calls: Calls that kept a projection, so far.

    Raises:
        MethodRefusedError: The model has no linear layer.
    """

    def __init__(self, training: Training, keep: float) -> None:
        self.calls = 0
        self._keep = keep
        self._rank = training.world.data.rank
        self._passes = 0
        self._last: tuple[nn.Module, weakref.ref[torch.Tensor], int, torch.Tensor] | None = None
        layers = [
            (parent, layer) for parent in training.model.modules() for layer in parent.children() if _is_linear(layer)
        ]
        if not layers:
            raise MethodRefusedError(no_linear(type(training.model).__name__))
        for parent, layer in {id(layer): (parent, layer) for parent, layer in layers}.values():
            replace_forward(training, layer, functools.partial(self._call, layer.forward, layer, parent))

    def next_pass(self) -> None:
        """A forward pass begins."""
        self._passes += 1
        self._last = None

    def end_pass(self) -> None:
        """The forward pass has ended: what the next layer could have shared is held by the graph alone."""
        self._last = None

    def state_dict(self) -> dict[str, Any]:
        """Where in the stream of random numbers the training is."""
        return {"passes": self._passes}

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Go on from there; a training without the method drew nothing."""
        self._passes = 0 if kept is None else int(kept["passes"])
        return state

    # Every call changes what this object holds: compiled, each would be compiled anew.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _call(
        self,
        plain: Callable[[torch.Tensor], torch.Tensor],
        layer: nn.Module,
        parent: nn.Module,
        *args: torch.Tensor,
        **kwargs: torch.Tensor,
    ) -> torch.Tensor:
        (values,) = (*args, *kwargs.values())
        weight, bias = layer.weight, layer.bias
        rows = values.numel() // max(1, values.size(-1))
        assert isinstance(weight, torch.Tensor)
        if not (torch.is_grad_enabled() and weight.requires_grad and self._kept(rows) < rows):
            return plain(values)
        self.calls += 1
        output = _Randomized.apply(  # type: ignore[no-untyped-call]
            values, weight, bias, plain, functools.partial(self._projected, parent), _is_conv1d(layer)
        )
        assert isinstance(output, torch.Tensor)
        return output

    def _kept(self, rows: int) -> int:
        return max(1, round(self._keep * rows))

    def _projected(self, parent: nn.Module, values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """The projection of a layer's input, and its seed.

        Shared only between layers of one parent: no checkpointed region has one of them without the others, so that a
        recomputation projects what the forward pass projected.
        """
        seed = self._passes + self._rank * _SEED_STRIDE
        if self._last is not None:
            owner, of, version, kept = self._last
            if owner is parent and of() is values and version == values._version and kept.dtype == dtype:
                return kept, seed
        rows = values.detach().reshape(-1, values.size(-1)).to(dtype)
        kept = project(rows, self._kept(rows.size(0)), seed)
        self._last = parent, weakref.ref(values), values._version, kept
        return kept, seed


def _is_linear(module: nn.Module) -> bool:
    """Subclasses may compute something else, so only the very classes count."""
    return type(module) is nn.Linear or _is_conv1d(module)


def _is_conv1d(module: nn.Module) -> bool:
    return not list(module.children()) and CONV1D in module_counts(module)
