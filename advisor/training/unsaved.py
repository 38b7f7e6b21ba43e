"""What a method hangs on a model while it is trained, and what becomes of it when the model is copied or saved."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn, Self

__all__ = ["Unsaved"]


class Unsaved:
    """Belongs to one training: copies of the model share it, and a file cannot hold it.

    A copy of the model (an average of its weights, say) calls the very same object, on its own modules. What holds
    modules itself is copied with them.
    """

    def __deepcopy__(self, memo: Any) -> Self:
        """The object itself."""
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Say what to save instead.

        Raises:
            pickle.PicklingError: Always.
        """
        raise pickle.PicklingError(
            "a model cannot be saved whole while memory methods are applied to it: save "
            'training.state_dict()["model"], which a plain model loads, or call training.close() before'
        )
