"""Muon for the matrices of the blocks, and the user's Adam for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.optimizers.adam import WHICH_OPTIMIZER, judge_adam, refuse_if_not_adam
from advisor.methods.recompute.block_rules import judge_blocks
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Muon"]

_NEEDS: dict[str, Any] = {
    "replacement": "Muon",
    "lacks": ("maximize", "differentiable", "capturable"),
    "couples_decay": False,
}
_TWO = "it works on one optimizer of a known class, but here two step in turn"


class Muon(Method):
    """Steps the matrices of the repeated blocks with ``torch.optim.Muon``; Adam or AdamW keeps all other parameters.

    Muon keeps one momentum and moves a matrix by its orthogonalized momentum. Its steps are scaled to the size of
    AdamW's (``adjust_lr_fn="match_rms_adamw"``), so that learning rate, schedule and weight decay stay the user's.
    Embeddings, the output layer, vectors and convolutions keep their optimizer, as its authors advise.
    """

    name = "muon"
    summary = "Steps the matrices of the blocks with Muon: one momentum in place of Adam's two moments."
    fidelity = Fidelity.MODEL
    saves = frozenset({Saves.OPTIMIZER_STATE})
    costs = "another optimizer; five rounds of bf16 matrix products for each matrix and step"
    pays = "for pre-training transformers, which it often trains in fewer steps than AdamW, with less optimizer state"
    does_not_pay = "where a recipe for Adam must be kept; where its matrix products dominate a step (CPUs)"
    stage = Stage.OPTIMIZER
    decides = WHICH_OPTIMIZER
    conflicts = (
        Conflict("fsdp", "it orthogonalizes whole matrices, which are sliced there"),
        Conflict("tensor_parallel", "it orthogonalizes whole matrices, which are sliced there"),
        Conflict("zero_1", _TWO),
        Conflict("host_optimizer", _TWO),
        Conflict("optimizer_in_backward", _TWO),
        Conflict("half_weights", _TWO),
        Conflict("pure_bf16", _TWO),
    )
    citation = "Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs torch's Adam or AdamW, and repeated blocks with a matrix in them."""
        if facts is None:
            return Verdict.yes()
        verdict = judge_adam(facts.optimizer_class, facts.optimizer_options, **_NEEDS)
        if verdict.applicable:
            verdict = judge_blocks(facts.block_count, 1, facts.model_class)
        return verdict if not verdict.applicable else _judge(facts.hidden_matrices, facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Give the matrices of the blocks to Muon, and leave the rest where it is."""
        from advisor.methods.optimizers._muon import MuonBeside
        from advisor.training.structure import find_blocks, hidden_matrices

        plain = training.optimizer
        refuse_if_not_adam(plain, self.name, **_NEEDS)
        blocks = find_blocks(training.model, training.blocks)
        name = type(training.model).__name__
        matrices = hidden_matrices(training.model, blocks)
        for verdict in (judge_blocks(len(blocks), 1, name), _judge(len(matrices), name)):
            if not verdict.applicable:
                raise MethodRefusedError(verdict.reason)
        together = MuonBeside(plain, matrices)
        training.optimizer = together
        together.take_over_hooks()


def _judge(matrices: int | None, model_class: str) -> Verdict:
    """Whether the blocks have something for it to step; ``None``: nobody has counted."""
    if matrices == 0:
        return Verdict.no(
            f"it steps matrices, but the blocks of {model_class} have no parameter that is a trained matrix"
        )
    return Verdict.yes()
