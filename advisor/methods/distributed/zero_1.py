"""Spread the optimizer's state over the devices."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.optimizers.optimizer_class import class_name_of, traits_of
from advisor.methods.optimizers.traits import OptimizerTraits, named, of_torch
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["Zero1"]


class Zero1(Method):
    """Each process updates a part of the parameters, holds the optimizer state of that part, and sends the result.

    Everything else is as with ``ddp``. Parameters are not split: a large one belongs to one process.
    """

    name = "zero_1"
    summary = "Averages gradients as ddp does, but each device holds only its part of the optimizer state."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-5
    saves = frozenset({Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS})
    costs = "every parameter is sent once more after each step, one by one and without overlap"
    pays = "when the model fits but not Adam's two moments as well, on a fast link"
    does_not_pay = "with optimizers that hold little state, on slow links, or with many small parameters"
    stage = Stage.OPTIMIZER
    conflicts = (
        Conflict("adam_8bit", "it rebuilds optimizers of torch.optim only, and bitsandbytes' is not one of them"),
    )
    axis = MeshAxis.DATA
    citation = "Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs an optimizer that can be built again over a part of the parameters."""
        return Verdict.yes() if facts is None else _judge(facts.optimizer_class, named(facts.optimizer_class))

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Distribute the training, and replace the optimizer by parts of it."""
        from advisor.methods.distributed._zero_1 import ShardedOptimizer

        plain = training.optimizer
        verdict = _judge(class_name_of(plain), traits_of(plain))
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
        training.distribution = ShardedOptimizer(
            training.model, training.compute_loss, training.world.data, overlaps=training.run_passes is None
        )
        training.optimizer = training.distribution.shard(plain, _options(plain))
        training.settling_steps = max(training.settling_steps, 3)  # As for ddp.


def _judge(optimizer: str, traits: OptimizerTraits) -> Verdict:
    if _is_rebuilt(traits):
        return Verdict.yes()
    others = " and ".join(of_torch(lambda other: not _is_rebuilt(other)))
    return Verdict.no(
        "it builds the optimizer again over a part of the parameters, which needs one of torch.optim (all but "
        f"{others}), but the optimizer is {optimizer}"
    )


def _is_rebuilt(traits: OptimizerTraits) -> bool:
    return traits.rebuilds and traits.per_parameter and traits.param_groups and traits.dense


def _options(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The defaults of an optimizer that its constructor takes; some classes note more among them."""
    taken = inspect.signature(type(optimizer)).parameters
    return {name: value for name, value in optimizer.defaults.items() if name in taken}
