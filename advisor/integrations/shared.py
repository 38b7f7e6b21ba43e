"""What adapters check before they apply a policy: its file and methods, versions, processes, the trainer's settings."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Iterable
from typing import Any

from advisor.errors import MethodRefusedError, PolicyError
from advisor.integrations.support import Trainer, why_refused
from advisor.methods.catalogue import get_method
from advisor.policy.apply import HasPolicy
from advisor.policy.file import PolicyFile, load_policy_file
from advisor.policy.policy import Policy

__all__ = ["OwnSetting", "policy_for", "require_plain", "require_version"]


@dataclasses.dataclass(frozen=True)
class OwnSetting:
    """A setting by which a trainer would do itself what a policy decides.

    Attributes:
        name: As the user writes it, such as ``"bf16"``.
        value: What it is set to.
        plain: What leaves it to the policy.
        to_keep: A sentence on how to keep what it does, if no method does it.
    """

    name: str
    value: Any
    plain: Any
    to_keep: str = ""


def policy_for(
    trainer: Trainer, policy: Policy | HasPolicy | str | os.PathLike[str], *, processes: int | None = None
) -> HasPolicy:
    """Read a policy, and check that a trainer can train with it.

    Args:
        trainer: What will train.
        policy: The policy, an answer of ``advisor.tune``, or the path of a policy file.
        processes: How many processes the trainer runs in; default: not known yet.

    Raises:
        PolicyError: The file cannot be read or is damaged, or the policy is for another number of devices.
        MethodRefusedError: A method cannot be used in this trainer.
    """
    if isinstance(policy, str | os.PathLike):
        policy = load_policy_file(policy)
    if isinstance(policy, Policy):
        policy = PolicyFile(policy=policy)
    own = getattr(policy, "policy", None)
    if not isinstance(own, Policy):
        raise PolicyError(
            "A policy must be the path of a policy file, a Policy, or an answer of advisor.tune, but got "
            f"{type(policy).__name__}."
        )
    for setting in own.methods:
        method = get_method(setting.name)
        if reason := why_refused(method, trainer):
            raise MethodRefusedError(f"{setting.words} cannot be used in {trainer.name}: {reason}")
        if own.accumulation_steps > 1 and not method.accumulates:
            raise MethodRefusedError(
                f"{setting.words} needs the whole gradient in one backward pass, but the policy has "
                f"accumulation_steps: {own.accumulation_steps}; leave the method out, or set accumulation_steps: 1"
            )
    if processes is not None and own.gpu_count != processes:
        number = "1 process" if processes == 1 else f"{processes} processes"
        fix = (
            "start the script once, without torchrun"
            if own.gpu_count == 1
            else f"start it with `torchrun --nproc-per-node {own.gpu_count} train.py`"
        )
        raise PolicyError(
            f"A policy for {own.gpu_count} device{'s' if own.gpu_count > 1 else ''} must be used by as many "
            f"processes, but {trainer.name} runs in {number}; {fix}, or tune for {processes}."
        )
    return policy


def require_version(trainer: Trainer, *, untested: bool) -> None:
    """Require a version of a trainer's library that its adapter was tested with: adapters replace parts of trainers.

    Args:
        trainer: The trainer.
        untested: Accept any other version.

    Raises:
        PolicyError: Another version is installed.
    """
    found = importlib.metadata.version(trainer.library)
    if untested or ".".join(found.split(".")[:2]) in trainer.tested:
        return
    raise PolicyError(
        f"{trainer.library} must have a version that momadvise was tested with ({', '.join(trainer.tested)}), but "
        f"{found} is installed. Install one of these, or pass untested=True and compare the first losses with those "
        "of training.step."
    )


def require_plain(trainer: Trainer, found: Iterable[OwnSetting], where: str) -> None:
    """Require that a trainer leaves to the policy what the policy decides: nothing is to be applied twice.

    Args:
        trainer: The trainer.
        found: Its settings of this kind.
        where: What has them, for the message.

    Raises:
        PolicyError: Some of them are on; the message has all of these, and what to set.
    """
    on = [setting for setting in found if setting.value != setting.plain]
    if not on:
        return
    values = ", ".join(f"{setting.name}={setting.value!r}" for setting in on)
    fixes = ", ".join(f"{setting.name}={setting.plain!r}" for setting in on)
    raise PolicyError(
        f"A policy decides formats, recomputation, compilation, distribution and the kind of optimizer alone, but "
        f"{trainer.name} has {values}, which would come on top of what was measured; set {fixes} in {where}. What "
        f"the policy uses of it is applied by momadvise.{''.join(f' {one.to_keep}' for one in on if one.to_keep)}"
    )
