"""From a policy to a trainer's keys: what is exported, approximated, or needs the adapter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from advisor.errors import OptionError, PolicyError
from advisor.exports.rules import Given, Rule, Status, Target
from advisor.exports.without_key import EVERYWHERE
from advisor.methods.catalogue import get_method
from advisor.methods.compose import conflict_between, misplaced, missing_dependency
from advisor.methods.setting import MethodSetting
from advisor.policy.file import PolicyFile
from advisor.policy.policy import Policy

__all__ = ["QUANTITIES", "Export", "Line", "export_policy", "nested", "rule_for"]

QUANTITIES = ("micro_batch", "accumulation_steps", "gpu_count", "max_grad_norm", "device")
"""What a policy has beside its methods, and every table answers for. Clipping and the kind of device may be unknown."""


_USUAL = "AdamW"
"""The optimizer of a model file that makes none, and of trainers, whose keys for its step make one."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one part of a policy.

    Attributes:
        what: The quantity or method, with its values.
        status: What became of it.
        keys: Dotted key -> value.
        text: In what it differs, why there is no key, or what else to know.
        outside: What must be given outside of the file.
        decided: Whether the policy decides it; clipping and the kind of device stay as the user has them.
    """

    what: str
    status: Status
    keys: dict[str, Any] = {}
    text: str = ""
    outside: str = ""
    decided: bool = True


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as a trainer's configuration.

    Attributes:
        target: The trainer.
        policy: The policy.
        keys: Dotted key -> value, with everything that plain training switches off.
        lines: What became of each part of the policy.
    """

    target: Target
    policy: Policy
    keys: dict[str, Any]
    lines: tuple[Line, ...]

    @property
    def complete(self) -> bool:
        """Whether the configuration says the whole policy."""
        return all(line.status is Status.EXPORTED for line in self.lines)

    @property
    def decided(self) -> frozenset[str]:
        """The keys that the policy itself decides; the others are those of plain training."""
        return frozenset(key for line in self.lines if line.decided for key in line.keys)


def export_policy(file: PolicyFile, target: Target, *, max_grad_norm: float | None = None) -> Export:
    """Translate a policy.

    Args:
        file: The policy, and where it was measured.
        target: The trainer.
        max_grad_norm: The norm to which gradients are clipped; default: what the policy states that it was measured
            with, or none. A file of the user's keeps its own then.

    Raises:
        OptionError: The norm is no norm.
        PolicyError: The policy contradicts itself, or the trainer cannot divide a model among devices as it does.
    """
    if max_grad_norm is not None and not 0 <= max_grad_norm < math.inf:
        raise OptionError(
            f"--max-grad-norm must be a finite number that is not negative, but got {max_grad_norm:g}. Give 0 to "
            "switch clipping off."
        )
    policy = file.policy
    if reason := _why_impossible(policy):
        raise PolicyError(f"A policy must be possible to be exported, but {reason}.")
    values = _quantities(file, max_grad_norm)
    undecided = {"device"} | ({"max_grad_norm"} if max_grad_norm is None else set())
    methods = frozenset(setting.name for setting in policy.methods)
    quantities = [
        _line(rule, f"{name} {values[name]}", values, decided=name not in undecided)
        for name in QUANTITIES
        if name in values and (rule := _first(target, name, values, methods)) is not None
    ]
    settings = []
    for setting in policy.methods:
        line = _line(rule_for(setting, target, methods, values), setting.words, {**values, **setting.parameters})
        if line.status is Status.REFUSED and get_method(setting.name).distributes:
            raise PolicyError(
                f"A policy must divide its work among devices in a way that the trainer knows, but {target.title} "
                f"cannot say {setting.words}: {line.text}. Train with wrapper.py, or tune with --gpus on methods that "
                "divide only the data."
            )
        settings.append(line)
    keys = {key: value for line in quantities for key, value in line.keys.items()}
    keys |= {key: value for key, value in target.plain.items() if key not in keys}
    for line in settings:
        keys |= line.keys
    # A trainer may take a word or a mapping in the same place.
    keys = {key: value for key, value in keys.items() if not any(one.startswith(f"{key}.") for one in keys)}
    return Export(target=target, policy=policy, keys=keys, lines=(*quantities, *settings))


def _why_impossible(policy: Policy) -> str | None:
    """Why no training could follow it, whatever the model and the device; ``None`` if one can."""
    for setting in policy.methods:
        if policy.accumulation_steps > 1 and not get_method(setting.name).accumulates:
            return f"{setting.words} needs the whole gradient in one backward pass, and the policy accumulates"
    return (
        missing_dependency(policy.methods)
        or misplaced(policy.methods, policy.gpu_count, policy.axes)
        or conflict_between(policy.methods)
    )


def rule_for(
    setting: MethodSetting, target: Target, methods: frozenset[str], quantities: Mapping[str, Any] | None = None
) -> Rule:
    """The rule of a method's setting: the trainer's own, or the one that holds everywhere."""
    values = {"optimizer": _USUAL, **(quantities or {}), **setting.parameters}
    found = _first(target, setting.name, values, methods)
    return found or EVERYWHERE[setting.name]


def _first(target: Target, of: str, values: Mapping[str, Any], methods: frozenset[str]) -> Rule | None:
    return next((rule for rule in target.rules if rule.of == of and rule.covers(values, methods)), None)


def _quantities(file: PolicyFile, max_grad_norm: float | None) -> dict[str, Any]:
    policy = file.policy
    values: dict[str, Any] = {
        "micro_batch": policy.micro_batch,
        "accumulation_steps": policy.accumulation_steps,
        "rank_batch": policy.micro_batch * policy.accumulation_steps,
        "gpu_count": policy.gpu_count,
        "data_degree": policy.data_degree,
        "global_batch": policy.global_batch,
        "tensor": policy.axes.tensor,
        "pipeline": policy.axes.pipeline,
        "max_grad_norm": _norm_then(file) if max_grad_norm is None else max_grad_norm,
    }
    if optimizer := _optimizer(file):
        values["optimizer"] = optimizer
    if file.fingerprints is not None and "kind" in file.fingerprints.hardware:
        values["device"] = file.fingerprints.hardware["kind"]
    return values


def _optimizer(file: PolicyFile) -> str:
    """The class of the optimizer that it was measured with; empty if unknown."""
    identity = None if file.fingerprints is None else file.fingerprints.identity
    model = None if identity is None else identity.model
    name, called, _ = ("" if model is None else model.optimizer).partition("(")
    return name.rpartition(".")[2] if called else ""


def _norm_then(file: PolicyFile) -> float:
    """The norm that the request stated, as the configuration of a trainer does; 0 where it stated none."""
    norm = None if file.fingerprints is None else file.fingerprints.asked.get("max_grad_norm")
    return float(norm) if isinstance(norm, int | float) else 0.0


def _line(rule: Rule, what: str, values: Mapping[str, Any], *, decided: bool = True) -> Line:
    return Line(
        what=what,
        decided=decided,
        status=rule.status,
        keys={key: _filled(value, values) for key, value in rule.keys.items()},
        text=rule.text,
        outside=rule.outside.format_map(values),
    )


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    return values[value.name] if isinstance(value, Given) else value


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings."""
    whole: dict[str, Any] = {}
    for key, value in keys.items():
        *above, last = key.split(".")
        place = whole
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    return whole
