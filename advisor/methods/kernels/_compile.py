"""Compile modules in place with ``torch.compile``: names, state and hooks of the model stay as they are.

A function is compiled at its first call with arguments of some kind, and the result is kept on the function's code,
which all modules of a class share: blocks that are alike are compiled once. When the training closes, all compiled code
of the process is dropped (``torch._dynamo.reset``), so that sizes seen in one training do not affect the next; other
compiled code in the process is compiled again at its next call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from advisor.errors import MethodRefusedError
from advisor.methods.kernels._random_operators import KeepRandom, drawing_operators
from advisor.training.compiler import why_not_compiled
from advisor.training.recompute import stop_key_value_cache

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["BACKEND", "Backend", "CompiledCall", "compile_modules", "default_backend", "has_budget"]

_RECOMPILE_LIMIT = 64
"""Kinds of arguments that one function is compiled for: kinds of blocks, with and without gradients, batch sizes."""

_Compiled = Callable[..., Any]
Backend = Callable[..., _Compiled]
"""``(graph, inputs, *, budgeted)`` -> the compiled graph, forward and backward; ``budgeted`` if less is kept for its
backward pass than the compiler would keep."""


def default_backend(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], *, budgeted: bool) -> _Compiled:
    """Make kernels with torch's default compiler: C++ for a CPU, Triton for a GPU.

    Random numbers are drawn by torch's own kernels, so that dropout draws the masks that it draws uncompiled.

    Raises:
        RuntimeError: Under a budget, the backward graph draws random numbers again.
    """
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def make_kernels(part: torch.fx.GraphModule, part_inputs: Sequence[Any], **options: Any) -> Any:
        if budgeted and options.get("is_backward") and (names := drawing_operators(part.graph)):
            raise RuntimeError(f"this torch would draw random numbers again in the backward pass: {', '.join(names)}")
        return compile_fx_inner(part, part_inputs, **options)

    patches: dict[str, Any] = {"fallback_random": True}
    if budgeted:
        patches["joint_custom_post_pass"] = KeepRandom()
    return compile_fx(graph, list(inputs), inner_compile=make_kernels, config_patches=patches)  # type: ignore[return-value]


BACKEND: Backend = default_backend
"""The backend that compiles graphs; a constant of this module, so that tests can replace it."""


def compile_modules(
    training: Training, modules: Sequence[torch.nn.Module], label: str, *, budget: float | None = None
) -> None:
    """Have modules run compiled from their next call on, until the training closes.

    Under fake tensors nothing is compiled: the modules stay as they are, and a note says so.

    Args:
        training: The training whose modules they are.
        modules: The modules, none inside another.
        label: Label of the method with its parameters, for notes.
        budget: Share of the activations, between all of them (1.0) and only the inputs (0.0), that the compiler may
            keep for the backward pass; ``None`` leaves its default.

    Raises:
        MethodRefusedError: There is no compiler for the device, or the model is compiled already. A later call of a
            module raises it when the module cannot be compiled.
    """
    if active_fake_mode() is not None or any(isinstance(p, FakeTensor) for p in training.model.parameters()):
        training.notes.append(f"{label}: fake tensors run uncompiled; a compiled model often keeps less than they do")
        return
    reason = why_not_compiled(training.device) or _why_not_again(training.model)
    if reason:
        raise MethodRefusedError(reason)
    stop_key_value_cache(training, "every block would be compiled anew, for its own entry of the cache")
    # Recomputation, with all that it restores, stays outside compiled code: each of its regions is compiled alone.
    regions = [inner for module in modules for inner in module.modules() if isinstance(inner, CheckpointWrapper)]
    compiled = [*modules, *(region._checkpoint_wrapped_module for region in regions)]
    for region in regions:
        region.forward = torch._dynamo.disable(region.forward)  # type: ignore[method-assign,no-untyped-call]
    calls = [CompiledCall(module, _backend(BACKEND, budget)) for module in compiled]
    for module, call in zip(compiled, calls, strict=True):
        module._compiled_call_impl = call
    training.on_close(functools.partial(_run_plain, compiled, regions))
    # The first step compiles; gradients and optimizer state that it created may cause another compilation.
    training.settling_steps = max(training.settling_steps, 1)
    said = False

    def say() -> None:
        nonlocal said
        if not said and not any(call.was_called for call in calls):
            training.notes.append(f"{label} changed nothing: a step does not call what it compiled")
        said = True

    training.after_step.append(say)


def has_budget() -> bool:
    """Whether this torch can compile under a budget for saved activations."""
    import torch._functorch.config as config

    return hasattr(config, "activation_memory_budget")


class CompiledCall:
    """Calls a module through the compiler.

    Args:
        module: The module.
        backend: Compiles the graphs that are found in its forward pass.

    Attributes:
        was_called: Whether it was ever called.
    """

    def __init__(self, module: torch.nn.Module, backend: Callable[..., _Compiled]) -> None:
        self._call = torch.compile(module._call_impl, backend=backend)
        self.was_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Raises:
            MethodRefusedError: It cannot be compiled, with the first line of the reason.
        """
        import torch._dynamo.config as config
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        self.was_called = True
        try:
            # At its limit, the compiler would silently run the module uncompiled from then on.
            with config.patch(recompile_limit=_RECOMPILE_LIMIT, fail_on_recompile_limit_hit=True):
                return self._call(*args, **kwargs)
        except (FailOnRecompileLimitHit, TorchDynamoException) as error:
            cause = getattr(error, "inner_exception", error)
            lines = [line for line in str(cause).splitlines() if line.strip()] or ["no reason given"]
            raise MethodRefusedError(
                f"torch.compile must be able to compile the model, but: {type(cause).__name__}: {lines[0].strip()}"
            ) from error


@functools.cache
def _backend(backend: Backend, budget: float | None) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], _Compiled]:
    """The backend, with settings that hold only while it compiles.

    One object for all modules: code of another backend would not be reused for similar modules.
    """
    import torch._functorch.config as config

    # The backward graph is otherwise compiled in the first backward pass, from where an error comes as any error.
    settings: dict[str, Any] = {"force_non_lazy_backward_lowering": True}
    if budget is not None:
        # What was compiled elsewhere under the same budget may draw random numbers twice; the cache would not know.
        settings |= {"activation_memory_budget": budget, "enable_autograd_cache": False}
    settings = {key: value for key, value in settings.items() if hasattr(config, key)}

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> _Compiled:
        with config.patch(settings):
            return backend(graph, inputs, budgeted=budget is not None)

    return compile_graph


def _why_not_again(model: torch.nn.Module) -> str:
    from torch._dynamo import OptimizedModule

    for name, module in model.named_modules():
        if isinstance(module, OptimizedModule) or module._compiled_call_impl is not None:
            return f"the model must come uncompiled, but its module {name or 'itself'!r} is compiled already"
    return ""


def _run_plain(compiled: Sequence[torch.nn.Module], regions: Sequence[torch.nn.Module]) -> None:
    for module in compiled:
        module._compiled_call_impl = None
    for region in regions:
        del region.forward
    torch._dynamo.reset()
