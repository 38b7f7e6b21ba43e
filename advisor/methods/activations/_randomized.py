"""Linear layers that keep a random projection of their input for the gradient of their weight."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from advisor.methods.activations.module_kinds import judge_linear
from advisor.methods.applying import require
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.state_part import Counted
from advisor.training.structure import is_transposed
from advisor.training.training import Training
from advisor.training.unsaved import Unsaved

__all__ = ["RandomizedLinears", "project"]

_AT_ONCE = 2**22
"""Random signs that exist at a time: all of them would be rows times kept rows."""

_SEED_STRIDE = 1_000_003
"""More than the passes of any training, so that the seeds of two processes never meet."""


def project(rows: torch.Tensor, kept: int, seed: int) -> torch.Tensor:
    """``S^T rows`` for a matrix of ``kept`` columns of scaled random signs whose ``S S^T`` is the identity on average.

    ``rows [n, width]`` become ``[kept, width]``, in the same format. Equal seeds, n and devices have the same S.
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
        ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: Any, plain: Any, projected: Any, transposed: bool
    ) -> torch.Tensor:
        output: torch.Tensor = plain(values)
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


class RandomizedLinears(Unsaved, Counted):
    """Changes every linear layer of a training's model, to keep a share of the rows.

    All layers of one forward pass draw from one seed. So a recomputation in its backward pass draws the same numbers,
    and layers that share an input (query, key and value) share its projection.

    Attributes:
        calls: Calls that kept a projection, so far.

    Raises:
        MethodRefusedError: The model has no linear layer.
    """

    counted = "passes"

    def __init__(self, training: Training, keep: float) -> None:
        self.calls = 0
        self._keep = keep
        self._rank = training.world.rank
        self._last: tuple[nn.Module, weakref.ref[torch.Tensor], int, torch.Tensor] | None = None
        pairs = [(parent, layer) for parent in training.model.modules() for layer in parent.children()]
        # Subclasses of linear layers may compute something else.
        linear = [pair for pair in pairs if type(pair[1]) is nn.Linear or is_transposed(pair[1])]
        layers = {id(layer): (parent, layer) for parent, layer in linear}
        require(judge_linear(bool(layers), type(training.model).__name__))
        for parent, layer in layers.values():
            called = functools.partial(self._call, layer.forward, layer, parent)
            replace_attribute(training, layer, "forward", called)

    @contextlib.contextmanager
    def one_pass(self) -> Generator[None, None, None]:
        """Context for a forward pass; nothing is shared with the next."""
        self.count += 1
        self._last = None
        yield
        self._last = None

    # Every call changes what this object holds: compiled, each would be compiled anew.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _call(
        self,
        plain: Callable[..., Any],
        layer: nn.Module,
        parent: nn.Module,
        *args: torch.Tensor,
        **kwargs: torch.Tensor,
    ) -> Any:
        (values,) = (*args, *kwargs.values())
        weight, bias = layer.weight, layer.bias
        rows = values.numel() // max(1, values.size(-1))
        assert isinstance(weight, torch.Tensor)
        if not (torch.is_grad_enabled() and weight.requires_grad and self._kept(rows) < rows):
            return plain(values)
        self.calls += 1
        projected = functools.partial(self._projected, parent)
        return _Randomized.apply(values, weight, bias, plain, projected, is_transposed(layer))  # type: ignore[no-untyped-call]

    def _kept(self, rows: int) -> int:
        return max(1, round(self._keep * rows))

    def _projected(self, parent: nn.Module, values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """The projection of a layer's input, and its seed.

        Only layers of one parent share it: no checkpointed region has one of them without the others, so a
        recomputation projects what the forward pass projected.
        """
        seed = self.count + self._rank * _SEED_STRIDE
        if self._last is not None:
            owner, of, version, kept = self._last
            if owner is parent and of() is values and version == values._version and kept.dtype == dtype:
                return kept, seed
        rows = values.detach().reshape(-1, values.size(-1)).to(dtype)
        kept = project(rows, self._kept(rows.size(0)), seed)
        self._last = parent, weakref.ref(values), values._version, kept
        return kept, seed
