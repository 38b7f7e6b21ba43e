"""Memory over one traced step, by category, at few enough moments to be stored and drawn."""

from __future__ import annotations

import msgspec

from advisor.predict.prediction import Category

__all__ = ["StepTimeline"]


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live bytes at moments of a step, in the order of its operators, not in equal times.

    Attributes:
        micro_batch: Samples per pass.
        passes: Passes of the traced step: at most two, as a third adds nothing.
        phases: ``(position of its first moment, phase)``, in order.
        live: Category -> live bytes at each moment, all equally many; without categories that stay empty.
        operator: The operator whose result made the largest moment.
    """

    micro_batch: int
    passes: int
    phases: tuple[tuple[int, str], ...]
    live: dict[Category, tuple[int, ...]]
    operator: str
