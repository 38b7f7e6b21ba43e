"""Functions that torch.compile leaves alone where they are called outside of a compiled region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["uncompiled"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """Have torch.compile compile neither a function nor what it calls, as a decorator.

    After a graph break the compiler looks at every function that is called, hooks and modes among them, and compiles
    them as if they were the model's: a mode would then take itself for traced. Inside of a region a function may still
    be traced with what calls it. Unlike ``torch.compiler.disable`` this imports no compiler.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
