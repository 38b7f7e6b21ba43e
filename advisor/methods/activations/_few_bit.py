"""Activation functions that keep a few bits of their derivative for the backward pass instead of their input."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from advisor.methods.activations.derivative_levels import derivative_levels
from advisor.methods.activations.module_kinds import FORMULAS, FUNCTIONS, judge_activations
from advisor.methods.applying import require
from advisor.training.chunking import chunks
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.structure import qualified_class_name
from advisor.training.training import Training
from advisor.training.unsaved import Unsaved

__all__ = ["FewBitActivations", "Levels", "pack", "unpack"]

_FUNCTIONS = {getattr(functional, name): name for name in FUNCTIONS}
_NAMES = frozenset({*FUNCTIONS, "swish"})


class Levels:
    """The :func:`derivative_levels` of one formula, of ``bits`` per value, on one device."""

    def __init__(self, formula: str, bits: int, device: torch.device) -> None:
        self.bits = bits
        self.boundaries, self.levels = (torch.tensor(one, device=device) for one in derivative_levels(formula, bits))

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The pieces in which values lie, packed: one row per bit, of an eighth of a byte per value."""
        flat = values.detach().reshape(-1)
        if torch.compiler.is_compiling():  # into kernels that keep nothing but the result
            return self._packed(flat)
        packed = torch.empty(self.bits, -(-flat.numel() // 8), dtype=torch.uint8, device=flat.device)
        for part in chunks(flat, packed.shape[1], 8):
            packed[:, part] = self._packed(flat[part.start * 8 : part.stop * 8])
        return packed

    def multiply(self, gradient: torch.Tensor, packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The gradient times the level of each value, in ``dtype``."""
        flat = gradient.reshape(-1)
        result = torch.empty(flat.shape, dtype=dtype, device=flat.device)
        cuts = [slice(0, packed.shape[1])] if torch.compiler.is_compiling() else chunks(flat, packed.shape[1], 8)
        for part in cuts:
            inside = slice(part.start * 8, part.stop * 8)
            self._multiply(flat[inside], packed[:, part], result[inside])
        return result.view(gradient.shape)

    def _packed(self, flat: torch.Tensor) -> torch.Tensor:
        return pack(torch.bucketize(flat.float(), self.boundaries, out_int32=True).to(torch.uint8), self.bits)

    def _multiply(self, gradient: torch.Tensor, packed: torch.Tensor, result: torch.Tensor) -> None:
        # An index of int32 would be made one of int64 by ``levels[index]``.
        level = self.levels.index_select(0, unpack(packed, self.bits)[: gradient.numel()].int())
        result.copy_(gradient * level.to(gradient.dtype))


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes below ``2 ** bits`` as bit planes: ``uint8 [n]`` -> ``uint8 [bits, ceil(n / 8)]``.

    In planes any number of bits is packed alike; three bits do not divide a byte.
    """
    padded = functional.pad(codes, (0, -codes.numel() % 8)).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=codes.device)
    planes = []
    for bit in range(bits):
        plane = (padded >> bit & 1) << places
        # Not by a sum, which makes int64 of every bit on a CPU.
        for half in (4, 2, 1):
            plane = plane[:, :half] | plane[:, half:]
        planes.append(plane[:, 0])
    return torch.stack(planes)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes, and those of the padding: ``uint8 [bits, m]`` -> ``uint8 [8 * m]``."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    codes = (packed[0].unsqueeze(1) >> places) & 1
    for bit in range(1, bits):
        codes = codes | (((packed[bit].unsqueeze(1) >> places) & 1) << bit)
    return codes.view(-1)


class _FewBit(torch.autograd.Function):
    """Calls the plain function, so that its values are bit-equal, and keeps only the packed pieces."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, plain: Callable[[torch.Tensor], torch.Tensor], levels: Levels) -> Any:
        ctx.save_for_backward(levels.encode(values))  # Before the call, which may be in place.
        ctx.levels, ctx.dtype = levels, values.dtype
        output = plain(values)
        if output is values:
            ctx.mark_dirty(values)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (packed,) = ctx.saved_tensors
        return ctx.levels.multiply(gradient, packed, ctx.dtype), None, None


class FewBitActivations(Unsaved):
    """Changes a training's model: the activation modules that are known, and modules that call torch's functions.

    Calls of ``torch.nn.functional.gelu`` and ``silu`` are caught while a module runs whose code names them. Not in the
    whole forward pass: a checkpointed module runs again in the backward pass, and must do as before.

    Attributes:
        called: Whether any call has kept bits.

    Raises:
        MethodRefusedError: The model has no such activation.
    """

    def __init__(self, training: Training, bits: int) -> None:
        self.called = False
        self._local = threading.local()
        device = training.device
        self._of_formula = functools.cache(lambda formula: Levels(formula, bits, device))
        changed = {}
        for module in training.model.modules():
            formula = _formula(module)
            if formula is not None:
                changed[module] = functools.partial(self.call, module.forward, formula)
            elif _names_functions(module):
                changed[module] = functools.partial(self._catching, module.forward)
        require(judge_activations(bool(changed), type(training.model).__name__))
        for module, forward in changed.items():
            replace_attribute(training, module, "forward", forward)

    def call(self, plain: Callable[[torch.Tensor], torch.Tensor], formula: str, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The activation of ``input`` (named as torch's modules name it), by whatever computes it plainly."""
        if not (torch.is_grad_enabled() and input.requires_grad and input.is_floating_point() and input.numel()):
            return plain(input)
        if not self.called:  # A counter would have every call compiled anew.
            self.called = True
        return _FewBit.apply(input, plain, self._of_formula(formula))  # type: ignore[no-untyped-call,no-any-return]

    def _catching(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Enter the mode once, however deep the modules are nested; each thread has its own stack of modes."""
        if getattr(self._local, "entered", False):
            return plain(*args, **kwargs)
        self._local.entered = True
        try:
            with _Catch(self.call):
                return plain(*args, **kwargs)
        finally:
            self._local.entered = False


class _Catch(TorchFunctionMode):
    """Hands calls of torch's activation functions to :meth:`FewBitActivations.call`."""

    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = _FUNCTIONS.get(func)
        if formula is None:
            return func(*args, **(kwargs or {}))
        rest = dict(kwargs or {})
        values = args[0] if args else rest.pop("input")
        if rest.get("approximate") == "tanh":
            formula = "gelu_tanh"
        plain = lambda values: func(values, *args[1:], **rest)  # noqa: E731
        return self._call(plain, formula, values)


def _formula(module: nn.Module) -> str | None:
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return "gelu_tanh"
    return None if list(module.children()) else FORMULAS.get(qualified_class_name(module))


def _names_functions(module: nn.Module) -> bool:
    """Whether a module holds one of the functions, or its forward function names one, in it or in what it calls."""
    held = [getattr(value, "func", value) for value in vars(module).values()]
    if any(value is function for value in held for function in _FUNCTIONS):
        return True
    return not type(module).__module__.startswith("torch.") and _names(type(module).forward, type(module), set())


def _names(function: Any, kind: type, seen: set[types.CodeType]) -> bool:
    """Whether a function names an activation function, or does so by what it names of its class and of its file."""
    function = inspect.unwrap(function)
    codes = [function.__code__] if inspect.isfunction(function) else []
    while codes:
        code = codes.pop()
        if code in seen:
            continue
        seen.add(code)
        if _NAMES & set(code.co_names):
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in code.co_names:
            for target in (function.__globals__.get(name), inspect.getattr_static(kind, name, None)):
                own = inspect.isfunction(target) and not target.__module__.startswith("torch.")
                if own and _names(target, kind, seen):
                    return True
    return False
