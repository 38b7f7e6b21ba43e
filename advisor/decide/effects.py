"""Find methods that saved nothing: applied without an error, and no byte less was held."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.measure.measurement import MemoryMeasurement, SizePoint, Sizing
from advisor.methods.base import Method, Saves
from advisor.text.units import format_bytes

__all__ = ["saved_nothing"]

_SMALLEST_SAVING = 0.001
"""A category that fell by less than this share counts as unchanged: alignment and scalars move a few bytes."""

_ONLY_WITHIN_A_PHASE = (Saves.LOGITS, Saves.WORKSPACE)


def saved_nothing(methods: Sequence[Method], sizing: Sizing, plain: Sizing) -> tuple[str, ...]:
    """Say which methods lowered none of the memory that they declare to lower.

    A method of a combination is only accused when *nothing* that it declares fell, whatever lowered it: with several
    methods one cannot tell whose saving it is, but no saving at all is nobody's.

    Args:
        methods: The methods of the combination.
        sizing: Its profiling runs.
        plain: Those of plain training.

    Returns:
        One line per method; empty when both were not run at a common micro-batch.
    """
    pair = _common_point(sizing, plain)
    if pair is None:
        return ()
    with_methods, without = pair
    notes = []
    for method in methods:
        categories = sorted(method.saves, key=lambda category: category.value)
        changes = [(_bytes_of(one, without.memory), _bytes_of(one, with_methods.memory), one) for one in categories]
        if changes and not any(before - after > _SMALLEST_SAVING * max(before, 1) for before, after, _ in changes):
            words = "; ".join(_words(*change) for change in changes)
            notes.append(
                f"{method.name} saved none of the memory it targets at micro-batch {without.micro_batch}: {words}"
            )
    return tuple(notes)


def _common_point(sizing: Sizing, plain: Sizing) -> tuple[SizePoint, SizePoint] | None:
    """The points at the largest micro-batch that both were run at: there the activations weigh most."""
    with_methods = {point.micro_batch: point for point in sizing.points}
    without = {point.micro_batch: point for point in plain.points}
    common = with_methods.keys() & without.keys()
    return (with_methods[max(common)], without[max(common)]) if common else None


def _bytes_of(category: Saves, memory: MemoryMeasurement) -> int:
    if category in _ONLY_WITHIN_A_PHASE:
        return max(memory.forward_peak_bytes, memory.backward_peak_bytes)
    return int(getattr(memory.breakdown, category.name.lower()))


def _words(before: int, after: int, category: Saves) -> str:
    name = "peak of the passes" if category in _ONLY_WITHIN_A_PHASE else category.value
    return f"{name} {format_bytes(after)} with it, {format_bytes(before)} without"
