"""The commands that tune again, or measure one policy, with what was asked for then."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from advisor.goal import Preference
from advisor.policy.file import PolicyFile, policy_line
from advisor.policy.fingerprints import Asked

__all__ = ["tune_command", "verify_command"]

_AGAIN = (
    ("gpus", "--gpus"),
    ("global_batch", "--global-batch"),
    ("memory_limit_bytes", "--memory-limit"),
    ("batch_size", "--batch"),
    ("tokens", "--tokens"),
    ("image_size", "--image-size"),
)
_OF_ONE_POLICY = ("memory_limit_bytes", "tokens", "image_size")
_PICK = (
    ("max_latency_seconds", "--max-latency", "s"),
    ("max_cost_usd", "--max-cost", ""),
    ("deadline_seconds", "--deadline", "s"),
    ("iterations", "--iterations", ""),
)


def tune_command(model: str, goal: str, asked: Asked, preference: Preference | None = None) -> tuple[str, ...]:
    """Its arguments, the first of which is the program.

    Args:
        model: As it was typed; empty where it was given as functions.
        goal: The name of the goal.
        asked: What was asked for.
        preference: Which point of the frontier to pick.
    """
    parts = ["momadvise", "--goal", goal, model or "MODEL"]
    parts += _asked_again(asked, [name for name, _ in _AGAIN])
    for name, flag, unit in _PICK:
        if (value := getattr(preference, name, None)) is not None:
            parts += [flag, f"{value}{unit}"]
    return tuple(parts)


def verify_command(model: str, file: PolicyFile, asked: Asked) -> str:
    """A line for any shell that measures exactly one policy, with no file that has to be saved first.

    On one device it is verified beside the baseline. On several it is the only trial of a search, as its baseline: a
    plain loop on one device has nothing to compare it with.

    Args:
        model: As it was typed.
        file: The policy, and what it is compared with.
        asked: What was asked for.
    """
    again, devices = _asked_again(asked, _OF_ONE_POLICY), file.policy.gpu_count
    command = ["momadvise", "verify", "/dev/stdin", model, *again]
    if devices > 1:
        command = ["momadvise", model, "--baseline", "/dev/stdin", "--gpus", str(devices), "--trials", "1", *again]
    return f"printf %s {shlex.quote(policy_line(file))} | {shlex.join(command)}"


def _asked_again(asked: Asked, names: Collection[str]) -> list[str]:
    arguments = []
    for name, flag in _AGAIN:
        if name in names and (value := asked.get(name)) is not None and value != "1":
            arguments += [flag, _exactly(value) if name == "memory_limit_bytes" else str(value)]
    return arguments


def _exactly(count: str | int | float) -> str:
    """A number of bytes in the largest unit that it is a whole number of."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if isinstance(count, int) and count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
