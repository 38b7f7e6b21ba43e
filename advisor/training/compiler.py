"""Whether ``torch.compile`` can make kernels on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch

__all__ = ["why_not_compiled"]


def why_not_compiled(device: torch.device) -> str:
    """Why the default backend cannot compile for a device; empty if it can.

    Kernels for a CPU are C++, those for a GPU are Triton's, whose launcher is C.
    """
    on_gpu = device.type == "cuda"
    if on_gpu and importlib.util.find_spec("triton") is None:
        return "torch.compile needs triton for a GPU, and it is not installed; pip install triton"
    language, variable, known = ("C", "CC", "cc gcc clang") if on_gpu else ("C++", "CXX", "c++ g++ clang++")
    if any(name and shutil.which(name.split()[0]) for name in (os.environ.get(variable), *known.split())):
        return ""
    return (
        f"torch.compile needs a {language} compiler, and none was found; install gcc, or name one in the environment "
        f"variable {variable}"
    )
