"""What methods have in common that train low-rank adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import load, require
from advisor.methods.base import Method, Parameter, Stage, Verdict
from advisor.methods.setting import Parameters
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from torch import nn

    from advisor.training.training import Training

__all__ = ["WHICH_WEIGHTS_TRAIN", "LowRank"]

WHICH_WEIGHTS_TRAIN = "which of the weights are trained"
"""Decided by methods that train a part of the weights: two would each freeze what the other trains."""


class LowRank(Method):
    """Freezes the model, and trains the product of two thin matrices for each layer that is larger than these.

    Tied weights and the output layer of a language model stay without adapters, and so does a layer whose weight the
    loss takes instead of calling it. The state of the model has the sums of weights and adapters; a separate entry,
    named like the method, has both apart. A probe knows the layers as ``kinds``, refusals call them ``layers``.
    """

    fidelity = Fidelity.MODEL
    learns_slower = True
    stage = Stage.MODEL
    decides = WHICH_WEIGHTS_TRAIN
    parameters = (Parameter("rank", (8, 32), "thin side of the matrices: a higher one learns more and saves less"),)
    layers: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a layer that is larger than its adapters."""
        if facts is None:
            return Verdict.yes()
        return self._judge((one for kind in self.kinds for one in facts.matrices.get(kind, ())), parameters)

    def adapted(self, layers: Mapping[str, nn.Module], parameters: Parameters) -> list[str]:
        """The names of the layers that are larger than their adapters.

        Raises:
            MethodRefusedError: There are none, or a library is missing.
        """
        from advisor.training.structure import matrix_shape

        shapes = {name: matrix_shape(layer) for name, layer in layers.items()}
        require(self._judge(shapes.values(), parameters))
        for library in self.requires:
            load(library)
        return [name for name, shape in shapes.items() if _pays(shape, int(parameters["rank"]))]

    def add(self, training: Training, names: list[str], parameters: Parameters) -> None:
        """Add adapters to layers, and freeze everything else."""
        from advisor.methods.adapters._adapters import Adapters, add_adapters

        add_adapters(training.model, names, int(parameters["rank"]))
        training.state_parts[self.name] = Adapters(training.model, names)

    def _judge(self, shapes: Iterable[tuple[int, int]], parameters: Parameters) -> Verdict:
        """Whether any layer of these shapes (outputs, inputs) is worth adapters."""
        found, rank = set(shapes), int(parameters["rank"])
        if not found:
            return Verdict.no(
                f"it adapts {self.layers} that have a weight of their own, and the model has none besides its output "
                "layer"
            )
        if not any(_pays(shape, rank) for shape in found):
            outputs, inputs = max(found, key=lambda shape: shape[0] * shape[1] / sum(shape))
            return Verdict.no(
                f"adapters of rank {rank} would be larger than each of the {self.layers} themselves (the best has "
                f"{inputs} inputs and {outputs} outputs); choose a lower rank"
            )
        return Verdict.yes()


def _pays(shape: tuple[int, int], rank: int) -> bool:
    return rank * sum(shape) < shape[0] * shape[1]
