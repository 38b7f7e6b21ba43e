"""Let the compiler choose what each block keeps for the backward pass, under a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.base import Conflict, Parameter, Saves
from advisor.methods.kernels.compile import Compiling
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP, require_blocks
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["CompileBudget"]


class CompileBudget(Compiling):
    """Compiles each block with a budget for its saved activations; the compiler recomputes what costs least.

    Per block, because for a whole model the peak does not fall with the budget: all recomputed tensors are then alive
    at once.
    """

    name = "compile_budget"
    summary = "Compiles each repeated block to keep a share of its activations and recompute the cheapest others."
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 0.95
    costs = "compilation in the first steps, and the recomputation that the budget asks for, cheapest first"
    pays = "when activations fill the memory: the compiler finds what to recompute, and fuses it with its use"
    does_not_pay = "where blocks do not compile as one graph: the budget then holds for each of their graphs"
    decides = WHAT_BLOCKS_KEEP
    conflicts = (Conflict("compile", "it compiles the blocks itself, with its budget"),)
    parameters = (
        Parameter(
            "budget",
            (0.5, 0.25, 0.1, 0.75),
            "share of what the compiler would keep: 1 is its own choice, 0 only the inputs of a block",
            time_ratio={0.25: 1.1, 0.1: 1.2},
        ),
    )
    citation = (
        "Kirisame et al. 2021, Dynamic Tensor Rematerialization (recomputation under a budget); here planned by "
        "torch.compile, https://pytorch.org/blog/activation-checkpointing-techniques/"
    )

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Set the blocks up to be compiled when they are first called."""
        from advisor.methods.kernels._compile import compile_modules

        budget = float(parameters["budget"])
        compile_modules(training, require_blocks(training), f"compile_budget budget={budget}", budget=budget)
