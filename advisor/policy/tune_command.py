"""The commands that tune again, or measure one policy, with what was asked for then."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping

from advisor.goal import GoalKind, Preference
from advisor.policy.file import PolicyFile, policy_line
from advisor.policy.fingerprints import Asked

__all__ = ["OF_ONE_POLICY", "asked_again", "picked_again", "piped", "tune_command", "verify_command"]

_AGAIN = (
    ("device", "--device"),
    ("gpus", "--gpus"),
    ("global_batch", "--global-batch"),
    ("memory_limit_bytes", "--memory-limit"),
    ("batch_size", "--batch"),
    ("tokens", "--tokens"),
    ("image_size", "--image-size"),
    ("fidelity", "--fidelity"),
    ("min_samples_per_second", "--min-throughput"),
    ("min_share_of_baseline", "--min-throughput"),
)
ALL = tuple(name for name, _ in _AGAIN)
OF_ONE_POLICY = ("device", "memory_limit_bytes", "tokens", "image_size")
"""What is asked again to measure one policy."""

_PRICES = (("price", "--price"), ("kwh_price", "--kwh-price"))
_PICK = (
    ("max_latency_seconds", "--max-latency", "s"),
    ("max_cost_usd", "--max-cost", ""),
    ("deadline_seconds", "--deadline", "s"),
    ("iterations", "--iterations", ""),
)


def tune_command(
    model: str, goal: str, asked: Asked, preference: Preference | None = None, more: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Its arguments, the first of which is the program.

    Args:
        model: As it was typed; empty where it was given as functions.
        goal: The name of the goal.
        asked: What was asked for.
        preference: Which point of the frontier to pick.
        more: Flag -> value of other options.
    """
    flags = {**asked_again({**asked, "goal": goal}), **_picked_then(asked), **picked_again(preference), **(more or {})}
    return "momadvise", "--goal", goal, model or "MODEL", *(part for pair in flags.items() for part in pair)


def _picked_then(asked: Asked) -> dict[str, str]:
    """Flag -> value of what picked among the measurements, as a policy file keeps it."""
    prices = {flag: str(value) for name, flag in _PRICES if (value := asked.get(name)) is not None}
    picks = ((flag, asked.get(name), unit) for name, flag, unit in _PICK)
    return prices | {flag: f"{value}{unit}" for flag, value, unit in picks if value is not None}


def picked_again(preference: Preference | None) -> dict[str, str]:
    """Flag -> value of which point of the frontier to pick."""
    values = ((flag, getattr(preference, name, None), unit) for name, flag, unit in _PICK)
    return {flag: f"{value}{unit}" for flag, value, unit in values if value is not None}


def verify_command(model: str, file: PolicyFile, asked: Asked) -> str:
    """A line for any shell that measures exactly one policy, with no file that has to be saved first.

    On one device it is verified beside the baseline. On several it is the only trial of a search, as its baseline: a
    plain loop on one device has nothing to compare it with.

    Args:
        model: As it was typed.
        file: The policy, and what it is compared with.
        asked: What was asked for.
    """
    again = [part for pair in asked_again(asked, OF_ONE_POLICY).items() for part in pair]
    devices = file.policy.gpu_count
    command = ["momadvise", "verify", "/dev/stdin", model, *again]
    if devices > 1:
        command = ["momadvise", model, "--baseline", "/dev/stdin", "--gpus", str(devices), "--trials", "1", *again]
    return piped(file, command)


def piped(file: PolicyFile, command: Collection[str]) -> str:
    """A line for any shell that runs a command with a policy as its standard input."""
    return f"printf %s {shlex.quote(policy_line(file))} | {shlex.join(command)}"


def asked_again(asked: Asked, names: Collection[str] = ALL) -> dict[str, str]:
    """Flag -> value of what was asked for, as it would be typed."""
    known = [(name, flag, asked.get(name)) for name, flag in _AGAIN if name in names]
    found = {flag: _typed(name, value) for name, flag, value in known if value is not None}
    if found.get("--gpus") == "1" and asked.get("goal") != GoalKind.CHEAPEST.value:
        del found["--gpus"]  # as without it
    return found


def _typed(name: str, value: str | int | float) -> str:
    if name == "memory_limit_bytes":
        return _exactly(value)
    return f"{value}x" if name == "min_share_of_baseline" else str(value)


def _exactly(count: str | int | float) -> str:
    """A number of bytes in the largest unit that it is a whole number of."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if isinstance(count, int) and count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
