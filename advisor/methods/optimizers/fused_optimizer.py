"""One kernel for the whole optimizer step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import require
from advisor.methods.base import Method, Stage, Verdict
from advisor.methods.optimizers.adam import WHICH_OPTIMIZER
from advisor.methods.optimizers.optimizer_class import class_name_of
from advisor.methods.optimizers.traits import named, of_torch
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["FusedOptimizer"]


class FusedOptimizer(Method):
    """Builds the same optimizer again with ``fused=True``: its step is one kernel over all parameters.

    It takes the place of ``foreach=True``, torch's own choice on a GPU, which needs memory for intermediate results.
    Under float16 the kernel itself unscales the gradients and skips the step.
    """

    name = "fused_optimizer"
    summary = "Updates all parameters in one kernel instead of several per parameter."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-6
    saves = frozenset()
    time_ratio = 0.97
    cpu_time_ratio = 0.95
    costs = "nothing"
    pays = "with many parameters, whose updates are bound by kernel launches, and on the CPU"
    does_not_pay = "when the optimizer's share of a step is small, as with large batches"
    stage = Stage.OPTIMIZER
    decides = WHICH_OPTIMIZER
    citation = "https://docs.pytorch.org/docs/stable/optim.html (fused implementations)"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs an optimizer of torch that has a fused step."""
        return Verdict.yes() if facts is None else _judge(facts.optimizer_class, facts.optimizer_options)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Build the optimizer again, after one fused step aside, to see that there is a kernel for it."""
        import torch

        from advisor.training.optimizer.fused_step import has_gaps, keep_as_plain

        plain = training.optimizer
        for group in plain.param_groups:
            require(_judge(class_name_of(plain), group))
        if all(group["fused"] for group in plain.param_groups):
            training.notes.append("fused_optimizer changed nothing: the optimizer is fused already")
            return
        if any(float(entries.get("step", 1.0)) for entries in plain.state.values()):  # Adagrad has a state at once.
            raise MethodRefusedError("the optimizer has already stepped; apply fused_optimizer before training starts")
        if any(getattr(module, "sparse", False) is True for module in training.model.modules()):
            raise MethodRefusedError("torch has no fused step for sparse gradients, but an embedding has sparse=True")
        # The class notes more defaults than it takes.
        taken = inspect.signature(type(plain)).parameters
        options = {name: value for name, value in plain.defaults.items() if name in taken}
        options |= {"fused": True, "foreach": False}
        every = [parameter for group in plain.param_groups for parameter in group["params"]]
        if gaps := sum(map(has_gaps, every)):
            raise MethodRefusedError(
                "the fused step takes the elements of a parameter to lie side by side in memory, but those of "
                f"{gaps} of {len(every)} do not, as after indexing; make a copy of them (nn.Parameter(weight.clone()))"
            )
        smallest = {parameter.dtype: parameter for parameter in sorted(every, key=torch.Tensor.numel, reverse=True)}
        for parameter in smallest.values():  # One of each format: there is no kernel for complex numbers, say.
            _try(type(plain), options, parameter)
        groups = [group | {"fused": True, "foreach": False} for group in plain.param_groups]
        fused = type(plain)(groups, **options)
        keep_as_plain(fused, plain)
        training.optimizer = fused


def _judge(optimizer: str, options: Mapping[str, Any]) -> Verdict:
    if not named(optimizer).fused:
        names = ", ".join(of_torch(lambda traits: traits.fused))
        return Verdict.no(f"of torch.optim, {names} have a fused step, but the optimizer is {optimizer}")
    if options.get("differentiable"):
        return Verdict.no("the fused step has no differentiable, but the optimizer has differentiable=True")
    if options.get("momentum") and options.get("dampening"):
        return Verdict.no("the fused step dampens the first gradient too, unlike torch's own, and dampening is not 0")
    return Verdict.yes()


def _try(kind: Any, options: Mapping[str, Any], like: torch.Tensor) -> None:
    """Step on a parameter of its own, to see whether torch has such a kernel for this device and kind of parameter."""
    import torch

    parameter = torch.nn.Parameter(torch.ones_like(like))
    parameter.grad = torch.ones_like(like)
    try:
        kind([parameter], **options).step()
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise MethodRefusedError(f"torch has no fused {kind.__name__} for these parameters: {reason}") from error
