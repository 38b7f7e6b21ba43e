"""Let ``torch.compile`` make the kernels of the model, or of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Conflict, Method, Parameter, Stage, Verdict
from advisor.methods.recompute.block_rules import judge_blocks, require_blocks
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Compile", "Compiling"]

_VOLTA = (7, 0)


class Compiling(Method):
    """Compiles modules with ``torch.compile``: the blocks, unless a parameter ``scope`` says otherwise."""

    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 2e-3
    update_tolerance = 0.1  # Adam blows up gradients that are zero but for rounding: a bias before BatchNorm.
    slow_start = True
    stage = Stage.COMPILE

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a compiler for the device, and repeated blocks where these are compiled."""
        capability = hardware.compute_capability
        if capability is not None and capability < _VOLTA:
            return Verdict.no(
                f"the compiler for GPUs needs compute capability 7.0 (Volta), but {hardware.name} has "
                f"{capability[0]}.{capability[1]}"
            )
        if facts is not None and facts.compiler:
            return Verdict.no(facts.compiler)
        if facts is None or parameters.get("scope", "blocks") != "blocks":
            return Verdict.yes()
        return judge_blocks(facts.block_count, 1, facts.model_class)


class Compile(Compiling):
    """Compiles the blocks, or the whole model, in place; gradients and memory follow from what the compiler fuses.

    It also keeps less for the backward pass where recomputing is as fast as reading, by no guaranteed amount.
    """

    name = "compile"
    summary = "Compiles the repeated blocks, or the whole model, to fused kernels with torch.compile."
    saves = frozenset()
    time_ratio = 0.85
    costs = "seconds to minutes of compilation in the first step, and again at a second batch size"
    pays = "when a step is bound by many small kernels or by reading activations, and many steps follow"
    does_not_pay = "for short trainings, and for batches whose shapes keep changing: each new one is compiled anew"
    conflicts = (
        Conflict(
            "chunked_cross_entropy",
            "it calls the model's parts instead of the model, so that nothing would be compiled; use scope=blocks",
            own={"scope": "model"},
        ),
        Conflict(
            "selective_checkpoint",
            "it chooses among operators, which compiled kernels are not; use compile_budget",
            where={"recompute": "elementwise"},
        ),
    )
    parameters = (
        Parameter(
            "scope",
            ("blocks", "model"),
            "blocks: each repeated block, compiled once for all that are alike; model: the whole model",
        ),
    )
    citation = "Ansel et al. 2024, PyTorch 2; https://docs.pytorch.org/docs/2.8/torch.compiler.html"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Set the modules up to be compiled when they are first called."""
        from advisor.methods.kernels._compile import compile_modules

        modules = require_blocks(training) if parameters["scope"] == "blocks" else [training.model]
        compile_modules(training, modules, f"compile {parameters['scope']}")
