"""Adapters of a trainer's configuration, as the nearest that a method has."""

from __future__ import annotations

from typing import Any

from advisor.exports.reading import MISSING, is_same, value_at
from advisor.exports.rules import Given, Rule, Target
from advisor.text.printable import quoted
from advisor.text.ranges import whole

__all__ = ["with_known_adapter"]

_TELLS = {"adapter": ("lora", "qlora"), "finetuning_type": ("lora",)}
"""Key that says what is trained -> its values for adapters."""


def with_known_adapter(document: dict[str, Any], target: Target, notes: list[str]) -> None:
    """Replace the options of adapters by those that the table has for the nearest rank.

    Args:
        document: The configuration, which is changed.
        target: Its trainer.
        notes: Told of every difference.
    """
    told = next((key for key in _TELLS if key in document and key in target.own), None)
    if told is None:
        return
    if document[told] not in _TELLS[told]:
        if document[told] not in ("full", "", False):
            notes.append(f"{told}: {quoted(document[told])} is said by no method: all weights are measured as trained")
        return
    if (bits := document.get("quantization_bit")) not in (None, 4):
        notes.append(f"quantization_bit: {quoted(bits)} is not measured: the frozen weights stay as they are")
    four_bits = document[told] == "qlora" or document.get("quantization_bit") == 4
    rules = [rule for rule in target.rules if rule.of == ("qlora" if four_bits else "lora") and rule.keys]
    rank_key = next((key for rule in rules for key, value in rule.keys.items() if value == Given("rank")), "")
    rank = document.get(rank_key)
    if rank is None:
        return
    wanted = whole(rank, rank_key)
    rule = min(rules, key=lambda one: abs(_rank(one) - wanted))
    if _rank(rule) != wanted:
        ranks = " or ".join(str(_rank(one)) for one in rules)
        notes.append(f"{rank_key}: {wanted} is measured as {_rank(rule)}: {rule.of} takes {ranks}")
    for key, value in rule.keys.items():
        found = value_at(document, key)
        said = found is not MISSING and key not in (told, rank_key) and not key.endswith("alpha")
        if said and not is_same(found, value):
            notes.append(f"{key}: {quoted(found)} is measured as {quoted(value)}")
        document[key] = _rank(rule) if isinstance(value, Given) else value


def _rank(rule: Rule) -> int:
    (rank,) = rule.where["rank"]
    return int(rank)
