"""How FSDP is said in older configurations, as the keys of today's say it."""

from __future__ import annotations

from typing import Any

from advisor.exports.rules import Given, Target
from advisor.text.printable import quoted

__all__ = ["with_known_sharding"]

_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Of FSDP's first version, in the order of their numbers, from 1. Files have names or numbers."""
_RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
"""As accelerate translates them for the second version (`accelerate to-fsdp2`)."""
_CONFIG = "fsdp_config"
_KEYS = ("reshard_after_forward", "fsdp_reshard_after_forward", "sharding_strategy", "fsdp_sharding_strategy")


def with_known_sharding(document: dict[str, Any], target: Target, notes: list[str]) -> None:
    """Say a strategy, and the words of transformers' ``fsdp``, by the keys that the table of a trainer has.

    Args:
        document: The configuration, which is changed.
        target: Its trainer.
        notes: Told of every difference.
    """
    config, reshard = document.get(_CONFIG), _key_of("reshard", target)
    if not reshard:
        return
    if isinstance(config, str):
        notes.append(f"{_CONFIG}: {quoted(config)} is neither beside this file nor in the current folder, and not read")
        config = document[_CONFIG] = {}
    inside = config if isinstance(config, dict) else {}
    words = _words(document.get("fsdp"))
    found = [_strategy(inside.get(key)) for key in _KEYS] + [_strategy(word) for word in words]
    strategy = next((name for name in found if name), None)
    if strategy is None and "OFFLOAD" not in words:
        return
    if strategy == "NO_SHARD":
        notes.append("NO_SHARD divides nothing: measured as ddp")
        for key in ("fsdp", _CONFIG, "fsdp_version"):
            document.pop(key, None)
        if document.get("distributed_type") == "FSDP":
            document["distributed_type"] = "MULTI_GPU"
        return
    if not isinstance(config, dict):
        config = document[_CONFIG] = {}
    if strategy is not None and not isinstance(config.get(reshard), bool):  # which trainers take before a word
        config[reshard] = _RESHARDS[strategy]
        if strategy.startswith("HYBRID"):
            notes.append(f"{strategy} is measured as divided among all devices")
    if "OFFLOAD" in words:
        config[_key_of("offload", target)] = True


def _words(value: Any) -> list[str]:
    """The options in transformers' ``fsdp``: a list, or words with spaces between them."""
    if isinstance(value, str):
        value = value.split()
    return [str(one).upper() for one in value] if isinstance(value, list) else []


def _strategy(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(_STRATEGIES):
        return _STRATEGIES[value - 1]
    name = str(value).upper()
    return name if name in _STRATEGIES else None


def _key_of(parameter: str, target: Target) -> str:
    """The key, inside of ``fsdp_config``, of a parameter of the method ``fsdp``."""
    rules = (rule for rule in target.rules if rule.of == "fsdp")
    keys = (key for rule in rules for key, value in rule.keys.items() if value == Given(parameter))
    return next(keys, "").removeprefix(f"{_CONFIG}.")
