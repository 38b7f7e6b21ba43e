"""What methods do alike: judge, refuse, load a library, say that they changed nothing."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.methods.base import Verdict

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["judged", "load", "note_if_idle", "require"]


def judged(holds: object, otherwise: str) -> Verdict:
    """Acceptance if a condition holds, else a refusal for the reason ``otherwise``."""
    return Verdict.yes() if holds else Verdict.no(otherwise)


def require(verdict: Verdict) -> None:
    """Raise :class:`MethodRefusedError` for a verdict that refuses."""
    if not verdict.applicable:
        raise MethodRefusedError(verdict.reason)


def load(name: str) -> Any:
    """An optional library (``"peft"``), or something in a module of one (``"torchao.optim:AdamW8bit"``).

    Raises:
        MethodRefusedError: It cannot be imported.
    """
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # Whatever a native library raises while it loads is the user's answer.
        raise MethodRefusedError(f"{name.replace(':', '.')} cannot be imported: {error}") from error


def note_if_idle(training: Training, worked: Callable[[], object], note: str) -> None:
    """Add a note after the first optimizer step if a method has done nothing until then."""

    def check() -> None:
        training.after_step.remove(check)
        if not worked():
            training.notes.append(note)

    training.after_step.append(check)
