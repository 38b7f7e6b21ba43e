"""Keep a random projection of the inputs of linear layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.activations.module_kinds import LINEAR_LAYERS, judge_linear
from advisor.methods.applying import note_if_idle
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["RandomizedLinear"]


class RandomizedLinear(Method):
    """Estimates weight gradients, each the product of two matrices with a row per token (or sample).

    Both are multiplied by the same matrix of random signs, which leaves fewer rows: the product is right on average
    over the signs, and far off in one step. The gradient of the input does not need the input, and is exact. The signs
    are drawn again in the backward pass, from a seed.
    """

    name = "randomized_linear"
    summary = "Linear layers keep a random projection of their input: weight gradients are right on the average."
    fidelity = Fidelity.LOSSY
    random_gradients = True
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.05
    costs = "two products with random signs per layer, and a variance that shrinks with the rows kept"
    pays = "for fine-tuning with many tokens per step, where the noise of the gradients is large anyway"
    does_not_pay = (
        "where a layer's input is kept by something else too, such as flash attention's output or a ReLU's: the "
        "projection is then kept beside it"
    )
    stage = Stage.CHECKPOINT
    parameters = (Parameter("keep", (0.5, 0.2, 0.1), "share of the rows of each input that is kept: less is noisier"),)
    citation = "Bershatsky et al. 2022, Memory-Efficient Backpropagation through Large Linear Layers"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a linear layer."""
        if facts is None:
            return Verdict.yes("only where the model has linear layers")
        return judge_linear(any(map(facts.module_counts.get, LINEAR_LAYERS)), facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change the linear layers, and draw other numbers in every forward pass."""
        from advisor.methods.activations._randomized import RandomizedLinears

        keep = float(parameters["keep"])
        linears = RandomizedLinears(training, keep)
        training.forward_contexts.append(linears.one_pass)
        training.state_parts[self.name] = linears
        note_if_idle(
            training,
            lambda: linears.calls,
            f"randomized_linear keep={keep} changed nothing: no linear layer was called that trains its weight on "
            "several rows",
        )
