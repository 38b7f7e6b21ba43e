"""Warn of a direct call of the model, which goes without what methods put around a training's forward passes."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any, Self

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.training.loss import default_loss
from advisor.training.processes.distribution import Distribution
from advisor.training.replaced_attribute import replace_attribute
from advisor.training.training import ComputeLoss, Training

__all__ = ["announce_direct_calls", "refuse_direct_calls"]


_MISSED = "what methods do to the loss, to formats, to saved activations or between devices"


def announce_direct_calls(training: Training, label: str, given_loss: ComputeLoss | None) -> None:
    """Warn of the first direct call of the model in training mode, if methods act in ``training.forward`` alone.

    Methods that change the model itself need no warning: a direct call has them too.

    Args:
        training: The training, to which all methods were applied.
        label: Its policy in words.
        given_loss: The user's own loss, if there is one.
    """
    if not (
        training.forward_contexts
        or training.after_forward
        or training.run_passes is not None
        or training.compute_loss is not (given_loss or default_loss)
        or type(training.distribution) is not Distribution
    ):
        return
    own = training.own_call = _OwnCalls()
    announcement = _Announcement(
        own,
        f"the model was called directly in training mode, without a part of {label}: {_MISSED} takes effect in "
        "training.forward(batch) alone. Call that, or "
        "training.step(batch); in the loop of another trainer, use its adapter (advisor.integrations). To evaluate, "
        "call model.eval() before, or training.evaluate(function)",
    )
    training.on_close(training.model.register_forward_pre_hook(announcement).remove)
    compiled = training.model._compiled_call_impl
    if compiled is not None:  # Inside of compiled code, the hook does nothing.

        def called(*args: Any, **kwargs: Any) -> Any:
            announcement(training.model, args)
            return compiled(*args, **kwargs)

        replace_attribute(training, training.model, "_compiled_call_impl", called)
    if (run_passes := training.run_passes) is not None:

        def run(micro_batches: list[Any]) -> torch.Tensor:
            with own:
                return run_passes(micro_batches)

        training.run_passes = run


def refuse_direct_calls(training: Training, label: str, fix: str) -> None:
    """Refuse what :func:`announce_direct_calls` warns of, where a trainer's loop is known to make the calls.

    Args:
        training: The training, to which all methods were applied.
        label: Its policy in words.
        fix: What the loop is to call, as an imperative.
    """
    if isinstance(training.own_call, _OwnCalls):
        training.own_call.refusal = (
            f"the model was called directly in training mode, without a part of {label}: {_MISSED} would be lost; "
            f"{fix}, or, to evaluate, call model.eval() before"
        )


def _frames_to_the_user() -> int:
    """How far above its caller the call of the model is: torch has some functions between, and here is one or two."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, nn.modules.module.__file__):
        frame, count = frame.f_back, count + 1
    return count


class _OwnCalls(contextlib.AbstractContextManager[None]):
    """Entered around the calls that a training makes itself.

    Attributes:
        depth: How many of them are being made.
        refusal: Why any other is refused; empty where it is only announced.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.refusal = ""

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1


class _Announcement:
    """A hook that warns once, or refuses. A class, so that a model that has it can be pickled."""

    def __init__(self, own: _OwnCalls, text: str) -> None:
        self._own = own
        self._text = text
        self._is_due = True

    def __call__(self, model: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_due or self._own.depth:
            return
        if model.training and torch.is_grad_enabled():
            if self._own.refusal:
                raise MethodRefusedError(self._own.refusal)
            self._is_due = False
            warnings.warn(self._text, stacklevel=_frames_to_the_user())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """For a copy of the model, which belongs to no training: it warns of nothing."""
        copied = type(self)(_OwnCalls(), self._text)
        copied._is_due = False
        return copied
