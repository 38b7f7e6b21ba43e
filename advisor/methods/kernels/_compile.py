"""Compile modules in place with ``torch.compile``: names, state and hooks of the model stay.

A function is compiled at its first call with arguments of some kind. The result is kept on its code, which all modules
of a class share, so blocks that are alike are compiled once. When the training closes, all compiled code of the process
is dropped (``torch._dynamo.reset``), so that sizes seen in one training do not affect the next.

Under a budget, torch's partitioner may recompute any operator in the backward pass, even dropout, whose second draw is
another mask: the loss is right and the gradients are silently wrong. Here operators that draw are marked as kept, and a
backward graph that still draws is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils.checkpoint import CheckpointPolicy

from advisor.errors import MethodRefusedError
from advisor.methods.applying import note_if_idle
from advisor.methods.recompute._selective_checkpoint import dropout_probability
from advisor.training.compiler import why_not_compiled
from advisor.training.recompute import stop_key_value_cache
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.training import Training

__all__ = ["BACKEND", "Backend", "CompiledCall", "KeepRandom", "compile_modules", "drawing_operators"]

_RECOMPILE_LIMIT = 64
"""Kinds of arguments that one function is compiled for: kinds of blocks, with and without gradients, batch sizes."""

_Compiled = Callable[..., Any]
Backend = Callable[..., _Compiled]
"""``(graph, inputs, *, budgeted)`` -> the compiled graph, forward and backward; ``budgeted`` if it keeps less for its
backward pass than the compiler would."""


def _default_backend(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], *, budgeted: bool) -> _Compiled:
    """Make kernels with torch's default compiler: C++ for a CPU, Triton for a GPU.

    Torch's own kernels draw random numbers, so that dropout draws the same masks as uncompiled.

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


BACKEND: Backend = _default_backend
"""The backend that compiles graphs; a constant of this module, so that tests can replace it."""


def compile_modules(
    training: Training, modules: Sequence[torch.nn.Module], label: str, *, budget: float | None = None
) -> None:
    """Have modules of a training's model, none inside another, run compiled from their next call on, until it closes.

    Under fake tensors nothing is compiled, and a note with the method's ``label`` says so. ``budget`` is the share of
    the activations, from all of them (1.0) to only the inputs (0.0), that the compiler may keep for the backward pass.

    Raises:
        MethodRefusedError: There is no compiler for the device, it knows no budgets, or the model is compiled already.
            A call of a module raises it when the module cannot be compiled.
    """
    import torch._functorch.config as config

    if budget is not None and not hasattr(config, "activation_memory_budget"):
        raise MethodRefusedError("this torch cannot compile under a budget (activation_memory_budget)")
    if active_fake_mode() is not None or any(isinstance(p, FakeTensor) for p in training.model.parameters()):
        training.notes.append(f"{label}: fake tensors run uncompiled; a compiled model often keeps less than they do")
        return
    reason = why_not_compiled(training.device) or _why_not_again(training.model)
    if reason:
        raise MethodRefusedError(reason)
    stop_key_value_cache(training, "every block would be compiled anew, for its own entry of the cache")
    training.on_close(torch._dynamo.reset)
    # Recomputation, with all that it restores, stays outside compiled code: each of its regions is compiled alone.
    regions = [inner for module in modules for inner in module.modules() if isinstance(inner, CheckpointWrapper)]
    compiled = [*modules, *(region._checkpoint_wrapped_module for region in regions)]
    uncompiled = torch._dynamo.disable(_run)  # type: ignore[no-untyped-call]
    for region in regions:
        # A copy of the model, such as an average of its weights, must run its own region.
        replace_attribute(training, region, "forward", functools.partial(uncompiled, region))
    calls = [CompiledCall(module, _backend(BACKEND, budget)) for module in compiled]
    for module, call in zip(compiled, calls, strict=True):
        replace_attribute(training, module, "_compiled_call_impl", call)
    # The first step compiles; gradients and optimizer state that it created may cause another compilation.
    training.settling_steps = max(training.settling_steps, 1)
    idle = f"{label} changed nothing: a step does not call what it compiled"
    note_if_idle(training, lambda: any(call.was_called for call in calls), idle)


def _run(region: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What a region does by itself."""
    return type(region).forward(region, *args, **kwargs)


class CompiledCall:
    """Calls a module through the compiler; ``backend`` compiles the graphs of its forward pass.

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
            # At its limit, the compiler would silently go on uncompiled.
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

    One object for all modules: the code of another one would not be reused for similar modules.
    """
    import torch._functorch.config as config

    # Otherwise the first backward pass compiles the backward graph, and its errors do not come as the compiler's.
    settings: dict[str, Any] = {"force_non_lazy_backward_lowering": True}
    if budget is not None:
        # The cache may hold code for the same budget from elsewhere, which may draw random numbers twice.
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


def drawing_operators(graph: torch.fx.Graph) -> list[str]:
    """Names of the operators of a graph that draw random numbers."""
    return [str(node.target) for node in _drawing(graph)]


class KeepRandom(CustomGraphPass):
    """A pass over a joint graph: the partitioner must keep the outputs of all operators that draw random numbers."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in _drawing(graph):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        """What compiled code is cached under."""
        return "keep random numbers, version 1"


def _drawing(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and _draws(node)]


def _draws(node: torch.fx.Node) -> bool:
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    if any(argument.name == "philox_seed" for argument in operator._schema.arguments):
        return False  # The backward pass of attention on CUDA, which is given what the forward pass drew from.
    probability = dropout_probability(operator, node.args, node.kwargs)
    return probability is None or bool(probability)  # Attention is tagged whether or not it drops out.
