"""Muon for the matrices of the blocks, and the user's Adam for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Conflict, Verdict
from advisor.methods.optimizers.adam import AdamReplacement
from advisor.methods.recompute.block_rules import judge_blocks, require_blocks
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Muon"]

_TWO = "it works on one optimizer of a known class, but here two step in turn"


class Muon(AdamReplacement):
    """Steps the matrices of the repeated blocks with ``torch.optim.Muon``; Adam or AdamW keeps all other parameters.

    Muon keeps one momentum and moves a matrix by its orthogonalized momentum. Its steps are scaled to the size of
    AdamW's (``adjust_lr_fn="match_rms_adamw"``), so that learning rate, schedule and weight decay stay the user's.
    Embeddings, the output layer, vectors and convolutions keep their optimizer, as its authors advise.
    """

    name = "muon"
    summary = "Steps the matrices of the blocks with Muon: one momentum in place of Adam's two moments."
    fidelity = Fidelity.MODEL
    costs = "another optimizer; five rounds of bf16 matrix products for each matrix and step"
    pays = "for pre-training transformers, which it often trains in fewer steps than AdamW, with less optimizer state"
    does_not_pay = "where a recipe for Adam must be kept; where its matrix products dominate a step (CPUs)"
    conflicts = (
        Conflict("fsdp", "it orthogonalizes whole matrices, which are sliced there"),
        Conflict("tensor_parallel", "it orthogonalizes whole matrices, which are sliced there"),
        *(
            Conflict(other, _TWO)
            for other in ("zero_1", "host_optimizer", "optimizer_in_backward", "half_weights", "pure_bf16")
        ),
    )
    replacement = "Muon"
    lacks = ("maximize", "differentiable", "capturable")
    citation = "Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs torch's Adam or AdamW, and repeated blocks with a matrix in them."""
        verdict = super().applicable(parameters, facts, hardware)
        if facts is None or not verdict.applicable:
            return verdict
        verdict = judge_blocks(facts.block_count, 1, facts.model_class)
        return _judge(facts.hidden_matrices, facts.model_class) if verdict.applicable else verdict

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Give the matrices of the blocks to Muon, and leave the rest where it is."""
        from advisor.methods.optimizers._muon import MuonBeside
        from advisor.training.structure import hidden_matrices

        self.require_adam(training)
        stepped = {id(one) for group in training.optimizer.param_groups for one in group["params"]}
        matrices = [one for one in hidden_matrices(training.model, require_blocks(training)) if id(one) in stepped]
        require(_judge(len(matrices), type(training.model).__name__))
        together = MuonBeside(training.optimizer, matrices)
        training.optimizer = together
        together.take_over_hooks()


def _judge(matrices: int | None, model_class: str) -> Verdict:
    reason = f"it steps matrices, but the blocks of {model_class} have no parameter that is a trained matrix"
    return judged(matrices != 0, reason)
