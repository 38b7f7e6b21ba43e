"""Functions that torch.compile ignores when called outside a compiled region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["uncompiled"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """Decorator that keeps torch.compile from compiling a function and what it calls.

    After a graph break, the compiler compiles every function that is called, even hooks and modes, as if it were the
    model's: a mode would then believe it is traced. Inside a region, a function may still be traced with its caller.
    Unlike ``torch.compiler.disable`` this imports no compiler.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
