"""States of a model in stages as those of a plain model, and back; also on another number of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._stage_ranks import PipelineRanks
from advisor.training.processes.distribution import plain_names

__all__ = ["PlainNames", "StageState"]


class PlainNames:
    """The names of a model before its blocks are distributed, in their order.

    Args:
        model: The whole model.
        blocks: Its blocks.

    Attributes:
        state: Names of its state dictionary.
        parameters: Names of its parameters, each once.
        metadata: The versions that its modules note in a state dictionary.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        numbers = {id(block): number for number, block in enumerate(blocks)}
        modules = plain_names(dict(model.named_modules(remove_duplicate=False)))
        self._blocks = {name: numbers[id(module)] for name, module in modules.items() if id(module) in numbers}
        state = plain_names(model.state_dict())
        self.state = list(state)
        self.metadata = getattr(state, "_metadata", None)
        first: dict[int, str] = {}
        self._alias: dict[str, str] = {}
        for name, parameter in plain_names(dict(model.named_parameters(remove_duplicate=False))).items():
            self._alias[name] = first.setdefault(id(parameter), name)
        self.parameters = list(first.values())

    def first(self, name: str) -> str:
        """The name under which a model lists a tied parameter."""
        return self._alias.get(name, name)

    def block_of(self, name: str) -> int | None:
        """The number of the block that has a parameter or buffer; ``None`` outside of the chain."""
        while name:
            if name in self._blocks:
                return self._blocks[name]
            name = name.rpartition(".")[0]
        return None

    def of(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that a model has now, each by its first name."""
        found = plain_names(dict(model.named_parameters(remove_duplicate=False)))
        return {self.first(name): parameter for name, parameter in found.items()}


class StageState:
    """Gathers what the ranks of a pipeline hold, and picks from the whole what a rank holds.

    Args:
        names: The names of the plain model.
        ranks: The ranks of the pipeline.
        model: This rank's part of the model.
        owner: Name in a state dictionary -> the rank that gives its value.
        emptied: First names of parameters that this rank has emptied.
    """

    def __init__(
        self,
        names: PlainNames,
        ranks: PipelineRanks,
        model: nn.Module,
        owner: Callable[[str], int],
        emptied: set[str],
    ) -> None:
        self._names = names
        self._ranks = ranks
        self._model = model
        self._owner = owner
        self._emptied = emptied

    def whole_model_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The plain model's state in host memory of rank 0, and nothing on others; every rank calls it.

        Args:
            state: This rank's state under plain names.
        """
        found = self._gathered(self._names.state, state)
        whole = {name: found[name] for name in self._names.state if name in found}
        if whole and self._names.metadata is not None:
            kind = type(plain_names(self._model.state_dict()))
            whole = kind(whole)
            whole._metadata = self._names.metadata  # type: ignore[attr-defined]
        return whole

    def own_model_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank loads of a plain model's state; every rank is given all of it.

        Raises:
            RuntimeError: It is not the state of this model.
        """
        missing = [name for name in self._names.state if name not in state]
        unknown = [name for name in state if name not in set(self._names.state)]
        if missing or unknown:
            raise RuntimeError(
                f"the state must have the names of {type(self._model).__name__}, but it lacks "
                f"{', '.join(missing[:3]) or 'none'} and has {', '.join(unknown[:3]) or 'none'} besides"
            )
        own = plain_names(self._model.state_dict())
        return {name: value if self._names.first(name) in self._emptied else state[name] for name, value in own.items()}

    def whole_optimizer_state(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The state of an optimizer over the whole model, in host memory of rank 0; every rank calls it.

        Args:
            state: The state of this rank's optimizer.
            optimizer: This rank's optimizer.
        """
        if not state:  # another process along another axis has it
            return {}
        own = self._named(state, optimizer)
        entries = {own[index]: value for index, value in state["state"].items() if own[index]}
        found = self._gathered(self._names.parameters, entries)
        groups = self._groups(state, optimizer)
        if self._ranks.rank > 0:
            return {}
        numbers = {name: number for number, name in enumerate(name for group in groups for name in group)}
        held = {numbers[name]: value for name, value in found.items() if name in numbers}
        listed = [
            {**options, "params": [numbers[name] for name in group]}
            for options, group in zip(state["param_groups"], groups, strict=True)
        ]
        return {"state": dict(sorted(held.items())), "param_groups": listed}

    def own_optimizer_state(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What this rank's optimizer loads of the state of one over the whole model; every rank is given all of it."""
        # Its groups are enough, and optimizers that are sharded give the state only once all parts are gathered.
        own = torch.optim.Optimizer.state_dict(optimizer)
        groups = self._groups(own, optimizer)
        indices = [index for group in state["param_groups"] for index in group["params"]]
        names = [name for group in groups for name in group]
        if len(indices) != len(names):
            raise MethodRefusedError(
                f"the state must be of an optimizer over the whole model, but it has {len(indices)} parameters and the "
                f"model {len(names)} that are trained"
            )
        by_name = dict(zip(names, indices, strict=True))
        held = {
            index: state["state"][by_name[name]]
            for index, name in self._named(own, optimizer).items()
            if name and name not in self._emptied and by_name[name] in state["state"]
        }
        listed = [
            {**options, "params": group["params"]}
            for options, group in zip(state["param_groups"], own["param_groups"], strict=True)
        ]
        return {"state": held, "param_groups": listed}

    def _named(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[int, str]:
        """Index in the state of an optimizer -> first name of the parameter."""
        by_id = {id(parameter): name for name, parameter in self._names.of(self._model).items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        order = [index for group in state["param_groups"] for index in group["params"]]
        return {index: by_id.get(id(parameter), "") for index, parameter in zip(order, parameters, strict=True)}

    def _groups(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """First names of the parameters of every group of an optimizer over the whole model, in the model's order."""
        own = self._named(state, optimizer)
        listed = [[own[index] for index in group["params"]] for group in state["param_groups"]]
        every: Sequence[list[list[str]]] = self._ranks.told_by_all(listed)
        position = {name: number for number, name in enumerate(self._names.parameters)}
        if any(group != sorted(group, key=lambda name: position.get(name, -1)) for group in listed):
            raise MethodRefusedError(
                "the groups of an optimizer must list parameters in the order of the model, because stages know each "
                "other's by it, but a group lists them in another; build it from the parameters in the order given"
            )
        return [
            sorted({name for rank in every for name in rank[group] if name in position}, key=position.__getitem__)
            for group in range(len(listed))
        ]

    def _gathered(self, names: Sequence[str], own: Mapping[str, Any]) -> dict[str, Any]:
        """What the owners have under the names, one by one: no other rank holds more than one of them."""
        ranks = self._ranks
        found: dict[str, Any] = {}
        had = ranks.told_by_all([name for name in names if name in own and self._owner(name) == ranks.rank])
        for rank, theirs in enumerate(had):
            for name in theirs:
                value = _on_host(own[name]) if rank == ranks.rank else None
                value = ranks.told(value, by=rank) if rank > 0 else value
                if ranks.rank == 0:
                    found[name] = _on_host(value)
        return found


def _on_host(value: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda each: each.detach().cpu() if isinstance(each, torch.Tensor) else each, value
    )
