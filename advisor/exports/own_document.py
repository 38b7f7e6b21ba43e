"""The keys of one trainer's configuration, as the tables of the exports know them, and what they do not say."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.errors import OptionError
from advisor.exports.accelerate_keys import ACCELERATE
from advisor.exports.config_file import installed_version
from advisor.exports.deepspeed_keys import DEEPSPEED
from advisor.exports.export import QUANTITIES
from advisor.exports.hf_keys import HF
from advisor.exports.installed_keys import other_keys
from advisor.exports.own_adapters import TRL_KEYS, WHOLE_FIX, trl_adapter, with_known_adapter
from advisor.exports.own_format import with_known_format
from advisor.exports.own_sharding import with_known_sharding
from advisor.exports.patching import misspelled
from advisor.exports.reading import MISSING, is_same, put, settings_in, unquoted, value_at
from advisor.exports.rules import Given, Rule, Status
from advisor.exports.trainer_formats import TrainerFormat, is_among
from advisor.methods.catalogue import get_method
from advisor.methods.setting import MethodSetting
from advisor.text.printable import quoted, shown
from advisor.text.ranges import whole

__all__ = ["Document"]

_AUTO = "auto"
_OFF = ("no", "NO", "none")
_FALSE = ("false", *_OFF)
_OWN_FORMATS = ("bf16.enabled", "fp16.enabled", "optimizer.type")
_SAME_OPTIMIZERS = {"adamw_8bit": "adamw_bnb_8bit", "adamw_hf": "adamw_torch"}
_NEAR_OPTIMIZERS = {
    "paged_adamw": "adamw_torch",
    "paged_adamw_32bit": "adamw_torch",
    "paged_adamw_8bit": "adamw_bnb_8bit",
}
_DEEPSPEED_KEYS = ("deepspeed", "deepspeed_config")


class Document:
    """One configuration, its silent defaults filled in.

    Args:
        content: The file.
        trainer: What it belongs to.
        where: The file, for messages.

    Attributes:
        notes: What the baseline does not say of it, or only nearly.
        automatic: Keys whose values another file says.
    """

    def __init__(self, content: Mapping[str, Any], trainer: TrainerFormat, where: str) -> None:
        named = {trainer.model: content[trainer.model]} if trainer.model in content else {}
        self._given = {key: value for key, value in (unquoted(content) | named).items() if value is not None}
        self._trainer = trainer
        self._target = trainer.target
        self.where = where
        self.notes: list[str] = []
        self.automatic: list[str] = []
        self._told: set[str] = set()  # keys of which a note says more
        self._filled = self._with_defaults()
        self._found: tuple[MethodSetting, ...] = ()

    # -- normal form ----------------------------------------------------------------------------------------------

    def _with_defaults(self) -> dict[str, Any]:
        automatic: list[str] = []
        filled = _without_auto(copy.deepcopy(self._given), automatic)
        if "bf16" in automatic:
            self.notes.append("bf16: auto is measured as bf16")
        if filled.get("bf16") == "full":  # axolotl's weights of 16 bits without autocast
            self.notes.append("bf16: full is measured as bf16: weights in float32 beside it")
            filled["bf16"] = True
        self.automatic = [key for key in automatic if key != "bf16"]
        for old, new in self._target.older.items():
            value = value_at(filled, old)
            if value is not MISSING and value_at(filled, new) is MISSING and _fits(value, self._target.plain.get(new)):
                put(filled, new, value)
        with_known_sharding(filled, self._target, self.notes)
        sharded = any(key.startswith("fsdp") for key in filled) or filled.get("distributed_type") == "FSDP"
        for key, value in self._trainer.defaults.items():
            if value_at(filled, key) is MISSING and (sharded or not key.startswith("fsdp")):
                put(filled, key, value)
        for key, value in self._trainer.same.items():
            if sharded or not key.startswith("fsdp"):
                put(filled, key, value)
        for key in ("gradient_checkpointing", "activation_checkpointing", "fsdp"):
            if isinstance(filled.get(key), str | list) and filled[key] and str(filled[key]).lower() not in _FALSE:
                if "checkpointing" in key:
                    self.notes.append(f"{key}: {quoted(filled[key])}: measured as plain recomputation of every block")
                filled[key] = True
        with_known_adapter(filled, self._target, self.notes)
        self._with_known_optimizer(filled)
        if self._target is DEEPSPEED:
            with_known_format(filled, self.notes)
        return filled

    def _with_known_optimizer(self, filled: dict[str, Any]) -> None:
        key = self._trainer.optimizer
        name, known = filled.get(key), _SAME_OPTIMIZERS | _NEAR_OPTIMIZERS
        if name in known:
            filled[key] = known[name]
        if name in _NEAR_OPTIMIZERS:
            self.notes.append(f"{key}: {quoted(name)} is measured as {known[name]}, whose states stay on the device")

    # -- what it says ---------------------------------------------------------------------------------------------

    def settings(self, gpu_count: int) -> list[MethodSetting]:
        """The methods that it says, some of which may be two ways to say the same."""
        if self._target is DEEPSPEED and gpu_count == 1:
            self._on_one_device()
        found = settings_in(self._filled, self._target)
        if self._target is HF and (adapter := trl_adapter(self._filled, self.notes)) is not None:
            found = (*found, adapter)
        if self._filled.get("mixed_precision") == "fp8" and "float8" not in {one.name for one in found}:
            self.notes.append("mixed_precision: 'fp8' is measured as bf16: of its backends only torchao's is a method")
        # What its keys say on several devices, another method stands for; or they are named as not measured.
        self._found = tuple(one for one in found if not (get_method(one.name).one_device_only and gpu_count > 1))
        kept = []
        for setting in self._found:
            if get_method(setting.name).distributes and gpu_count == 1:
                self.notes.append(f"{setting.words} divides nothing on one device (--gpus says on how many you train)")
            else:
                kept.append(setting)
        return kept

    def keys_of(self, setting: MethodSetting) -> set[str]:
        """The keys that say a method with its values, of those that were found."""
        names = frozenset(one.name for one in self._found)
        return {key for rule in self._target.rules if _says(rule, setting, names) for key in rule.keys}

    def _on_one_device(self) -> None:
        stage = value_at(self._filled, "zero_optimization.stage")
        if stage in (MISSING, 0):
            return
        away = value_at(self._filled, "zero_optimization.offload_optimizer.device") == "cpu"
        put(self._filled, "zero_optimization.stage", 2 if away else 0)
        self._told.add("zero_optimization.stage")
        self.notes.append(f"zero_optimization.stage {stage} divides nothing on one device (--gpus says on how many)")

    def devices(self) -> int | None:
        """Devices that train together, if it says that."""
        if self._target is not ACCELERATE or "num_processes" not in self._given:
            return None
        return self._whole(self._given["num_processes"], "num_processes")

    @property
    def states_no_batch(self) -> bool:
        """Whether its trainer reads batch and clipping elsewhere."""
        return self._target is ACCELERATE

    def batch(self, gpu_count: int) -> tuple[int | None, int]:
        """Samples per forward pass, if it says that, and forward passes per step."""
        accumulation = self._count("accumulation_steps") or 1
        micro_batch = self._count("micro_batch")
        whole_step = self._filled.get("train_batch_size") if self._target is DEEPSPEED else None
        if whole_step is None:
            return micro_batch, accumulation
        samples = self._whole(whole_step, "train_batch_size")
        if micro_batch is None:
            if samples % (accumulation * gpu_count):
                raise OptionError(
                    f"train_batch_size in {self.where} must be a multiple of accumulation steps and devices, but it is "
                    f"{samples}, and these are {accumulation} and {gpu_count}. Give --gpus N."
                )
            micro_batch = samples // (accumulation * gpu_count)
        elif value_at(self._given, "gradient_accumulation_steps") in (MISSING, _AUTO):
            # DeepSpeed takes the third of these numbers from the other two.
            accumulation = max(samples // (micro_batch * gpu_count), 1)
        return micro_batch, accumulation

    def clipping(self) -> float | None:
        """The norm that gradients are clipped to; ``None`` where they are not."""
        value = self._quantity("max_grad_norm")
        try:
            norm = math.nan if isinstance(value, bool) else 0.0 if value is MISSING else float(value)
        except (TypeError, ValueError):
            norm = math.nan
        if not math.isfinite(norm):
            raise OptionError(
                f"Clipping in {self.where} must be a finite number, but it is {quoted(value)}. Write one such as 1.0, "
                "or 0 for none."
            )
        return norm if norm > 0 else None  # as transformers reads it

    def model(self, folder: Path) -> str:
        """The model that it names, as MODEL is given: a folder, or a repository on the hub."""
        named = self._filled.get(self._trainer.model) if self._trainer.model else None
        if named is None:
            return ""
        local = next((one for one in (folder / str(named), Path(str(named))) if (one / "config.json").is_file()), None)
        return f"hf:{named}" if local is None else str(local)

    def tokens(self) -> int | None:
        """Tokens of the longest rows, if it says that."""
        key = self._trainer.tokens
        if not key or key not in self._filled:
            return None
        tokens = self._whole(self._filled[key], key)
        if not self._filled.get(self._trainer.packed):
            self.notes.append(f"{self._trainer.packed} is off: rows are measured at their longest, {tokens} tokens")
        return tokens

    def inside(self) -> Mapping[str, Any] | str | None:
        """The DeepSpeed configuration that it has inside or names."""
        if self._target is ACCELERATE:
            part = self._filled.get("deepspeed_config")
            if self._filled.get("distributed_type") != "DEEPSPEED" or not isinstance(part, Mapping):
                return None
            if "deepspeed_config_file" in part:
                return str(part["deepspeed_config_file"])
            return {
                "gradient_accumulation_steps": part.get("gradient_accumulation_steps", 1),
                "gradient_clipping": part.get("gradient_clipping"),
                "zero_optimization": {
                    "stage": part.get("zero_stage", 0),
                    "offload_optimizer": {"device": part.get("offload_optimizer_device", "none")},
                    "offload_param": {"device": part.get("offload_param_device", "none")},
                },
            }
        named = self._filled.get("deepspeed")
        return named if isinstance(named, str | Mapping) and named else None

    def _count(self, of: str) -> int | None:
        value = self._quantity(of)
        return None if value is MISSING else self._whole(value, of.replace("_", " "))

    def _whole(self, value: Any, name: str) -> int:
        return whole(value, f"{name} in {self.where}", fix=WHOLE_FIX)

    def _quantity(self, of: str) -> Any:
        """The value of a quantity such as ``micro_batch``, by the key that an export writes it to."""
        for rule in self._target.rules:
            for key, value in rule.keys.items():
                if rule.of == of and isinstance(value, Given) and value.name == of:
                    return value_at(self._filled, key)
        return MISSING

    # -- what it does not -----------------------------------------------------------------------------------------

    def notes_on_the_rest(self, kept: Iterable[MethodSetting]) -> list[str]:
        """What differs from the baseline, and the keys that nothing was made of.

        Args:
            kept: The methods of the baseline.
        """
        target, names = self._target, frozenset(setting.name for setting in kept)
        mine = [setting for setting in kept if setting in self._found]
        notes = list(self.notes)
        for setting in mine:
            rule = next((one for one in target.rules if _says(one, setting, names)), None)
            if rule is not None and rule.status is Status.APPROXIMATED and rule.text:
                notes.append(f"{setting.words} is near what {target.title} does: {rule.text}")
        notes += [f"{key}: {quoted(value)} is not measured: no method says it" for key, value in self._unsaid()]
        notes += [f"{key}: {quoted(value)} is not measured: it is no mapping" for key, value in self._no_sections()]
        for key, why in target.rivals.items():
            value = value_at(self._given, key)
            if value is not MISSING and value not in (False, None, "") and key not in _DEEPSPEED_KEYS:
                notes.append(f"{key}: {quoted(value)} is not measured ({why})")
        likely = misspelled(self._given, target)
        notes += [f"{key} is no key of {target.title}: did you mean {right}?" for key, right in likely.items()]
        left, unknown = self._left(likely), other_keys(self._given, target).unknown
        if stray := [shown(key) for key in left if key in unknown]:
            notes.append(f"keys that {target.library} {installed_version(target)} does not have: {', '.join(stray)}")
        if rest := [shown(key) for key in left if key not in unknown]:
            notes.append(f"keys that nothing was made of: {', '.join(rest)}")
        return notes

    def _no_sections(self) -> Iterator[tuple[str, Any]]:
        """Keys that should hold others, and do not."""
        for head in sorted({key.partition(".")[0] for key in self._target.written if "." in key}):
            value = self._given.get(head)
            if head not in (*self._target.written, *_DEEPSPEED_KEYS) and not isinstance(value, Mapping | None):
                yield head, value

    def _unsaid(self) -> Iterator[tuple[str, Any]]:
        """Keys of the table whose value is not that of plain training, and which no setting stands for."""
        target = self._target
        used = {key for rule in target.rules if rule.of in QUANTITIES for key in rule.keys}
        used |= {key for setting in self._found for key in self.keys_of(setting)}
        used |= self._told | ({"distributed_type"} if self.inside() is not None else set())
        used |= {*self._trainer.same, *(_OWN_FORMATS if target is DEEPSPEED else ())}
        used |= target.own.keys() - {self._trainer.optimizer}
        for key in target.written:
            value = value_at(self._given, key)
            known = {*_SAME_OPTIMIZERS, *_NEAR_OPTIMIZERS} if key == self._trainer.optimizer else set()
            off = value is MISSING or value in (False, None, *_FALSE) or is_same(value, target.plain.get(key))
            if not off and value != _AUTO and key not in used and value not in known:
                yield key, value

    def _left(self, likely: Iterable[str]) -> list[str]:
        """Top keys that are in no table."""
        target, trainer = self._target, self._trainer
        known = {one.partition(".")[0] for one in (*target.written, *target.older, *target.rivals, *likely)}
        known |= {trainer.model, trainer.tokens, trainer.packed, *_DEEPSPEED_KEYS, *trainer.told_by}
        taken = TRL_KEYS if target is HF and self._given.get("use_peft") is True else ()
        return sorted(
            key for key in self._given if key not in known and not trainer.is_harmless(key) and not is_among(key, taken)
        )


def _says(rule: Rule, setting: MethodSetting, names: frozenset[str]) -> bool:
    return rule.of == setting.name and rule.covers(setting.parameters, names)


def _without_auto(document: dict[str, Any], found: list[str], above: str = "") -> dict[str, Any]:
    """The document without ``"auto"``, which other files decide; a format that is automatic is bfloat16."""
    for key, value in list(document.items()):
        if isinstance(value, dict):
            _without_auto(value, found, f"{above}{key}.")
        elif value == _AUTO:
            found.append(f"{above}{key}")
            if found[-1] == "bf16":
                document[key] = True
            else:
                del document[key]
    return document


def _fits(value: Any, plain: Any) -> bool:
    """Whether a value of a key's former name may be one of the key itself."""
    return plain is None or isinstance(value, (type(plain), Mapping))
