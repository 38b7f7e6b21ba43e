"""What the measurements behind a policy are valid for, as facts that people can read, and what differs now.

docs/decisions/0043 says why each of these facts counts as it does.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.text.units import format_bytes
from advisor.workload.difference import Difference, Weight, version_differences
from advisor.workload.identity import Identity

__all__ = ["Asked", "Fingerprints", "hardware_differences", "hardware_facts"]

Asked = dict[str, str | int | float | None]
"""What was asked for: option -> value."""

_PICKS = frozenset(("price", "kwh_price", "max_latency_seconds", "max_cost_usd", "deadline_seconds", "iterations"))
"""What only picks among measurements."""

_SAME_MEMORY = 0.02
"""Relative difference of total memory between boots of one machine, and between cards of one model."""

_SOFT = ("python", "momadvise")


class Fingerprints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the measurements are valid for. ``momadvise check`` compares it with what is here.

    Attributes:
        workload: Name of the model, digest of its code, and where it was found (``"model"``, as typed).
        hardware: The device (kind, name, memory, driver, compute capability) and the host's cores.
        versions: Package -> version.
        request: Hash over goal, limits, search space and options.
        asked: What the request was, in values.
        options: Flag -> value of what ``asked`` has only as a digest, or not at all, to be typed again.
        policy: Key of the policy that was measured; empty in older files.
        identity: What the model is and what its code reads; absent in older files.
    """

    workload: dict[str, str]
    hardware: dict[str, str | int]
    versions: dict[str, str]
    request: str
    asked: Asked = {}
    options: dict[str, str] = {}
    policy: str = ""
    identity: Identity | None = None

    def differences(self, now: Fingerprints, libraries: Iterable[str]) -> list[Difference]:
        """What differs now, but for what only a start of the model's code can show.

        Args:
            now: What is here; its identity is not looked at.
            libraries: The optional libraries that matter.
        """
        found = []
        code, new = self.workload.get("fingerprint"), now.workload.get("fingerprint")
        if code != new:
            named = self.workload.get("model", "")
            of_config = named.startswith("hf:") or named.endswith(".json")  # nothing of such a model is the user's code
            found.append(Difference(subject="model", what="config" if of_config else "code"))
        found += hardware_differences(self.hardware, now.hardware)
        found += version_differences(self.versions, now.versions, ("torch", *libraries))
        found += [
            msgspec.structs.replace(one, weight=Weight.WARNING)
            for one in version_differences(self.versions, now.versions, _SOFT)
            if one.subject != "python" or _minor(one.was) != _minor(one.now)  # a patch of Python changes nothing
        ]
        for name in sorted(self.asked.keys() | now.asked.keys()):
            was, here = self.asked.get(name), now.asked.get(name)
            if was != here:
                weight = Weight.PICK if name in _PICKS else Weight.STALE
                label = name.removesuffix("_bytes").removesuffix("_seconds").removesuffix("_usd").replace("_", " ")
                found.append(Difference(subject=label, was=_shown(name, was), now=_shown(name, here), weight=weight))
        return found


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def hardware_facts(hardware: Hardware) -> dict[str, str | int]:
    """What identifies a device."""
    facts: dict[str, str | int] = {
        "kind": hardware.kind.value,
        "name": hardware.name,
        "memory_bytes": hardware.memory_bytes,
        "host_cores": hardware.host_cores,
        "driver": hardware.driver_version or "",
        "compute_capability": ".".join(map(str, hardware.compute_capability or ())),
    }
    return {**facts, "simulated": 1} if hardware.simulated else facts


def hardware_differences(then: dict[str, str | int], now: dict[str, str | int]) -> list[Difference]:
    """What is another device now; facts that were not stated then are not compared."""
    found: list[Difference] = []
    for subject, key in (("device", "name"), ("device", "kind"), ("compute capability", "compute_capability")):
        if key in then and then[key] != now[key] and not any(one.subject == subject for one in found):
            found.append(Difference(subject=subject, was=str(then[key]), now=str(now[key])))
    simulated = [facts.get("simulated", 0) for facts in (then, now)]
    if simulated[0] != simulated[1]:
        was_real, is_real = ("a simulated one" if one else "a real one" for one in simulated)
        found.append(Difference(subject="device", was=was_real, now=is_real))
    was, here = then.get("memory_bytes"), now["memory_bytes"]
    if isinstance(was, int) and isinstance(here, int) and abs(here - was) > _SAME_MEMORY * was:
        found.append(Difference(subject="memory", was=format_bytes(was), now=format_bytes(here)))
    on_cpu = now["kind"] == DeviceKind.CPU.value  # elsewhere they only feed the device
    if on_cpu and then.get("host_cores", now["host_cores"]) != now["host_cores"]:
        found.append(Difference(subject="cores", was=str(then["host_cores"]), now=str(now["host_cores"])))
    if then.get("driver", now["driver"]) != now["driver"]:
        soft = Weight.WARNING
        found.append(Difference(subject="driver", was=str(then["driver"]), now=str(now["driver"]), weight=soft))
    return found


def _shown(name: str, value: str | int | float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
