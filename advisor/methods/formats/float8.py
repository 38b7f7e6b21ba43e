"""Matrix products of linear layers in 8-bit floats."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import load, require
from advisor.methods.base import Method, Parameter, Stage, Verdict
from advisor.methods.number_formats import judge_format, refuse_device
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Float8"]

_MULTIPLE = 16
"""What both sizes of a layer must be divisible by for the GPU's float8 kernels."""


class Float8(Method):
    """Casts inputs, weights and gradients of ``nn.Linear`` to float8 for each product, with a scale for their range.

    Weights, what is saved for the backward pass, and everything outside linear layers keep their format: this saves
    time. Layers of a size without kernels stay as they are, and so does the output layer of a transformers model, whose
    logits need more than 4 bits.
    """

    name = "float8"
    summary = "Computes the matrix products of linear layers in 8-bit floats (torchao); saves time, not memory."
    fidelity = Fidelity.PRECISION
    gradient_tolerance = 0.2
    saves = frozenset()
    time_ratio = 0.6
    computes_in = "float8"
    costs = "3 or 4 significant bits in each product; casts, which only a compiler makes cheap"
    pays = "on Hopper and later, for large linear layers (thousands of features), together with torch.compile"
    does_not_pay = "without torch.compile, or for small layers: casting takes longer than the shorter products save"
    stage = Stage.PARALLELIZE  # It puts other modules into the model; what wraps or divides blocks comes later.
    parameters = (
        Parameter(
            "scale",
            ("tensorwise", "rowwise"),
            "what shares a scale: a whole tensor (fastest), or each row (more accurate)",
        ),
    )
    requires = ("torchao",)
    extra = "quant"
    citation = "Micikevicius et al. 2022, FP8 Formats for Deep Learning; torchao.float8"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs compute capability 8.9 and plain linear layers; on a CPU float8 is only emulated."""
        verdict = judge_format("float8", facts, hardware)
        if not verdict.applicable or facts is None:
            return verdict
        return _judge(bool(facts.module_counts.get("torch.nn.Linear")), facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Replace torch's linear layers by torchao's, which hold the same parameters under the same names."""
        import torch

        from advisor.training.structure import output_layer

        refuse_device("float8", training.device)
        recipes, convert = load("torchao.float8:Float8LinearConfig"), load("torchao.float8:convert_to_float8_training")
        model = training.model
        plain = [module for module in model.modules() if type(module) is torch.nn.Linear]
        require(_judge(bool(plain), type(model).__name__))
        left = (model, output_layer(model))
        known = [layer for layer in plain if layer.in_features % _MULTIPLE == layer.out_features % _MULTIPLE == 0]
        able = {id(layer) for layer in known if not any(layer is one for one in left)}
        if not able:
            training.notes.append(
                "float8 changed nothing: it needs linear layers, apart from the output layer, whose sizes are both "
                f"divisible by {_MULTIPLE}, but none of the model's {len(plain)} is one"
            )
            return
        # Padding is for the number of tokens, which the product for the weight's gradient sums over.
        config = dataclasses.replace(recipes.from_recipe_name(str(parameters["scale"])), pad_inner_dim=True)
        convert(model, module_filter_fn=lambda module, _: id(module) in able, config=config)


def _judge(found: bool, model: str) -> Verdict:
    if found:
        return Verdict.yes("works best together with torch.compile")
    return Verdict.no(f"it changes torch.nn.Linear, and {model} has none (transformers' Conv1D is another class)")
