"""Keep a few bits of the derivative of each activation instead of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.activations.module_kinds import FORMULAS, FUNCTIONS, judge_activations
from advisor.methods.applying import note_if_idle
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["FewBitActivation"]


class FewBitActivation(Method):
    """GELU and SiLU keep which of a few pieces each input lies in; the derivative is constant in each piece.

    Outputs are bit-equal. With 1 to 4 bits, derivatives at standard normal inputs are wrong by 29, 13, 6 and 4 % (root
    mean square). An activation spelled out as a formula, as transformers' ``gelu_new``, keeps several tensors without
    this method, and so saves the most.
    """

    name = "few_bit_activation"
    summary = "Keeps 1 to 4 bits per value of GELU's and SiLU's derivative instead of their input."
    fidelity = Fidelity.LOSSY
    gradient_tolerance = 0.35
    update_tolerance = 0.65
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.05
    costs = "encoding the inputs, some element-wise passes over each activation"
    pays = "on transformers with wide GELU or SiLU layers, most where the activation is spelled out as a formula"
    does_not_pay = "in checkpointed blocks, where the activation is recomputed anyway"
    stage = Stage.CHECKPOINT
    parameters = (Parameter("bits", (4, 3, 2, 1), "bits kept per value: fewer save more and are further from exact"),)
    citation = "Novikov et al. 2022, Few-Bit Backward: Quantized Gradients of Activation Functions"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs GELU or SiLU, as modules or as functions."""
        if facts is None:
            return Verdict.yes("only where the model calls GELU or SiLU")
        found = any(facts.module_counts.get(kind) for kind in FORMULAS)
        return judge_activations(found or any(map(facts.function_counts.get, FUNCTIONS)), facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change the modules that call the activations."""
        from advisor.methods.activations._few_bit import FewBitActivations

        bits = int(parameters["bits"])
        activations = FewBitActivations(training, bits)
        note_if_idle(
            training,
            lambda: activations.called,
            f"few_bit_activation bits={bits} changed nothing: no GELU or SiLU was called whose input needs a gradient",
        )
