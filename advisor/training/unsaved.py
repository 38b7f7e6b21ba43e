"""Objects that a method attaches to a model while it is trained: shared by copies, never saved."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn, Self

__all__ = ["Unsaved"]


class Unsaved:
    """An object of one training, which cannot be saved and is shared by copies of the model.

    A copy of the model (an average of its weights, say) calls the same object on its own modules. Objects that hold
    modules are copied with them.
    """

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse, and name what to save instead."""
        raise pickle.PicklingError(
            "a model cannot be saved whole while memory methods are applied to it: save "
            'training.state_dict()["model"], which a plain model loads, or call training.close() before'
        )
