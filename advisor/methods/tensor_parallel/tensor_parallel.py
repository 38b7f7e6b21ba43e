"""Slice the layers of every block among devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import judge_blocks
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["TensorParallelism"]


class TensorParallelism(Method):
    """Each device computes some heads of attention and some features of the MLP of every block, for all samples.

    How a block is sliced is found from what it computes on one batch, not from names: which outputs of the linear
    layers that begin attention or an MLP go into which inputs of the one that ends it. The plan is kept in the policy.
    With ``sequence``, normalizations, dropout and residual sums between these regions are divided by tokens.
    """

    name = "tensor_parallel"
    summary = "Slices the layers of every block over the devices, which compute each sample together."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-5
    other_masks = True
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS})
    costs = (
        "two sums of the hidden states over the devices in every forward pass of a block and two in its backward pass, "
        "for which the devices wait; with sequence two more gathers"
    )
    pays = "when a model or the activations of one sample do not fit on a device, between devices on a fast link"
    does_not_pay = "across machines; when ddp or fsdp fits with a batch that keeps the devices busy"
    stage = Stage.PARALLELIZE
    parameters = (
        Parameter(
            "sequence",
            (True, False),
            "divide what is between the layers too, by tokens: fewer activations for as many bytes sent",
        ),
        Parameter(
            "vocabulary",
            (False, True),
            "slice the embedding of tokens and the output layer too; logits are then never whole where the loss is the "
            "cross entropy of that layer",
        ),
    )
    conflicts = (
        Conflict(
            "chunked_cross_entropy",
            "it computes the loss from the whole output layer, of which each device has a slice; the sliced loss never "
            "holds all logits either",
            own={"vocabulary": True},
        ),
        Conflict(
            "fsdp",
            "what a device has a part of is summed from its own memory, but offload keeps gradients on the host",
            where={"offload": True},
        ),
    )
    axis = MeshAxis.TENSOR
    citation = (
        "Shoeybi et al. 2019, Megatron-LM; Korthikanti et al. 2022, Reducing Activation Recomputation in Large "
        "Transformer Models (sequence)"
    )

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs repeated blocks; of how many devices can share them, :meth:`why_not_on` judges."""
        if facts is None:
            return Verdict.yes()
        return judge_blocks(facts.block_count, 1, facts.model_class)

    def why_not_on(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts | None) -> str:
        """By what the probe found for so many devices."""
        if facts is None:
            return ""
        if reason := facts.tensor_refusals.get(mesh.tensor):
            return reason
        if parameters["sequence"] and (reason := facts.sequence_refusals.get(mesh.tensor)):
            return reason
        tokens = facts.tokens_per_sample
        if parameters["sequence"] and tokens is not None and tokens % mesh.tensor:
            return (
                f"sequence=True divides the tokens of a sample, but {mesh.tensor} devices cannot share {tokens} "
                "evenly; pad the samples, or use sequence=False"
            )
        return facts.vocabulary_refusals.get(mesh.tensor, "") if parameters["vocabulary"] else ""

    def facts_of(self, training: Training, batch: Any, degrees: tuple[int, ...]) -> dict[str, Any]:
        """What each number of devices can slice, and how."""
        from advisor.methods.tensor_parallel._sliced_training import probed

        return dict(probed(training, batch, degrees)) if degrees else {}

    def settled_by(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts) -> str | None:
        """The plan of the probe, so that no trial looks for it again, and a trace has it."""
        plan = facts.tensor_plans.get(mesh.tensor)
        if plan is None:
            return None
        sliced_loss = bool(parameters["vocabulary"]) and facts.linear_head
        return msgspec.json.encode({"plan": msgspec.Raw(plan.encode()), "sliced_loss": sliced_loss}).decode()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Slice the blocks, by the policy's plan or by one that is found on an example batch."""
        from advisor.methods.tensor_parallel._sliced_training import slice_training

        slice_training(training, sequence=bool(parameters["sequence"]), vocabulary=bool(parameters["vocabulary"]))
