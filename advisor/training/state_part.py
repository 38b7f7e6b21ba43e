"""What a method adds to the state of a training, and how it shows the model's own state as that of a plain model.

Most methods need neither: their model keeps its names, and the optimizer what it is. One that puts other weights into
the model, or that decides something as it goes, registers a part under its name in ``Training.state_parts``; the
training asks it and does not know which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["StatePart"]


class StatePart:
    """One method's part of the state. Here: nothing to keep, and a model whose state is plain."""

    def to_plain(self, state: dict[str, Any]) -> dict[str, Any]:
        """The model's state, under the names and in the shapes that the model had before the method."""
        return state

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The state of a plain model, as the changed model loads it; what was kept beside it is restored.

        Args:
            state: What :meth:`to_plain` returned, or the state of a plain model.
            kept: What :meth:`state_dict` returned with it; ``None`` if the state is of a training without the method.
        """
        return state

    def state_dict(self) -> dict[str, Any]:
        """What else must be known to go on as if training had not stopped."""
        return {}
