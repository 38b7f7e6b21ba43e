"""``save_pretrained`` of a model that a policy has changed: what it writes is the plain model's.

Methods rename modules and replace weights. Without this, a model with adapters would be saved under names that
``from_pretrained`` passes over with a warning, and an adapter of peft's would be saved without its weights wherever a
block is wrapped: nothing of the training would be in the files.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import nn
from torch.distributed.tensor import DTensor

from advisor.errors import PolicyError
from advisor.training.contexts import temporarily
from advisor.training.plain_module_names import plain_module_names
from advisor.training.processes.distribution import plain_names
from advisor.training.state_part import StatePart
from advisor.training.training import Training

__all__ = ["save_as_plain"]


def save_as_plain(training: Training) -> None:
    """Have ``save_pretrained`` of a model, and of modules in it, write plain names and weights, also once it is closed.

    Args:
        training: The training, to which all methods were applied.
    """
    parts = [part for part in training.state_parts.values() if type(part).to_plain is not StatePart.to_plain]
    for name, module in list(training.model.named_modules()):
        if callable(getattr(type(module), "save_pretrained", None)) and "save_pretrained" not in vars(module):
            (plain_name,) = plain_names({name: None})
            saving: Any = _PlainSaving(module, plain_name, parts, divided=bool(training.cuts))
            module.save_pretrained = saving  # Any, as to type checkers an attribute of a module is a module.


class _PlainSaving:
    """Stands for a module's ``save_pretrained``. A class, so that a model that has it can be copied and pickled.

    Args:
        module: The module. The whole model is not held: a copy of a part would come with a copy of all.
        name: Its plain name in the model; empty for the model itself.
        parts: What makes the model's state that of a plain model, in the order in which methods were applied.
        divided: Whether each process has a part of the model.
    """

    def __init__(self, module: nn.Module, name: str, parts: Sequence[StatePart], *, divided: bool) -> None:
        self._module = module
        self._name = name
        self._parts = parts
        self._divided = divided

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        module: Any = self._module
        with contextlib.ExitStack() as stack:
            if keywords.get("state_dict") is None:
                state = self._plain_state()
                stack.enter_context(temporarily(module, "state_dict", lambda *_, **__: dict(state)))
            if hasattr(module, "peft_config"):
                stack.enter_context(plain_module_names(module))
            return type(module).save_pretrained(module, *arguments, **keywords)

    def _plain_state(self) -> Mapping[str, Any]:
        """The module's part of the plain model's state.

        Raises:
            PolicyError: No process has all of it.
        """
        if self._divided or any(isinstance(one, DTensor) for one in self._module.parameters()):
            raise PolicyError(
                "A model that is divided among processes must be saved with a state that all of them have put "
                'together, but save_pretrained was called without one. Call state = training.state_dict()["model"] in '
                "every process, and model.save_pretrained(folder, state_dict=state) in the first."
            )
        above = f"{self._name}." if self._name else ""
        state = plain_names(self._module.state_dict(prefix=above))
        for part in reversed(self._parts):
            state = part.to_plain(state)
        return {name.removeprefix(above): value for name, value in state.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """For a copy of the model, such as an average of its weights: it saves its own."""
        module = copy.deepcopy(self._module, memo)  # being copied: from the memo
        return type(self)(module, self._name, copy.deepcopy(self._parts, memo), divided=self._divided)
