"""The command that tunes again, with what was asked for then."""

from __future__ import annotations

from advisor.goal import Preference
from advisor.policy.fingerprints import Asked

__all__ = ["tune_command"]

_AGAIN = (
    ("gpus", "--gpus"),
    ("global_batch", "--global-batch"),
    ("memory_limit_bytes", "--memory-limit"),
    ("batch_size", "--batch"),
    ("tokens", "--tokens"),
    ("image_size", "--image-size"),
)
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
    for name, flag in _AGAIN:
        if (value := asked.get(name)) is not None and value != "1":
            parts += [flag, _exactly(value) if name == "memory_limit_bytes" else str(value)]
    for name, flag, unit in _PICK:
        if (value := getattr(preference, name, None)) is not None:
            parts += [flag, f"{value}{unit}"]
    return tuple(parts)


def _exactly(count: str | int | float) -> str:
    """A number of bytes in the largest unit that it is a whole number of."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if isinstance(count, int) and count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
