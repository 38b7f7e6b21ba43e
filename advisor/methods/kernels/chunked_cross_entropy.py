"""Compute the loss of a language model in chunks of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import judged
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["ChunkedCrossEntropy"]


class ChunkedCrossEntropy(Method):
    """Never holds all logits: each chunk of tokens is projected, scored, and projected again in the backward pass.

    ``torch.nn.functional.linear_cross_entropy`` is not used: torch 2.11 lacks it, and its chunked form computes
    gradients in the forward pass, outside autocast's and checkpointing's reach.
    """

    name = "chunked_cross_entropy"
    summary = "Computes logits and cross entropy over chunks of tokens, so that all logits never exist at once."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-5
    saves = frozenset({Saves.LOGITS})
    time_ratio = 1.03
    costs = "the output projection once more in the backward pass"
    pays = "with large vocabularies: one copy of GPT-2's logits is 200 kB per token, and cross entropy makes several"
    does_not_pay = "with small vocabularies, or where the output projection is most of the arithmetic"
    stage = Stage.LOSS
    parameters = (Parameter("chunks", (8, 16, 32), "number of chunks: more save more memory and cost more launches"),)
    citation = "Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models (the chunked baseline)"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a loss that was seen to be the cross entropy of one linear layer."""
        if facts is None:
            return Verdict.yes("only where the loss is the cross entropy of one linear layer")
        return judged(facts.linear_head, facts.linear_head_reason)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Replace the training's loss by the chunked one."""
        from advisor.methods.kernels._linear_head import chunked_loss, find_linear_head

        head = find_linear_head(training)
        chunks = int(parameters["chunks"])
        training.compute_loss = lambda model, batch: chunked_loss(*head(model, batch), chunks=chunks)
