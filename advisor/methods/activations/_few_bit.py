"""Activation functions that keep a few bits of their derivative for the backward pass instead of their input."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from advisor.errors import MethodRefusedError
from advisor.methods.activations.derivative_levels import derivative_levels
from advisor.methods.activations.smooth_activations import formula_of_module, no_activation
from advisor.training.chunking import chunks
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.structure import module_counts
from advisor.training.unsaved import Unsaved

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["FewBitActivations", "Levels", "pack", "unpack"]

_FUNCTIONS = {functional.gelu: "gelu", functional.silu: "silu"}
_NAMES = frozenset({"gelu", "silu", "swish"})


class Levels:
    """The levels of one formula on one device.

    Args:
        formula: As in :mod:`advisor.methods.activations.derivative_levels`.
        bits: Bits per value.
        device: Where the activations are.
    """

    def __init__(self, formula: str, bits: int, device: torch.device) -> None:
        table = derivative_levels(formula, bits)
        self.bits = bits
        self.boundaries = torch.tensor(table.boundaries, device=device)
        self.levels = torch.tensor(table.levels, device=device)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The pieces in which values lie, packed; one row per bit, of an eighth of a byte per value."""
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

    Planes take any number of bits alike: three bits would not divide a byte.
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
    """The codes again, with those of the padding: ``uint8 [bits, m]`` -> ``uint8 [8 * m]``."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    codes = (packed[0].unsqueeze(1) >> places) & 1
    for bit in range(1, bits):
        codes = codes | (((packed[bit].unsqueeze(1) >> places) & 1) << bit)
    return codes.view(-1)


class _FewBit(torch.autograd.Function):
    """Calls the plain function, so that its values are bit-equal, and keeps the packed pieces alone."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, plain: Callable[[torch.Tensor], torch.Tensor], levels: Levels) -> Any:
        """``values`` of any shape -> the activations."""
        ctx.save_for_backward(levels.encode(values))  # Before the call, which may be in place.
        ctx.levels, ctx.dtype = levels, values.dtype
        output = plain(values)
        if output is values:
            ctx.mark_dirty(values)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """The gradient of the values, by the levels."""
        (packed,) = ctx.saved_tensors
        return ctx.levels.multiply(gradient, packed, ctx.dtype), None, None


class FewBitActivations(Unsaved):
    """Puts the function into a model: into the modules that are known, and around those that call torch's functions.

    Calls of ``torch.nn.functional.gelu`` and ``silu`` are caught while a module runs whose code names them. Not in the
    whole forward pass: a checkpointed module is called again in the backward pass, and must find what it found before.

    Args:
        training: Whose model to change.
        bits: Bits per value.

    Attributes:
        called: Whether any call has kept bits.

    Raises:
        MethodRefusedError: The model has no such activation.
    """

    def __init__(self, training: Training, bits: int) -> None:
        self.called = False
        self._bits = bits
        self._device = training.device
        self._local = threading.local()
        self._of_formula = functools.cache(lambda formula: Levels(formula, bits, self._device))
        found = False
        for module in list(training.model.modules()):
            formula = _formula(module)
            if formula is not None:
                replace_attribute(training, module, "forward", functools.partial(self.call, module.forward, formula))
            elif _names_functions(module):
                replace_attribute(training, module, "forward", functools.partial(self._catching, module.forward))
            else:
                continue
            found = True
        if not found:
            raise MethodRefusedError(no_activation(type(training.model).__name__))

    def call(self, plain: Callable[[torch.Tensor], torch.Tensor], formula: str, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The activation of ``input`` (named as torch's modules name it), by whatever computes it plainly."""
        if not (torch.is_grad_enabled() and input.requires_grad and input.is_floating_point() and input.numel()):
            return plain(input)
        if not self.called:  # A counter would have every call compiled anew.
            self.called = True
        output = _FewBit.apply(input, plain, self._of_formula(formula))  # type: ignore[no-untyped-call]
        assert isinstance(output, torch.Tensor)
        return output

    def _catching(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._mode():
            return plain(*args, **kwargs)

    @contextlib.contextmanager
    def _mode(self) -> Iterator[None]:
        """Once, however deep the modules lie in each other; each thread has its own stack of modes."""
        if getattr(self._local, "entered", False):
            yield
            return
        self._local.entered = True
        try:
            with _Catch(self.call):
                yield
        finally:
            self._local.entered = False


class _Catch(TorchFunctionMode):
    """Hands calls of torch's activation functions to another."""

    def __init__(
        self, call: Callable[[Callable[[torch.Tensor], torch.Tensor], str, torch.Tensor], torch.Tensor]
    ) -> None:
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
    (kind,) = module_counts(module) if not list(module.children()) else (None,)
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return "gelu_tanh"
    return formula_of_module(kind) if kind else None


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
