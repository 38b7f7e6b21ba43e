"""A trainer's configuration as the baseline: what somebody trains with today, said with methods of this catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import OptionError
from advisor.exports.deepspeed_keys import DEEPSPEED
from advisor.exports.own_document import Document
from advisor.exports.reading import each_once
from advisor.exports.trainer_formats import FORMATS, TrainerFormat
from advisor.goal import GoalKind
from advisor.methods.catalogue import get_method
from advisor.methods.compose import conflict_between
from advisor.methods.setting import MethodSetting, use
from advisor.policy.baseline import Baseline
from advisor.policy.file import PolicyFile, policy_from
from advisor.policy.policy import Policy
from advisor.text.printable import quoted, shown
from advisor.text.yaml_file import read_yaml
from advisor.workload.workload import Stated

__all__ = ["TrainerFile", "read_trainer_file"]

_WHAT = "A trainer's configuration"


class TrainerFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer's configuration says.

    Attributes:
        baseline: Its methods and batch.
        stated: The length of its rows, and its clipping.
        model: The model that it names, as MODEL is given; empty where it names none.
    """

    baseline: Baseline
    stated: Stated
    model: str = ""


def read_trainer_file(path: Path, *, gpu_count: int | None = None, batch: int | None = None) -> TrainerFile:
    """Read the configuration of axolotl, LLaMA-Factory, transformers, accelerate or DeepSpeed.

    A policy that was compared with settings of the user's own is read for these: it keeps them.

    Args:
        path: The file.
        gpu_count: Devices that train together, where the file does not say it (default: 1).
        batch: Samples per forward pass, whatever the file says.

    Raises:
        OptionError: It is of none of these trainers, or of several; or one of its values is none that the key takes.
    """
    content, where = _content(path), shown(path)
    if "schema" in content and "policy" in content:
        return _kept_settings(policy_from(content, where), where)
    trainer = _format_of(content, where)
    document = Document(_with_fsdp_file(content, path), trainer, where)
    count = document.devices() or gpu_count or 1
    parts = [document, *_inside(document, path)]
    settings = _together(parts, count)
    # accelerate has its batch and clipping only in the DeepSpeed configuration; other trainers fill them in there.
    numbers = parts[-1] if document.states_no_batch else document
    micro_batch, accumulation = numbers.batch(count)
    tokens, micro_batch = document.tokens(), batch or micro_batch
    notes = [note for part in parts for note in part.notes_on_the_rest(settings)]
    if document.automatic:
        notes.append(f"auto, which another file decides: {', '.join(document.automatic)}")
    policy = Policy(
        methods=tuple(sorted(settings, key=lambda one: one.name)),
        micro_batch=micro_batch or 1,
        accumulation_steps=accumulation,
        gpu_count=count,
    )
    return TrainerFile(
        baseline=Baseline(
            policy=policy,
            origin=f"{where} ({trainer.target.title})",
            notes=tuple(dict.fromkeys(notes)),
            states_batch=micro_batch is not None,
        ),
        stated=Stated(batch_size=micro_batch, tokens=tokens, max_grad_norm=numbers.clipping()),
        model=document.model(path.parent),
    )


def _kept_settings(file: PolicyFile, where: str) -> TrainerFile:
    if file.baseline is None:
        raise OptionError(
            f"--from takes a trainer's configuration, or a policy that keeps settings of your own, but {where} is a "
            "policy without a baseline: give it with --baseline to compare with the policy itself."
        )
    known = file.fingerprints
    norm = None if known is None else known.asked.get("max_grad_norm")
    own = msgspec.structs.replace(file.baseline, settled={})
    # A model that was made larger is not the one that they are for.
    grown = file.evidence is not None and file.evidence.goal == GoalKind.BIGGER.value
    return TrainerFile(
        baseline=Baseline(policy=own, origin=f"{where} (its baseline)", model_size={} if grown else file.size),
        stated=Stated(batch_size=own.micro_batch, max_grad_norm=norm if isinstance(norm, float) else None),
        model="" if known is None else known.workload.get("model", ""),
    )


