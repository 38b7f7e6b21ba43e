"""An optimizer's class, settings and groups, to build an equal one over the parameters of another process."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["OptimizerSettings"]

_IN_NONE = -1
"""Instead of the group of a parameter that the optimizer does not train."""


@dataclass(frozen=True)
class OptimizerSettings:
    """How an optimizer was made; an instance is ``build_optimizer(parameters)``.

    Attributes:
        kind: Its class.
        keywords: Arguments of the class.
        groups: Settings of each parameter group, where they differ from those.
        group_of: The group of each trained parameter of the model, in the model's order; -1 if it is in none.
    """

    kind: type
    keywords: dict[str, Any]
    groups: tuple[dict[str, Any], ...]
    group_of: tuple[int, ...]

    @classmethod
    def of(cls, optimizer: Any, model: Any, keywords: Mapping[str, Any] | None = None) -> OptimizerSettings:
        """Read them off an optimizer.

        Args:
            optimizer: An optimizer over the parameters of ``model``.
            model: The model.
            keywords: What the optimizer was made with, if that is known; otherwise its defaults tell.
        """
        kind = type(optimizer)
        taken = _arguments(kind)
        known = dict(optimizer.defaults)
        if hasattr(getattr(optimizer, "args", None), "optim_bits"):  # bitsandbytes keeps it there.
            known["optim_bits"] = optimizer.args.optim_bits
        if keywords is None:
            keywords = {name: value for name, value in known.items() if name in taken}
        place = {id(one): number for number, group in enumerate(optimizer.param_groups) for one in group["params"]}
        groups = tuple(_differing(group, known) for group in optimizer.param_groups)
        trained = [one for one in model.parameters() if one.requires_grad]
        return cls(kind, dict(keywords), groups, tuple(place.get(id(one), _IN_NONE) for one in trained))

    @property
    def is_fused(self) -> bool:
        """Whether its step is one of torch's fused ones."""
        of_torch = self.kind.__module__.startswith("torch.optim")
        return of_torch and any(options.get("fused") for options in (self.keywords, *self.groups))

    def unfused(self) -> OptimizerSettings:
        """The same with torch's own choice of a step."""
        keywords, *groups = (
            {name: value for name, value in options.items() if name not in ("fused", "foreach")}
            for options in (self.keywords, *self.groups)
        )
        return replace(self, keywords=keywords, groups=tuple(groups))

    def __call__(self, parameters: Iterable[Any]) -> Any:
        """An optimizer like it; in one group if a method has left other parameters than it was made for."""
        given = list(parameters)
        if len(given) != len(self.group_of):
            return self.kind([{"params": given, **self.groups[0]}], **self.keywords)
        members: list[list[Any]] = [[] for _ in self.groups]
        for parameter, group in zip(given, self.group_of, strict=True):
            if group != _IN_NONE:
                members[group].append(parameter)
        groups = [{"params": own, **group} for own, group in zip(members, self.groups, strict=True) if own]
        return self.kind(groups, **self.keywords)


def _differing(group: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A group's settings that are not the optimizer's; the learning rate is the one before any scheduler."""
    found = {name: value for name, value in group.items() if name not in ("params", "initial_lr")}
    found["lr"] = group.get("initial_lr", group["lr"])
    return {name: value for name, value in found.items() if name not in defaults or value != defaults[name]}


def _arguments(kind: type) -> set[str]:
    """Names of the arguments that a class takes; what it hands on by ``**keywords``, those it is derived from take."""
    found: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base).parameters.values()
            found |= {one.name for one in parameters}
            if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters):
                break
    return found
