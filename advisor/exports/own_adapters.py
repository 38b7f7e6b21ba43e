"""Adapters of a trainer's configuration, as the nearest that a method has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.exports.reading import MISSING, is_same, value_at
from advisor.exports.rules import Given, Rule, Target
from advisor.methods.catalogue import get_method
from advisor.methods.setting import MethodSetting, use
from advisor.text.printable import quoted
from advisor.text.ranges import whole

__all__ = ["TRL_KEYS", "WHOLE_FIX", "trl_adapter", "with_known_adapter"]

WHOLE_FIX = "Write a number such as 4."

_TELLS = {"adapter": ("lora", "qlora"), "finetuning_type": ("lora",)}
"""Key that says what is trained -> its values for adapters."""


TRL_KEYS = ("use_peft", "lora_*", "use_rslora", "use_dora", "load_in_*", "bnb_4bit_*", "use_bnb_nested_quant")
"""What the scripts of trl say of adapters beside the TrainingArguments; a star stands for any ending."""
_TRL_RANK = 16  # where nothing is said
_TRL_DROPOUT = 0.05
_NO_MEASURED = ("use_rslora", "use_dora", "lora_modules_to_save", "lora_target_parameters", "load_in_8bit")


def trl_adapter(document: Mapping[str, Any], notes: list[str]) -> MethodSetting | None:
    """The adapters that a script of trl adds, as the method of the nearest rank.

    Args:
        document: TrainingArguments and the options of the script's model.
        notes: Told of every difference.
    """
    if document.get("use_peft") is not True:
        return None
    name = "qlora" if document.get("load_in_4bit") is True else "lora"
    rank = whole(document.get("lora_r", _TRL_RANK), "lora_r", fix=WHOLE_FIX)
    choices = next(one.choices for one in get_method(name).parameters if one.name == "rank")
    nearest = min((int(one) for one in choices), key=lambda one: abs(one - rank))
    if nearest != rank:
        ranks = " or ".join(str(one) for one in choices)
        notes.append(f"lora_r: {rank} is measured as {nearest}: {name} takes {ranks}")
    modules = document.get("lora_target_modules")
    if modules not in ("all-linear", ["all-linear"]):
        notes.append(f"lora_target_modules: {quoted(modules)} is measured as every linear layer")
    if dropout := document.get("lora_dropout", _TRL_DROPOUT):
        notes.append(f"lora_dropout: {quoted(dropout)} is measured as 0")
    for key in _NO_MEASURED:
        if document.get(key):
            notes.append(f"{key}: {quoted(document[key])} is not measured")
    return use(name, rank=nearest)


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
        notes.append(
            f"{told}: {quoted(document[told])} is not measured, as no {rank_key} is said: all weights are trained"
        )
        return
    wanted = whole(rank, rank_key, fix=WHOLE_FIX)
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
