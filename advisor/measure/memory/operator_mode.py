"""What all of this package's dispatch modes have in common."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OperatorMode"]


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operator below it, inside the backward pass too, and leaves compilation as it is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile below this mode.

        It would skip a function that it meets here for the first time, and run it uncompiled ever after: also in the
        timed steps.
        """
        return True
