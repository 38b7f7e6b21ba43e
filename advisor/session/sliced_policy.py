"""The plan of a policy that divides layers, where nobody has found it yet: a prediction has no values to find it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import psutil

from advisor.errors import MethodRefusedError, NothingPredictedError, WorkloadError
from advisor.files import PrivateFolder
from advisor.hardware.mesh import MeshAxis
from advisor.methods.catalogue import get_method
from advisor.methods.compose import misfit
from advisor.policy.policy import Policy
from advisor.search.space.space import Combination
from advisor.session.trials.fullest_device import settled_by_probe
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import ProbeTrial
from advisor.workload.workload import WorkloadSource

__all__ = ["with_plan"]

_SAMPLES = 2
"""Of the one step, as in a search."""


def with_plan(
    policy: Policy,
    source: WorkloadSource,
    model_size: dict[str, int | float],
    *,
    seed: int,
    time_limit_seconds: float,
    tell: Callable[[str], None],
) -> tuple[Policy, tuple[str, ...]]:
    """Find how a model's layers are divided by one plain step on this machine's processor.

    Returns:
        The policy with the plan, and notes on it; the policy as it is where it has one or divides no layer.

    Raises:
        MethodRefusedError: The model cannot be divided so.
        NothingPredictedError: The step ended for a reason that is not the model's.
        WorkloadError: The model does not make a step.
    """
    dividing = [setting for setting in policy.methods if get_method(setting.name).axis is MeshAxis.TENSOR]
    if policy.axes.tensor == 1 or all(setting.name in policy.settled for setting in dividing):
        return policy, ()
    spec = ProbeTrial(
        workload=source,
        policy=Policy(micro_batch=_SAMPLES),
        model_size=model_size,
        device="cpu",
        memory_limit_bytes=psutil.virtual_memory().available,
        seed=seed,
        tensor_degrees=(policy.axes.tensor,),
        measure_seconds=time_limit_seconds,
        time_limit_seconds=time_limit_seconds,
    )
    tell("how the layers can be divided, by one plain step")
    with PrivateFolder("predict") as folder, Runner(folder, tell=tell) as runner:
        result = runner.run(spec)
    if result.facts is None:
        if result.outcome is Outcome.FAILED:
            raise WorkloadError(result.reason, result.traceback_text)
        raise NothingPredictedError(
            "A policy that divides layers needs a plan of how, which one plain step on this machine finds, but that "
            f"ended as {result.outcome.value}: {result.reason}. Predict a policy that was measured: it has the plan."
        )
    if reason := misfit(policy.methods, policy.axes, result.facts):
        raise MethodRefusedError(reason)
    found = settled_by_probe(Combination.of(policy), result.facts)
    note = "How layers are divided was found by one plain step on this machine's processor."
    return msgspec.structs.replace(policy, settled={**policy.settled, **found}), (note,)
