"""An absent device, as described by its profile."""

from __future__ import annotations

import difflib

from advisor.errors import OptionError
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.host import host_fields
from advisor.hardware.profiles import Profile, load_profiles
from advisor.text.printable import quoted

__all__ = ["find_profile", "hardware_of"]


def find_profile(name: str) -> tuple[Profile, str]:
    """The profile of a GPU by its name, or by the part of the name that its variants share.

    Variants with the same memory, such as PCIe and SXM, fit the same trainings: of these, take the one with the highest
    memory bandwidth.

    Returns:
        The profile, and which it is of which where the name leaves that open, for people; empty where it does not.

    Raises:
        OptionError: There is none, or those that may be meant differ in memory.
    """
    profiles = {known: one for known, one in load_profiles().items() if one.kind is DeviceKind.CUDA}
    asked = name.lower().replace("-", "_")
    if asked in profiles:
        return profiles[asked], ""
    variants = {known: profile for known, profile in profiles.items() if asked and known.startswith(asked)}
    if len({profile.memory.base_value for profile in variants.values()}) == 1:
        taken = max(variants, key=lambda known: variants[known].memory_bandwidth.base_value or 0.0)
        others = ", ".join(f"--profile {known}" for known in variants if known != taken)
        note = f"{name} was taken for {taken}" + (f"; with as much memory there is also {others}." if others else ".")
        return profiles[taken], note
    near = list(variants) or difflib.get_close_matches(asked, profiles, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise OptionError(f"--profile must be one of {', '.join(profiles)}, but got {quoted(name)}.{hint}")


def hardware_of(profile: Profile) -> Hardware:
    """A GPU with all of its published memory free, on this machine's host."""
    memory = profile.memory.base_value
    assert profile.compute_capability is not None, f"{profile.name} is no GPU"
    assert profile.multiprocessors is not None, f"{profile.name} is no GPU"
    assert memory is not None, f"the profile of {profile.name} must state its memory"
    return Hardware(
        kind=DeviceKind.CUDA,
        device="cuda:0",
        name=profile.title,
        memory_bytes=int(memory),
        free_bytes=int(memory),
        compute_capability=profile.compute_capability.value,
        multiprocessors=profile.multiprocessors.value,
        profile=profile.name,
        **host_fields(),
    )