def _content(path: Path) -> dict[str, Any]:
    if path.suffix == ".json":
        try:
            content = json.loads(path.read_bytes(), object_pairs_hook=each_once)
        except OSError as error:
            raise OptionError(f"{_WHAT} must be readable, but {shown(path)} is not: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{_WHAT} must be valid JSON, but {shown(path)} is not: {error}.") from None
    else:
        content = read_yaml(path, what=_WHAT, error=OptionError)
    if not isinstance(content, dict):
        raise OptionError(f"{_WHAT} must map keys to values, but {shown(path)} does not. Is it the right file?")
    if strange := [key for key in content if not isinstance(key, str)]:
        raise OptionError(
            f"{_WHAT} must have texts as keys, but {shown(path)} has {quoted(strange[0])}. Put it in quotes, or "
            "remove it."
        )
    return content


def _format_of(content: Mapping[str, Any], where: str) -> TrainerFormat:
    """The trainer that a configuration belongs to, by keys that no other has."""
    found = [one for one in FORMATS if any(key in content for key in one.told_by)]
    names = [one.target.name for one in found]
    if names == ["llamafactory", "hf"]:
        return found[0]  # it has the keys of transformers too
    if len(found) == 1:
        return found[0]
    keys = "; ".join(f"{one.target.name}: {' or '.join(one.told_by)}" for one in FORMATS)
    if found:
        raise OptionError(
            f"--from takes the configuration of one trainer, but {where} has keys of {' and '.join(names)} ({keys}). "
            "Give each a file of its own."
        )
    raise OptionError(
        f"--from takes the configuration of axolotl, LLaMA-Factory, transformers, accelerate or DeepSpeed, which is "
        f"told by a key of its own ({keys}), but {where} has none of these. Add the one of your trainer, or write a "
        "policy.yaml and give it with --baseline."
    )


def _with_fsdp_file(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content with the options of FSDP in place of the file that it names, if that is found."""
    named = content.get("fsdp_config")
    found = _named(named, path) if isinstance(named, str) and named else None
    return content if found is None else {**content, "fsdp_config": _content(found)}


def _named(named: str, path: Path) -> Path | None:
    """The file that another one names, from its folder or the current one."""
    return next((one for one in (path.parent / named, Path(named)) if one.is_file()), None)


def _inside(document: Document, path: Path) -> list[Document]:
    """The DeepSpeed configuration that another one has inside or names, if it does."""
    inside = document.inside()
    if inside is None:
        return []
    where = document.where
    if isinstance(inside, str):
        found = _named(inside, path)
        if found is None:
            raise OptionError(
                f"The DeepSpeed configuration that {where} names must be there, but {quoted(inside)} is neither beside "
                "it nor in the current folder. Run where you train, or write the whole path."
            )
        inside, where = _content(found), shown(inside)
    return [Document(inside, next(one for one in FORMATS if one.target is DEEPSPEED), where)]


def _together(parts: list[Document], gpu_count: int) -> list[MethodSetting]:
    """The settings that go together, those that divide the training among devices before the others.

    Where two say the same keys, the one with more of them is meant; any other that is left out is noted.
    """
    found = [(setting, part) for part in parts for setting in part.settings(gpu_count)]
    kept: list[MethodSetting] = []
    for setting, part in sorted(found, key=_rank):
        reason = conflict_between((*kept, setting)) if setting.name not in {one.name for one in kept} else ""
        if reason is None:
            kept.append(setting)
            continue
        others = [one for one in kept if one.name != setting.name and conflict_between((one, setting))]
        if reason and not any(part.keys_of(setting) & part.keys_of(one) for one in others):
            part.notes.append(f"{setting.words} is not measured: {reason}")
    if gpu_count > 1 and not any(get_method(one.name).distributes for one in kept):
        kept.append(use("ddp", bucket_views=False, static_graph=False))
    return kept


def _rank(found: tuple[MethodSetting, Document]) -> tuple[bool, int]:
    """Which of two settings that exclude each other is kept: the lower one."""
    setting, part = found
    return not get_method(setting.name).distributes, -len(part.keys_of(setting))
