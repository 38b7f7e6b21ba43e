"""State that a method adds to a training, and the conversion of the model's state to that of a plain model.

Most methods need neither: model and optimizer keep their state. A method that replaces weights of the model, or that
makes decisions as it goes, registers a part under its name in ``Training.state_parts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = ["Counted", "StatePart"]


class StatePart:
    """One method's part of the state. The base class keeps nothing and leaves the model's state as it is."""

    def to_plain(self, state: dict[str, Any]) -> dict[str, Any]:
        """The model's state, under the names and in the shapes that the model had before the method."""
        return state

    def require_fitting(self, kept: Mapping[str, Any] | None) -> None:
        """Refuse what another training kept, before anything is loaded; called with what :meth:`from_plain` gets."""

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Convert a plain model's state for the changed model, and restore the method's own state.

        Args:
            state: What :meth:`to_plain` returned, or the state of a plain model.
            kept: What :meth:`state_dict` returned with it; ``None`` if the state comes from a training without the
                method.
        """
        return state

    def state_dict(self) -> dict[str, Any]:
        """Further state that is needed to resume training."""
        return {}


class Counted(StatePart):
    """A part whose own state is one count, under the name ``counted``."""

    counted: ClassVar[str]
    count = 0

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Go on counting."""
        self.count = 0 if kept is None else int(kept[self.counted])
        return state

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {self.counted: self.count}
