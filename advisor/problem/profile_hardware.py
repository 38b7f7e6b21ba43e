"""A device that is not here, as its profile describes it."""

from __future__ import annotations

import difflib

from advisor.errors import OptionError
from advisor.problem.hardware import DeviceKind, Hardware
from advisor.problem.host import host_cores, host_memory
from advisor.problem.profiles import Profile, load_profiles

__all__ = ["find_profile", "hardware_of"]


def find_profile(name: str) -> Profile:
    """The profile of a GPU by its name.

    Raises:
        OptionError: There is none.
    """
    profiles = {
        known: profile for known, profile in load_profiles().items() if profile.kind is DeviceKind.CUDA
    }  # a CPU is what one has, not what one asks about
    if name in profiles:
        return profiles[name]
    near = [known for known in profiles if known.startswith(name)] or difflib.get_close_matches(name, profiles, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise OptionError(f"--profile must be one of {', '.join(profiles)}, but got {name!r}.{hint}")


def hardware_of(profile: Profile) -> Hardware:
    """The device with all of its published memory free, beside this machine's host.

    Args:
        profile: Of a GPU.
    """
    memory = profile.memory.base_value
    assert profile.compute_capability is not None, f"{profile.name} is no GPU"
    assert memory is not None, f"nobody says how much memory {profile.name} has"
    host = host_memory()
    return Hardware(
        kind=DeviceKind.CUDA,
        device="cuda:0",
        name=profile.title,
        memory_bytes=int(memory),
        free_bytes=int(memory),
        host_memory_bytes=host.total_bytes,
        host_free_bytes=host.free_bytes,
        host_cores=host_cores(),
        compute_capability=profile.compute_capability.value,
        profile=profile.name,
    )
