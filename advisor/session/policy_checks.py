"""Whether a policy file is one of this model, device and versions. Called by verify, predict and check."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.errors import MethodRefusedError, PolicyError
from advisor.hardware.hardware import Hardware
from advisor.methods.compose import judge
from advisor.policy.file import PolicyFile
from advisor.policy.fingerprints import Fingerprints, hardware_facts
from advisor.policy.policy import Policy
from advisor.session.setup.versions import versions
from advisor.workload.facts import Facts
from advisor.workload.source import stating
from advisor.workload.workload import Stated, WorkloadKind, WorkloadSource

__all__ = ["as_measured", "changes_since", "check_applies", "check_meant", "on_same_device"]

_SIZES = ("tokens", "image_size")


def check_meant(file: PolicyFile, path: Path, source: WorkloadSource) -> None:
    """The policy must be one of this model, for one device."""
    if file.policy.gpu_count > 1:
        raise PolicyError(
            f"A policy for one device can be verified beside a plain loop, but {path} has "
            f"gpu_count={file.policy.gpu_count}. "
            "Tune again for that: the wrapper is run on all devices before it is recommended."
        )
    if file.fingerprints is None:
        return
    name = file.fingerprints.workload.get("name", source.name)
    if name != source.name:
        raise PolicyError(
            f"A policy must be of the model that it is verified with, but {path} is of {name!r} and the model is "
            f"{source.name!r}. Name that model, or leave `fingerprints` out of the file to try it on another."
        )


def check_applies(policy: Policy, facts: Facts | None, hardware: Hardware) -> None:
    """Check that the policy's methods apply."""
    verdict = judge(policy.methods, facts=facts, hardware=hardware, accumulation_steps=policy.accumulation_steps)
    if not verdict.applicable:
        raise MethodRefusedError(f"{verdict.reason} (on {hardware.name})")


def on_same_device(file: PolicyFile, hardware: Hardware) -> bool:
    """Whether the policy was measured on this kind of device, according to its file."""
    if file.fingerprints is None:
        return True
    then, now = file.fingerprints.hardware, hardware_facts(hardware)
    same_name = then.get("name", now["name"]) == now["name"]
    return same_name and then.get("simulated") == now.get("simulated")


def as_measured(source: WorkloadSource, stated: Stated, known: Fingerprints | None) -> WorkloadSource:
    """A model with what was stated beside it when its policy was measured, or is stated otherwise now.

    Sizes of samples are not taken from a policy of another model.

    Raises:
        WorkloadError: The size of samples is stated of a model that makes its own.
    """
    was = {} if known is None else dict(known.asked)
    own_name = None if known is None else known.workload.get("name", source.name)
    if own_name != source.name or source.kind is not WorkloadKind.HUGGING_FACE:
        was = {name: value for name, value in was.items() if name not in _SIZES}
    now = msgspec.structs.asdict(stated)
    fields = {name: was.get(name) if value is None else value for name, value in now.items()}
    return stating(source, msgspec.convert(fields, Stated))


def changes_since(file: PolicyFile, source: WorkloadSource, hardware: Hardware) -> list[str]:
    """What has changed since the policy was measured."""
    if file.fingerprints is None:
        return []
    notes = []
    if file.fingerprints.workload.get("fingerprint", source.fingerprint) != source.fingerprint:
        notes.append("the model's file has changed since the policy was measured")
    if not on_same_device(file, hardware):
        notes.append(f"the policy was measured on {file.fingerprints.hardware['name']}; peak and speed are of this one")
    before, now = file.fingerprints.versions, versions(file.fingerprints.versions)
    changed = [f"{name} {now[name]} (was {was})" for name, was in before.items() if now.get(name, was) != was]
    if changed:
        notes.append("since the policy was measured other versions were installed: " + ", ".join(changed))
    return notes
