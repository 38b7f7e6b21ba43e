"""Train copies of the model on several devices, and average their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Ddp"]


class Ddp(Method):
    """Each process holds the whole model, trains on its share of the batch, and averages gradients with the others.

    The averaging overlaps with the backward pass. Parameters that get no gradient are found in the first step.
    """

    name = "ddp"
    summary = "Holds a copy of the model on every device, and averages gradients during the backward pass."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-5
    saves = frozenset({Saves.ACTIVATIONS})
    costs = "every gradient crosses the link once per step; without bucket views also a second copy of all gradients"
    pays = "when the model fits on each device and the batch can be split: the speedup is nearly the number of devices"
    does_not_pay = "when communicating the gradients takes longer than the backward pass: slow links, small batches"
    stage = Stage.SHARD
    parameters = (
        Parameter("bucket_views", (True, False), "let gradients be views into the buffers that are sent: no copies"),
        Parameter("static_graph", (False, True), "promise that every step uses the same parameters in the same order"),
    )
    axis = MeshAxis.DATA
    citation = "Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Wherever there are several devices."""
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Distribute the training."""
        from advisor.methods.distributed._data_parallel import DataParallel

        training.distribution = DataParallel(
            training.model,
            training.compute_loss,
            training.world.data,
            bucket_views=bool(parameters["bucket_views"]),
            static_graph=bool(parameters["static_graph"]),
            overlaps=training.run_passes is None,
        )
        # The first step averages without DistributedDataParallel, the third rearranges its buffers.
        training.settling_steps = max(training.settling_steps, 3)
