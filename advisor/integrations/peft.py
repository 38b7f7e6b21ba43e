"""Save the adapters of a training as peft does, beside or in place of the merged model."""

from __future__ import annotations

import os
from pathlib import Path

from torch.nn.modules.batchnorm import _NormBase

from advisor.errors import MethodRefusedError
from advisor.methods.adapters._adapters import Adapters
from advisor.training.training import Training

__all__ = ["require_adapters", "save_adapters"]


def save_adapters(training: Training, folder: str | os.PathLike[str]) -> None:
    """Save what ``lora`` or ``qlora`` has trained, for ``PeftModel.from_pretrained(model, folder)``.

    ::

        save_adapters(training, "adapters")
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("org/base"), "adapters")

    The model that they are loaded into must have the weights that the training began with; those of ``qlora`` were
    trained beside these weights in four bits. With several processes, all may call it: the first one writes.

    Args:
        training: A training under a policy with adapters.
        folder: Gets ``adapter_config.json`` and ``adapter_model.safetensors``.

    Raises:
        MethodRefusedError: The policy has no adapters, or training has changed more than these.
    """
    adapters = require_adapters(training)
    if training.world.rank > 0:
        return
    import peft
    from safetensors.torch import save_file

    options, tensors = adapters.for_peft()
    config = peft.LoraConfig(**options)
    model = training.model
    config.base_model_name_or_path = getattr(getattr(model, "config", None), "name_or_path", "") or None
    if type(model).__name__.endswith("ForCausalLM"):
        config.task_type = peft.TaskType.CAUSAL_LM
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, _weights(folder), {"format": "pt"})
    config.save_pretrained(str(folder))


def require_adapters(training: Training) -> Adapters:
    """The adapters of a training, if they are all that it trains.

    Raises:
        MethodRefusedError: It has none, or changes more than these.
    """
    found = [part for part in training.state_parts.values() if isinstance(part, Adapters)]
    if not found:
        raise MethodRefusedError(
            "adapters are saved of a policy with lora or qlora, but this one has neither; save the model, as ever"
        )
    if any(isinstance(module, _NormBase) and module.running_mean is not None for module in training.model.modules()):
        raise MethodRefusedError(
            "adapters alone must be all that training changes, but the model has running statistics (BatchNorm), which "
            "it updates too; save the model, in which adapters are merged"
        )
    if layer := found[0].in_two_places:
        raise MethodRefusedError(
            f"peft adapts a layer in one place, but {layer} is in several; save the model, in which adapters are merged"
        )
    return found[0]


def _weights(folder: str | os.PathLike[str]) -> Path:
    return Path(folder) / "adapter_model.safetensors"
